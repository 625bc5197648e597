"""What a hook answers reaches the framework's own result, and nothing else of it."""

from __future__ import annotations

from typing import Any

import pytest
from support.watch import Watch
from support.worlds import World

from adbg.engine.backends.base import BackwardCall
from adbg.engine.errors import CommandError


def scaled_at(world: World, node: str, watch: Watch, factor: float, after: bool = False) -> None:
    """Have ``watch`` multiply the gradients of ``node``, given or giving, by ``factor``."""

    def edited(values: Any, what: str) -> tuple[Any, ...]:
        backend = world.backend
        with backend.user_mode():
            new = [value * factor if value is not None else None for value in values]
        return tuple(
            backend.adopt(old, value, f"{what}[{slot}]") if old is not None else None
            for slot, (old, value) in enumerate(zip(values, new, strict=True))
        )

    def before(call: BackwardCall, key: int, outs: Any) -> Any:
        return edited(outs, "grad_outputs") if call.describe(key).unique_name == node else None

    def behind(call: BackwardCall, key: int, ins: Any, outs: Any) -> Any:
        return edited(ins, "grad_inputs") if call.describe(key).unique_name == node else None

    if after:
        watch.after = behind
    else:
        watch.before = before


def result(world: World, watching: Any, watch: Watch) -> tuple[list[float], list[float]]:
    """Gradients of two leaves: one behind a custom function, one behind a scale."""
    one, other = world.leaf([1.0, 2.0]), world.leaf([3.0, 4.0])
    root = world.total(world.add(world.custom(one, 2.0), world.scale(other, 5.0)))
    with watching(watch):
        world.backward(root)
    first, second = world.gradient(one), world.gradient(other)
    assert first is not None and second is not None
    return first, second


def test_without_an_answer_nothing_changes(world: World, watching: Any) -> None:
    assert result(world, watching, Watch()) == ([2.0, 2.0], [5.0, 5.0])


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("operator", ["custom", "scale"])
def test_an_edit_reaches_the_leaf_and_no_sibling(world: World, watching: Any, operator: str, after: bool) -> None:
    watch = Watch()
    scaled_at(world, f"{world.names[operator]}#1", watch, 10.0, after)
    expected = ([20.0, 20.0], [5.0, 5.0]) if operator == "custom" else ([2.0, 2.0], [50.0, 50.0])
    assert result(world, watching, watch) == expected


def test_an_edit_before_a_leaf_is_accumulated(world: World, watching: Any) -> None:
    watch = Watch()
    leaf = world.leaf([1.0, 2.0])

    def before(call: BackwardCall, key: int, outs: Any) -> Any:
        return (world.backend.adopt(outs[0], 7.0, "grad_outputs[0]"),) if call.is_accumulate(key) else None

    watch.before = before
    with watching(watch):
        world.backward(world.total(world.scale(leaf, 3.0)))
    assert world.gradient(leaf) == [7.0, 7.0]


def test_one_slot_of_several_is_edited(world: World, watching: Any) -> None:
    watch = Watch()
    leaf = world.leaf([1.0, 2.0, 3.0, 4.0])
    slots: list[int] = []

    def before(call: BackwardCall, key: int, outs: Any) -> Any:
        if len(outs) < 2:
            return None
        slots.append(len(outs))
        return (world.backend.adopt(outs[0], 9.0, "grad_outputs[0]"), outs[1])

    watch.before = before
    with watching(watch):
        first, second = world.split(leaf)
        world.backward(world.total(world.add(world.scale(first, 2.0), world.scale(second, 3.0))))
    assert slots == [2]
    assert world.gradient(leaf) == [9.0, 9.0, 3.0, 3.0]


def test_the_scripts_gradient_is_no_alias_of_the_edit(world: World, watching: Any) -> None:
    mine = world.tensor([5.0, 6.0])
    adopted = world.backend.adopt(world.tensor([1.0, 2.0]), mine, "grad_outputs[0]")
    assert adopted is not mine and world.values(adopted) == [5.0, 6.0]
    mine[0] = 0.0
    assert world.values(adopted) == [5.0, 6.0]


@pytest.mark.parametrize(
    ("new", "says"),
    [
        (lambda world: world.tensor([1.0, 2.0, 3.0]), r"grad_outputs\[0\] has shape \[2\]"),
        (lambda world: "text", r"grad_outputs\[0\].* str"),
        (lambda world: [1.0, 2.0], r"grad_outputs\[0\].* list"),
    ],
)
def test_what_the_framework_would_refuse_is_refused_with_the_slot(world: World, new: Any, says: str) -> None:
    with pytest.raises(CommandError, match=says):
        world.backend.adopt(world.tensor([1.0, 2.0]), new(world), "grad_outputs[0]")


def test_no_gradient_appears_where_there_is_none(world: World) -> None:
    with pytest.raises(CommandError, match=r"grad_inputs\[1\] is undefined"):
        world.backend.adopt(None, world.tensor([1.0]), "grad_inputs[1]")

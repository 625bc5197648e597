"""The parts of a summed gradient, as far as they were kept, add up to it."""

from __future__ import annotations

from typing import Any

import pytest
from support.watch import Watch
from support.worlds import World

from adbg.engine.backends.base import BackwardCall, HookPlan


def test_parts_add_up_to_the_sum(world: World, watching: Any) -> None:
    watch = Watch(HookPlan(every=True, contributions=True))
    sums: list[list[float]] = []
    parts: dict[str, list[float]] = {}

    def before(call: BackwardCall, key: int, outs: Any) -> None:
        if call.name(key) != world.names["tanh"]:
            return
        sums.append(world.values(outs[0]))
        kept, why = call.contributions(key)
        assert not why
        parts.update({call.describe(part.from_key).unique_name: world.values(part.value) for part in kept})
        assert {part.slot for part in kept} == {0}

    watch.before = before
    with watching(watch):
        shared = world.tanh(world.leaf([0.1, 0.2]))
        world.backward(world.total(world.add(world.scale(shared, 2.0), world.scale(shared, 3.0))))
    assert set(parts) == {f"{world.names['scale']}#{n}" for n in (1, 2)}
    assert sorted(parts.values()) == [[2.0, 2.0], [3.0, 3.0]]
    assert sums == [[5.0, 5.0]]


def test_parts_of_two_slots_of_one_consumer(world: World, watching: Any) -> None:
    watch = Watch(HookPlan(every=True, contributions=True))
    found: list[tuple[list[float], list[float]]] = []

    def before(call: BackwardCall, key: int, outs: Any) -> None:
        if call.name(key) == world.names["tanh"]:
            kept, _ = call.contributions(key)
            found.append((world.values(outs[0]), [world.values(part.value)[0] for part in kept]))

    watch.before = before
    with watching(watch):
        shared = world.tanh(world.leaf([0.5]))
        world.backward(world.total(world.mul(shared, shared)))
    ((total, parts),) = found
    assert len(parts) == 2 and sum(parts) == pytest.approx(total[0]) and parts[0] == pytest.approx(0.46211716)


def said_of(world: World, watching: Any, watch: Watch) -> dict[str, tuple[int, str]]:
    """How many parts each node has, and why not more."""
    said: dict[str, tuple[int, str]] = {}

    def before(call: BackwardCall, key: int, outs: Any) -> None:
        parts, why = call.contributions(key)
        said[call.describe(key).unique_name] = len(parts), why

    watch.before = before
    with watching(watch):
        shared = world.tanh(world.leaf([0.1, 0.2]))
        world.backward(world.total(world.add(world.scale(shared, 2.0), world.scale(shared, 3.0))))
    return said


def test_what_is_no_sum_is_said(world: World, watching: Any) -> None:
    parts, why = said_of(world, watching, Watch(HookPlan(every=True, contributions=True)))[f"{world.names['scale']}#1"]
    assert parts == 0 and "one consumer only" in why


@pytest.mark.needs("parts_on_request")
def test_what_was_not_kept_is_said(world: World, watching: Any) -> None:
    parts, why = said_of(world, watching, Watch(HookPlan(every=True)))[f"{world.names['tanh']}#1"]
    assert parts == 0 and "not kept" in why


def test_a_part_is_what_was_given_on_after_an_edit(world: World, watching: Any) -> None:
    """An edit of the sum itself changes no part."""
    watch = Watch(HookPlan(every=True, contributions=True))
    leaf = world.leaf([0.0, 0.0])
    parts: list[list[list[float]]] = []

    def kept(call: BackwardCall, key: int) -> None:
        parts.append(sorted(world.values(part.value) for part in call.contributions(key)[0]))

    def before(call: BackwardCall, key: int, outs: Any) -> Any:
        if call.name(key) != world.names["tanh"]:
            return None
        assert world.values(outs[0]) == [10.0, 10.0]
        kept(call, key)
        return (world.backend.adopt(outs[0], 1.0, "grad_outputs[0]"),)

    def after(call: BackwardCall, key: int, ins: Any, outs: Any) -> Any:
        if call.name(key) == world.names["tanh"]:
            kept(call, key)
        if call.name(key) == world.names["scale"] and world.values(ins[0]) == [2.0, 2.0]:
            return (world.backend.adopt(ins[0], 7.0, "grad_inputs[0]"), *ins[1:])
        return None

    watch.before, watch.after = before, after
    with watching(watch):
        shared = world.tanh(leaf)
        world.backward(world.total(world.add(world.scale(shared, 2.0), world.scale(shared, 3.0))))
    assert parts == [[[3.0, 3.0], [7.0, 7.0]]] * 2
    assert world.gradient(leaf) == [1.0, 1.0]

"""Calls inside calls: nested ones, those of expressions, those of other threads, and the call that runs a line."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
from support.watch import Watch
from support.worlds import World

from adbg.engine.backends.base import BackwardCall, HookPlan


def chain(world: World, leaf: Any) -> Any:
    """leaf -> tanh -> scale -> sum: four nodes with the accumulate node."""
    return world.total(world.scale(world.tanh(leaf), 3.0))


class Ends(Watch):
    """A watch that also keeps which calls ended, in which order."""

    def __init__(self, plan: HookPlan = HookPlan(every=True)) -> None:  # noqa: B008  frozen
        super().__init__(plan)
        self.over: list[int] = []

    def backward_end(self, call: BackwardCall, error: BaseException | None) -> None:
        super().backward_end(call, error)
        self.over.append(call.number)


def test_every_level_is_reported_with_the_node_around_it(world: World, watching: Any) -> None:
    watch = Ends()
    innermost = chain(world, world.leaf([1.0]))
    custom, tanh = world.names["custom"], world.names["tanh"]
    middle = world.total(world.tanh(world.custom(world.leaf([1.0]), 2.0, lambda: world.backward(innermost))))
    outer = world.total(world.custom(world.custom(world.leaf([1.0]), 2.0), 3.0, lambda: world.backward(middle)))
    with watching(watch):
        world.backward(outer)
    assert [(seen.number, seen.depth, seen.parent, seen.enclosing) for seen in watch.calls] == [
        (1, 0, None, None),
        (2, 1, 1, watch.calls[0].begun[1]),
        (3, 2, 2, f"{custom}#1"),
    ]
    assert watch.calls[0].begun[1].startswith(custom) and watch.over == [3, 2, 1]
    assert [seen.begun for seen in watch.calls] == [seen.order for seen in watch.calls]
    assert f"{tanh}#1" in watch.calls[2].ended


def test_a_backward_of_an_expression_is_neither_counted_nor_reported(world: World, watching: Any) -> None:
    watch = Ends()
    mine = world.leaf([1.0, 2.0])

    def before(call: BackwardCall, key: int, outs: Any) -> None:
        if call.name(key) == world.names["tanh"]:
            with world.backend.user_mode():
                world.backward(world.total(world.scale(mine, 5.0)))

    watch.before = before
    with watching(watch):
        world.backward(chain(world, world.leaf([0.1, 0.2])))
        assert (world.backend.backward_count, world.backend.iteration) == (1, 1)
        assert world.gradient(mine) == [5.0, 5.0]
        world.backward(world.total(mine))
    assert [seen.number for seen in watch.calls] == watch.over == [1, 2]
    assert watch.calls[0].begun == watch.calls[0].order


@pytest.mark.needs("overlapping_calls")
@pytest.mark.parametrize("plan", [HookPlan(every=True), HookPlan(screen=True)])
def test_hooks_do_not_fire_for_a_nested_call_over_the_same_nodes(world: World, watching: Any, plan: HookPlan) -> None:
    watch = Watch()
    watch.begin = lambda call: setattr(watch, "plan", plan if call.depth == 0 else HookPlan())
    shared = world.tanh(world.leaf([world.huge, 1.0]))
    inner = world.total(world.scale(world.scale(shared, world.huge), world.huge))
    outer = world.total(world.custom(shared, 2.0, lambda: world.backward(inner, retain=True)))
    with watching(watch):
        world.backward(outer)
    first, nested = watch.calls
    assert first.begun == first.ended == (first.order if plan.every else [])
    assert nested.begun == nested.ended == []


@pytest.mark.parametrize("plan", [HookPlan(every=True), HookPlan(screen=True)])
def test_hooks_do_not_fire_for_a_later_call_over_the_same_nodes(world: World, watching: Any, plan: HookPlan) -> None:
    watch = Watch(plan)
    shared = world.tanh(world.leaf([1.0]))
    root = world.total(world.scale(shared, 2.0))
    with watching(watch):
        world.backward(root, retain=True)
        seen = [list(watch.last.begun), list(watch.last.ended)]
        watch.plan = HookPlan()
        world.backward(root, retain=True, given=world.tensor([math.inf], ()))
        world.backend.arm(False)
        world.backward(root, given=world.tensor([math.inf], ()))
    first, second = watch.calls
    assert [first.begun, first.ended] == seen and second.begun == second.ended == []


@pytest.mark.parametrize("armed", [True, False])
def test_threads_have_calls_of_their_own(world: World, watching: Any, armed: bool) -> None:
    """Both run a backward inside a backward at the same time."""
    watch = Ends()
    both = threading.Barrier(2)
    leaves = [world.leaf([1.0, 2.0]) for _ in range(2)]
    errors: list[BaseException] = []

    def rooted(leaf: Any, nested: Any) -> Any:
        def inside() -> None:
            both.wait(30)
            world.backward(nested)
            both.wait(30)

        return world.total(world.custom(leaf, 2.0, inside))

    roots = [rooted(leaf, chain(world, world.leaf([1.0]))) for leaf in leaves]

    def work(root: Any) -> None:
        try:
            world.backward(root)
        except BaseException as error:
            errors.append(error)

    with watching(watch, armed=armed):
        threads = [threading.Thread(target=work, args=(root,)) for root in roots]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        counts = world.backend.backward_count, world.backend.iteration
    assert not errors and not any(thread.is_alive() for thread in threads)
    assert counts == (4, 2)
    assert [world.gradient(leaf) for leaf in leaves] == [[2.0, 2.0]] * 2
    outer = {seen.thread: seen.number for seen in watch.calls if seen.depth == 0}
    nested = {seen.thread: seen.parent for seen in watch.calls if seen.depth == 1}
    assert outer == nested
    assert set(outer) == ({thread.ident for thread in threads} if armed else set())
    assert all(seen.begun == seen.order for seen in watch.calls)


def test_unarmed_an_exception_of_a_nested_call_is_reported_once_by_the_innermost(world: World, watching: Any) -> None:
    def fail() -> None:
        raise ValueError("no such luck")

    watch = Ends()
    inner = world.total(world.tanh(world.custom(world.leaf([1.0]), 2.0, fail)))
    outer = world.total(world.custom(world.leaf([1.0]), 2.0, lambda: world.backward(inner)))
    with watching(watch, armed=False), pytest.raises(Exception, match="no such luck"):
        world.backward(outer)
    assert watch.over == [2] and watch.last.number == 2 and watch.last.depth == 1
    assert watch.last.failed[0][0] == f"{world.names['custom']}#1" and "no such luck" in str(watch.last.error)


@pytest.mark.parametrize("armed", [True, False])
def test_the_call_and_the_node_that_run_python_code(world: World, watching: Any, armed: bool) -> None:
    watch = Ends()
    found: list[tuple[int, int, str]] = []

    def inside() -> None:
        at_hand = world.backend.at_hand()
        assert at_hand is not None and at_hand[1] is not None
        call, key = at_hand
        found.append((call.number, call.depth, call.describe(key).unique_name))
        if call.depth == 0:
            world.backward(nested)

    nested = world.total(world.custom(world.leaf([1.0]), 2.0, inside))
    with watching(watch, armed=armed):
        assert world.backend.at_hand() is None
        world.backward(world.total(world.tanh(world.custom(world.leaf([1.0]), 2.0, inside))))
        assert world.backend.at_hand() is None
    assert [(number, depth) for number, depth, _ in found] == [(1, 0), (2, 1)]
    assert all(name.startswith(world.names["custom"]) for *_, name in found)
    assert watch.over == [2, 1], "reported from then on: their ends are"

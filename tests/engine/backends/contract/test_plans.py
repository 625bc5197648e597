"""A plan decides which nodes are reported: by name, by facts, by index, all, or those that make a NaN or inf."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from support.watch import Watch
from support.worlds import World

from adbg.engine.backends.base import BackwardCall, HookPlan
from adbg.engine.types import NodeInfo, SourceLine


def ladder(world: World, leaf: Any) -> Any:
    """leaf -> tanh -> scale -> tanh -> scale -> sum."""
    return world.total(world.scale(world.tanh(world.scale(world.tanh(leaf), 2.0)), 3.0))


def run(world: World, watching: Any, watch: Watch) -> Watch:
    with watching(watch):
        world.backward(ladder(world, world.leaf([0.1, 0.2])))
    return watch


def test_every(world: World, watching: Any) -> None:
    seen = run(world, watching, Watch(HookPlan(every=True))).last
    assert seen.begun == seen.ended == seen.order and seen.hooked == len(seen.order) == 6


def test_by_name(world: World, watching: Any) -> None:
    asked: list[str] = []

    def tanh(name: str) -> bool:
        asked.append(name)
        return name == world.names["tanh"]

    seen = run(world, watching, Watch(HookPlan(name=tanh))).last
    assert seen.begun == seen.ended == [f"{world.names['tanh']}#{n}" for n in (2, 1)]
    assert seen.hooked == 2
    assert max(map(asked.count, asked)) <= 2, "once for each name, not for each node"
    assert {world.names["tanh"], world.names["scale"], world.names["sum"]} <= set(asked)


def test_a_name_that_no_node_has(world: World, watching: Any) -> None:
    seen = run(world, watching, Watch(HookPlan(name=lambda name: False))).last
    assert (seen.hooked, seen.begun, seen.ended) == (0, [], [])


def test_by_facts(world: World, watching: Any) -> None:
    def second_scale(info: NodeInfo, stack: Sequence[SourceLine]) -> bool:
        return info.unique_name == f"{world.names['scale']}#2"

    plan = HookPlan(info=second_scale, needs=frozenset(["unique_name"]))
    assert run(world, watching, Watch(plan)).last.begun == [f"{world.names['scale']}#2"]


def test_by_index_in_the_order_of_execution(world: World, watching: Any) -> None:
    seen = run(world, watching, Watch(HookPlan(indices=frozenset([1, 3, 99])))).last
    assert seen.begun == [seen.order[0], seen.order[2]]


def test_without_the_end_of_nodes(world: World, watching: Any) -> None:
    seen = run(world, watching, Watch(HookPlan(every=True, post=False))).last
    assert seen.begun == seen.order and seen.ended == []


def test_a_plan_may_be_widened_at_a_stop(world: World, watching: Any) -> None:
    """It holds for the nodes to come, and gives the current one its end."""
    watch = Watch(HookPlan(name=lambda name: name == world.names["tanh"], post=False))
    watch.before = lambda call, key, outs: call.hook(HookPlan(every=True)) and None
    seen = run(world, watching, watch).last
    first = seen.order.index(f"{world.names['tanh']}#2")
    assert seen.begun == seen.order[first:] and seen.ended == seen.order[first:]


def test_the_screen_reports_nothing_while_all_is_finite(world: World, watching: Any) -> None:
    seen = run(world, watching, Watch(HookPlan(screen=True))).last
    assert seen.begun == seen.ended == []


def test_the_screen_reports_the_node_that_makes_an_inf_first(world: World, watching: Any) -> None:
    watch = Watch(HookPlan(screen=True))
    bad: list[tuple[str, tuple[int, int]]] = []

    def after(call: BackwardCall, key: int, ins: Any, outs: Any) -> None:
        if not bad:
            bad.append((call.describe(key).unique_name, world.backend.nonfinite(ins[0])))

    watch.after = after
    leaf = world.leaf([0.1, 0.2])
    with watching(watch):
        world.backward(world.total(world.scale(world.scale(world.tanh(leaf), world.huge), world.huge)))
    assert bad == [(f"{world.names['scale']}#1", (0, 2))]
    assert watch.last.ended[0] == f"{world.names['scale']}#1" and f"{world.names['scale']}#2" not in watch.last.begun


def test_the_screen_sees_a_sum_that_overflows(world: World, watching: Any) -> None:
    """Each part is finite: the node that is given the sum is reported before it runs."""
    watch = Watch(HookPlan(screen=True))
    leaf = world.leaf([1.0, 1.0])
    with watching(watch):
        shared = world.tanh(leaf)
        world.backward(world.total(world.add(world.scale(shared, world.largest), world.scale(shared, world.largest))))
    assert watch.last.begun[0] == f"{world.names['tanh']}#1"


@pytest.mark.parametrize("plan", [HookPlan(), HookPlan(post=True, contributions=True)])
def test_an_empty_plan_hooks_nothing(world: World, watching: Any, plan: HookPlan) -> None:
    assert plan.empty
    seen = run(world, watching, Watch(plan)).last
    assert (seen.hooked, seen.begun) == (0, [])


@pytest.mark.needs("progress")
def test_a_wider_plan_leaves_nodes_that_ran(world: World, watching: Any) -> None:
    watch = Watch(HookPlan(name=lambda name: name == world.names["tanh"]))
    hooked: list[int] = []

    def before(call: BackwardCall, key: int, outs: Any) -> None:
        hooked.append(call.hook(HookPlan(every=True)))

    watch.before = before
    seen = run(world, watching, watch).last
    assert seen.hooked == 2
    assert hooked[0] == len(seen.order) - seen.order.index(f"{world.names['tanh']}#2") == 4


def test_the_screen_looks_at_what_a_root_is_given(world: World, watching: Any) -> None:
    watch = Watch(HookPlan(screen=True))
    with watching(watch):
        world.backward(world.total(world.tanh(world.leaf([0.1]))), given=world.tensor([math.inf], ()))
    assert watch.last.begun[:1] == watch.last.order[:1]


@pytest.mark.needs("tensor_hooks")
def test_the_screen_looks_behind_a_hook_of_the_scripts(world: World, watching: Any) -> None:
    watch = Watch(HookPlan(screen=True))
    made = world.scale(world.leaf([0.1, 0.2]), 2.0)
    world.tensor_hook(made, lambda gradient: gradient * math.inf)
    with watching(watch):
        world.backward(world.total(world.tanh(made)))
    assert f"{world.names['scale']}#1" in watch.last.begun + watch.last.ended


@pytest.mark.needs("tensor_hooks")
def test_the_screen_looks_at_what_a_leaf_is_given(world: World, watching: Any) -> None:
    """All was finite until a hook of the script's came."""
    watch = Watch(HookPlan(screen=True))
    leaf = world.leaf([0.1, 0.2])
    world.tensor_hook(leaf, lambda gradient: gradient * math.inf)
    with watching(watch):
        world.backward(world.total(world.tanh(leaf)))
    assert watch.last.begun == watch.last.order[-1:]

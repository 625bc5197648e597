"""Where in the script and in its model a node was made."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import pytest
from support.watch import Watch
from support.worlds import World

from adbg.engine.backends.base import BackwardCall
from adbg.engine.types import NodeInfo


def nodes_of(world: World, watch: Watch, root: Any) -> dict[str, tuple[NodeInfo, list[tuple[str, int, str]], str]]:
    """What a call says of its nodes, by framework name: facts, stack, why there is none."""
    found = {}

    def begin(call: BackwardCall) -> None:
        for key in call.order():
            stack, why = call.forward_stack(key)
            found[call.name(key)] = call.describe(key), [(line.file, line.line, line.function) for line in stack], why

    watch.begin = begin
    world.backward(root)
    return found


@pytest.mark.needs("forward_stacks")
@pytest.mark.needs("locations")
def test_stacks_lead_to_the_line_that_made_the_node(world: World, watching: Any) -> None:
    watch = Watch()
    leaf = world.leaf([0.1, 0.2])
    with watching(watch, stacks=True):
        made, line = world.tanh(leaf), sys._getframe().f_lineno
        info, stack, why = nodes_of(world, watch, world.total(made))[world.names["tanh"]]
    lines, start = inspect.getsourcelines(world.tanh)
    inner = (inspect.getsourcefile(world.tanh), start + len(lines) - 1, "tanh")
    outer = (__file__, line, "test_stacks_lead_to_the_line_that_made_the_node")
    assert stack[:2] == [inner, outer] and not why
    assert info.forward is not None and (info.forward.file, info.forward.line) == inner[:2]


@pytest.mark.needs("forward_stacks")
def test_without_stacks_it_is_said_why_there_are_none(world: World, watching: Any) -> None:
    watch = Watch()
    with watching(watch, stacks=False):
        info, stack, why = nodes_of(world, watch, world.total(world.tanh(world.leaf([0.1]))))[world.names["tanh"]]
    assert stack == [] and why and info.forward is None


@pytest.mark.needs("module_paths")
@pytest.mark.needs("modules")
def test_module_paths_and_parameters(world: World, watching: Any) -> None:
    watch = Watch()
    model, weight = world.model()
    with watching(watch, stacks=True):
        found = nodes_of(world, watch, world.total(model(world.tensor([0.1]))))
        seen = dict(world.backend.parameters())
    modules = {name: info.module for name, (info, _, _) in found.items()}
    assert modules[world.names["tanh"]] == "inner" and modules[world.names["sum"]] is None
    assert [info.parameter for info, _, _ in found.values() if info.accumulate] == ["inner.weight"]
    assert seen["inner.weight"] is weight


@pytest.mark.needs("module_paths")
@pytest.mark.needs("modules")
@pytest.mark.parametrize("first", ["the part", "the whole"])
def test_a_parameter_is_told_once_whichever_module_ran_alone(world: World, watching: Any, first: str) -> None:
    """Witness: the framework's own list of the whole."""
    watch = Watch()
    model: Any = world.model()[0]
    with watching(watch, stacks=True):
        for run in (model.inner, model) if first == "the part" else (model, model.inner):
            nodes_of(world, watch, world.total(run(world.tensor([0.1]))))
        told = [(name, id(value)) for name, value in world.backend.parameters()]
    own = [(name, id(value)) for name, value in model.named_parameters()]
    numbers = [number for _, number in own]
    assert [each for each in told if each[1] in numbers] == own, "models of other tests may be alive beside it"

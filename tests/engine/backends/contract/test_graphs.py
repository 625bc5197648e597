"""A walked graph: its order is that of the framework's hooks, its edges are the framework's own."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.watch import Watch
from support.worlds import World

from adbg.engine.backends.base import BackwardCall, Graph
from adbg.engine.types import ValueState


def diamond(world: World, leaf: Any) -> Any:
    """A leaf used twice; two branches; halves of one split, both used."""
    shared = world.tanh(leaf)
    first, second = world.split(world.add(world.scale(shared, 2.0), world.mul(shared, leaf)))
    return world.total(world.mul(world.custom(first, 3.0), second))


def random_root(world: World, seed: int) -> Any:
    rng = random.Random(seed)
    pool = [world.leaf([0.1 * n, 0.2, 0.3, 0.4]) for n in range(rng.randint(1, 3))]
    for _ in range(rng.randint(4, 25)):
        a, b = rng.choice(pool), rng.choice(pool)
        kind = rng.randrange(5)
        if kind == 0:
            pool.append(world.tanh(a))
        elif kind == 1:
            pool.append(world.scale(a, 0.5))
        elif kind == 2:
            pool.append(world.custom(a, 1.5))
        elif kind == 3:
            pool.append(world.add(a, b))
        else:
            pool.append(world.mul(a, b))
    return world.total(world.add(pool[-1], world.scale(rng.choice(pool), 2.0)))


@pytest.mark.parametrize("seed", range(12))
def test_the_predicted_order_is_that_of_the_hooks(world: World, watching: Any, seed: int) -> None:
    watch = Watch()
    with watching(watch):
        world.backward(diamond(world, world.leaf([0.1, 0.2, 0.3, 0.4])) if not seed else random_root(world, seed))
    assert watch.last.begun == watch.last.order and len(set(watch.last.order)) == len(watch.last.order)


def graph_of(world: World, root: Any) -> Graph:
    """The graph below ``root`` while its backward begins."""
    found = world.backend.graph_of([root])
    assert found is not None
    return found


def test_edges_are_the_frameworks_own(world: World) -> None:
    graph = graph_of(world, diamond(world, world.leaf([0.1, 0.2, 0.3, 0.4])))
    for key in graph.order():
        edges = graph.edges(key)
        assert [edge.slot for edge in edges] == list(range(len(edges)))
        mine = [world.address(graph.node(edge.to)) if edge.to is not None else None for edge in edges]
        assert mine == world.below(graph.node(key))
        for edge in edges:
            if edge.to is not None:
                assert edge.to_slot < max(1, len(graph.input_meta(edge.to)))


def test_the_slots_of_a_node_with_several_outputs(world: World) -> None:
    first, second = world.split(world.leaf([0.1, 0.2, 0.3, 0.4]))
    graph = graph_of(world, world.total(world.add(world.tanh(second), world.scale(first, 2.0))))
    (split,) = [key for key in graph.order() if len(graph.input_meta(key)) == 2]
    into = {graph.name(key): edge.to_slot for key in graph.order() for edge in graph.edges(key) if edge.to == split}
    assert into == {world.names["tanh"]: 1, world.names["scale"]: 0}


def test_every_node_is_described(world: World) -> None:
    graph = graph_of(world, diamond(world, world.leaf([0.1, 0.2, 0.3, 0.4])))
    order = list(graph.order())
    infos = [graph.describe(key) for key in order]
    assert graph.count() == len(order) == len(set(order)) == len({info.unique_name for info in infos})
    assert [info.key for info in infos] == order
    assert [graph.name(key) for key in order] == [info.name for info in infos]
    assert sorted(graph.names()) == sorted({info.name for info in infos})
    assert list(graph.roots()) == [order[0]] and infos[0].name == world.names["sum"]
    leaves = [info for info in infos if info.accumulate]
    assert len(leaves) == 1 and leaves[0].seq is None
    assert [key for key in order if graph.is_accumulate(key)] == [leaves[0].key]
    assert [graph.name(key) for key in order if graph.is_custom(key)] == [world.names["custom"]]
    assert len({graph.address(key) for key in order}) == len(order)
    assert all(edge.to is None for edge in graph.edges(leaves[0].key))


@pytest.mark.needs("ops")
def test_ops(world: World) -> None:
    graph = graph_of(world, world.total(world.tanh(world.leaf([0.1]))))
    ops = [graph.op_name(key).partition("#")[0].lower() for key in graph.order()]
    assert ops[:2] == ["sum", "tanh"]


def test_dumped_names(world: World) -> None:
    graph = graph_of(world, world.total(world.tanh(world.leaf([0.1]))))
    assert [graph.dumped_name(key).partition("#")[0] for key in graph.order()] == [
        graph.name(key) for key in graph.order()
    ]


def test_shapes_are_known_before_a_node_runs(world: World, watching: Any) -> None:
    watch = Watch()
    told: dict[str, list[Any]] = {}
    seen: dict[str, list[Any]] = {}

    def before(call: BackwardCall, key: int, outs: Any) -> None:
        name = call.describe(key).unique_name
        metas = call.input_meta(key)
        if any(meta.note for meta in metas):
            return  # an accumulate node of Paddle's does not keep it
        told[name] = [(meta.shape, meta.dtype, meta.nbytes) for meta in metas]
        seen[name] = [(world.backend.meta(out).shape, "f32", 4 * len(world.values(out))) for out in outs]

    watch.before = before
    with watching(watch):
        world.backward(diamond(world, world.leaf([0.1, 0.2, 0.3, 0.4])))
    assert told == seen and len(told) >= len(watch.last.order) - 1


@pytest.mark.needs("spent")
def test_graphs_that_a_backward_used_up_are_left_out(world: World, watching: Any) -> None:
    old = world.total(world.mul(world.tanh(world.leaf([0.1])), world.leaf([2.0])))
    with watching(Watch()):
        world.backward(old)
        new = world.total(world.tanh(world.leaf([0.1])))
        graph = world.backend.graph_of([old, new])
        assert graph is not None and graph.count() == 3
        assert len(graph.left_out) == 1 and graph.left_out[0] is old
        alone = world.backend.graph_of([old])
        assert alone is not None and alone.count() == 5 and not alone.left_out


def test_values_without_a_graph(world: World) -> None:
    assert world.backend.graph_of([world.tensor([1.0]), "text", None]) is None


@pytest.mark.needs("saved_tensors")
def test_saved_values(world: World) -> None:
    graph = graph_of(world, world.total(world.tanh(world.leaf([0.5]))))
    (tanh,) = [key for key in graph.order() if graph.name(key) == world.names["tanh"]]
    (saved,) = graph.saved(tanh)
    assert saved.name == "result" and saved.state is ValueState.OK
    assert world.values(saved.value) == pytest.approx([0.46211716])


@pytest.mark.needs("saved_tensors")
@pytest.mark.needs("spent")
def test_saved_values_that_a_backward_freed(world: World) -> None:
    root = world.total(world.tanh(world.leaf([0.5])))
    graph = graph_of(world, root)
    (tanh,) = [key for key in graph.order() if graph.name(key) == world.names["tanh"]]
    world.backward(root, retain=True)
    assert [saved.state for saved in graph.saved(tanh)] == [ValueState.OK]
    world.backward(root)
    assert [(saved.name, saved.state, saved.value) for saved in graph.saved(tanh)] == [
        ("result", ValueState.FREED, None)
    ]


@pytest.mark.needs("watch_creation")
def test_which_nodes_were_made_meanwhile(world: World, watching: Any) -> None:
    with watching(Watch(), armed=False, stacks=True):
        before = world.scale(world.leaf([0.1, 0.2]), 2.0)
        watch = world.backend.watch_creation()
        inside = world.tanh(before)
        world.scale(inside, 7.0)  # no part of the loss
        watch.close()
        root = world.total(world.scale(inside, 3.0))
        graph = graph_of(world, root)
        made = [graph.name(key) for key in graph.order() if watch.holds(graph, key)]
        assert made == [world.names["tanh"]]
        strays, _ = watch.strays(graph)
        assert len(strays) == 1 and "scale" in str(strays[0].forward)
        watch.release()

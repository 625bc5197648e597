"""Who watches iterations, armed or not: several at once, each until it is put off. How old the nodes of a graph are."""

from __future__ import annotations

from functools import partial

import pytest
from support.watch import Watch
from support.worlds import World

from adbg.engine.errors import Unsupported


def test_several_watch_and_each_is_put_off_alone(world: World, watching) -> None:
    told: list[tuple[str, bool]] = []
    backend = world.backend

    def tell(name: str, begins: bool) -> None:
        told.append((name, begins))

    def turn() -> list[tuple[str, bool]]:
        told.clear()
        world.backward(world.total(world.tanh(world.leaf([0.1, 0.2]))))
        return list(told)

    with watching(Watch(), armed=False):
        try:
            backend.watch_iterations(partial(tell, "a"), "a")
        except Unsupported:
            pytest.skip(f"{backend.name} does not tell")
        backend.watch_iterations(partial(tell, "b"), "b")
        assert turn() == [("a", True), ("b", True), ("a", False), ("b", False)]
        backend.watch_iterations(None, "a")
        assert turn() == [("b", True), ("b", False)]
        backend.watch_iterations(None, "b")
        assert turn() == []


def test_nodes_that_were_there_before(world: World, watching) -> None:
    backend = world.backend
    with watching(Watch(), armed=False):
        mark = backend.made_so_far()
        if mark is None:
            pytest.skip(f"{backend.name} does not tell")
        old = world.total(world.tanh(world.leaf([0.1, 0.2])))
        world.backward(old)
        mark = backend.made_so_far()
        loss = world.total(world.tanh(world.leaf([0.3, 0.4])))
        kept = world.add(old, loss)
        world.backward(loss)
        # of Paddle the two operators of the first graph, its leaf and what they are added by
        assert backend.older_nodes(loss, mark, 100) == 0
        assert 0 < backend.older_nodes(kept, mark, 100) <= 4


def test_nodes_made_before_a_moment_of_the_forward(world: World, watching) -> None:
    backend = world.backend
    with watching(Watch(), armed=False):
        backend.set_stacks(True)
        try:
            old = world.tanh(world.leaf([0.1, 0.2]))
            mark = backend.keeping.forward_mark()
            if mark is None:
                pytest.skip(f"{backend.name} does not tell")
            new = world.total(world.tanh(world.leaf([0.3, 0.4])))
            both = world.add(world.total(old), new)
            assert backend.keeping.nodes_before(new, mark, 100) == 0
            assert backend.keeping.nodes_before(old, mark, 100) == backend.keeping.nodes_before(both, mark, 100) == 1
            assert backend.keeping.nodes_before(both, backend.keeping.forward_mark(), 2) <= 2
        finally:
            backend.set_stacks(False)

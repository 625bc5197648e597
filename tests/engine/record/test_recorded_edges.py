"""The record keeps the edges that the framework's graph has: slots on both sides, and those that lead nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adbg.engine.backends import REGISTRY
from adbg.engine.record.observers import Recording
from adbg.engine.record.reader import RunReader
from adbg.engine.record.recorder import Recorder
from adbg.engine.session.observers import Observer
from adbg.engine.session.running_call import Running
from adbg.engine.session.session import Session
from adbg.engine.types import Edge

Edges = dict[int, tuple[Edge, ...]]


class _Silent:
    def event(self, body: Any, droppable: bool = False) -> None:
        """Nobody is there."""


class Walk(Observer):
    """Looks at each call with the framework's own eyes, while it runs."""

    def __init__(self) -> None:
        self.nodes: dict[int, Any] = {}
        self.edges: Edges = {}

    def backward_begin(self, running: Running) -> None:
        call = running.call
        self.nodes = {key: call.node(key) for key in call.order()}
        self.edges = {key: tuple(call.edges(key)) for key in call.order() if call.edges(key)}


def recorded(framework: str, folder: Path, run: Any) -> tuple[Walk, RunReader]:
    """What ``run()``, one backward under ``record on``, left behind."""
    recorder = Recorder.open(folder / "run")
    recording, walk = Recording(recorder), Walk()
    recording.every = True
    session = Session(_Silent())
    session.set_filters([])
    session.attach()
    session.observe(recording, walk)
    session.add_backend(REGISTRY[framework]())
    try:
        run()
    finally:
        session.detach()
    assert recorder.flush(10)
    recorder.close()
    return walk, RunReader(folder / "run")


@pytest.mark.torch
def test_torch_edges_are_next_functions(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    a, b, c = (torch.ones(2, 2, requires_grad=wanted) for wanted in (True, False, True))
    first, second = torch.stack([a * 2, a * 3]).unbind()  # one node that two others give gradients to, by slot

    walk, reader = recorded("torch", tmp_path, lambda: torch.addcmul(second, b, c).add(first).sum().backward())
    keys = {node: key for key, node in walk.nodes.items()}
    wanted = {
        key: tuple(
            Edge(slot, keys[to] if to is not None else None, into)
            for slot, (to, into) in enumerate(node.next_functions)
        )
        for key, node in walk.nodes.items()
        if node.next_functions
    }
    assert reader.edges(1) == wanted
    names = {key: node.name() for key, node in walk.nodes.items()}
    (fused,) = (edges for key, edges in wanted.items() if names[key] == "AddcmulBackward0")
    assert [edge.to is None for edge in fused] == [False, True, False], "no gradient goes to b, and c keeps its slot"
    into = sorted(
        edge.to_slot for edges in wanted.values() for edge in edges if edge.to and names[edge.to] == "UnbindBackward0"
    )
    assert into == [0, 1]
    rows = {row.key: row for row in reader.graph(1)}
    for key, edges in wanted.items():
        assert rows[key].edges == tuple(rows[edge.to].index for edge in edges if edge.to is not None)


@pytest.mark.paddle
def test_paddle_edges_are_those_of_the_graph(tmp_path: Path) -> None:
    paddle = pytest.importorskip("paddle")
    a = paddle.ones([2, 2])
    a.stop_gradient = False
    b = paddle.ones([2, 2])  # no gradient goes there
    first, second = paddle.unbind(paddle.stack([a * 2, a * 3]))

    walk, reader = recorded("paddle", tmp_path, lambda: (paddle.multiply(second, b) + first).sum().backward())
    assert walk.edges and reader.edges(1) == walk.edges
    assert any(edge.to is None for edges in walk.edges.values() for edge in edges), "the null edge to b"
    assert {edge.to_slot for edges in walk.edges.values() for edge in edges} >= {0, 1}, "both outputs of unbind"

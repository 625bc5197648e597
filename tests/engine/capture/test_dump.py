"""``adbg/dump`` at a stop: the graph, its stacks and its gradients as files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fake_backend import FakeBackend, FakeGraph
from support.stops import Stops

from adbg.engine.capture.dump import dump
from adbg.engine.errors import CommandError
from adbg.engine.protocol import messages as protocol
from adbg.engine.session.stop_point import PausedPoint
from adbg.engine.types import Phase


def stop_at(graph: FakeGraph, node: str, visit: Callable[[PausedPoint], None]) -> None:
    """Run a backward; ``visit`` the stop before ``node``."""
    backend = FakeBackend()
    stops = Stops(backend)
    stops.on(Phase.BEFORE, node, lambda answers: visit(answers.point))
    backend.install(stops)
    backend.arm(True)
    backend.backward(graph)
    assert stops.visited
    if stops.failure is not None:
        raise stops.failure


def written(point: PausedPoint, what: str, folder: Path) -> tuple[str, str]:
    """(name, text) of the file."""
    (file,) = dump(point, protocol.Dump(what=what, directory=str(folder))).files
    return Path(file).name, Path(file).read_text()


def diamond() -> FakeGraph:
    """A root feeding two nodes that both feed one, which feeds two leaves."""
    graph = FakeGraph((2,))
    join = graph.add("AddmmBackward0", graph.leaf("fc.weight"), graph.leaf("fc.bias"), module='quoted "module"\\')
    left = graph.add("MulBackward0", join, factor=2.0)
    right = graph.add("MulBackward0", join, factor=3.0)
    graph.add("AddBackward0", left, right)
    graph.nodes[join].custom = True
    return graph


def test_the_graph_in_order_of_execution(tmp_path: Path) -> None:
    def visit(point: PausedPoint) -> None:
        name, text = written(point, "graph", tmp_path / "new")
        assert name.endswith("_backward_graph.dot")
        assert text.count("->") == 6
        assert text.count("[label=") == 12
        assert r'quoted \"module\"\\"' in text
        assert text.count('peripheries="2"') == 1 and text.count("#c0392b") == 1  # a custom node, and the current one
        assert 'node_1->node_3[label="grad_inputs[0]\\nf32[2]"]' in text

    stop_at(diamond(), "AddmmBackward0#1", visit)


def test_gradients_with_statistics_and_what_ran_before(tmp_path: Path) -> None:
    def visit(point: PausedPoint) -> None:
        name, text = written(point, "grads", tmp_path)
        assert name.endswith("_grad_tensors.log")
        head = "  - lod: {}\n  - place: Place(cpu)\n  - shape: [2]\n  - layout: NCHW\n  - dtype: float32\n"
        stats = "  - stats: min 5 max 5 mean 5 std 0 norm 7.07107 nan 0 inf 0 (exact)\n  - data: [5.000000 5.000000]\n"
        assert f"Variable: AddmmBackward0#1 grad_outputs[0]\n{head}{stats}" in text
        assert "Variable: w@Grad\n  (undefined" in text
        assert "Ran: #2 MulBackward0 norm 1.414\n  - grad_inputs[0]: f32 [2] cpu norm 4.243\n" in text

    stop_at(diamond(), "AddmmBackward0#1", visit)


def test_stacks_outermost_first_with_source_lines(tmp_path: Path) -> None:
    source = tmp_path / "model.py"
    source.write_text("def forward(x):\n    return x * 2\n")

    def visit(point: PausedPoint) -> None:
        name, text = written(point, "stack", tmp_path)
        assert name.endswith("_call_stack.log")
        lines = f'  File "{source}", line 100, in train\n  File "{source}", line 2, in forward\n    return x * 2\n'
        graph = point.graph
        assert graph is not None and point.key is not None
        assert f"GradNodeBase AddBackward0#1 ptr : {graph.address(point.key):#x} call stack: \n{lines}\n" in text
        assert "call stack: \n  (made before stacks were on)\n" in text

    stop_at(FakeGraph.chain(2, file=str(source)), "AddBackward0#1", visit)


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    def visit(point: PausedPoint) -> None:
        with pytest.raises(CommandError, match="cannot dump 'all'"):
            written(point, "all", tmp_path)
        with pytest.raises(CommandError, match="cannot write"):
            written(point, "graph", tmp_path / "file")
        point.graph = None
        with pytest.raises(CommandError, match="no graph"):
            written(point, "graph", tmp_path / "none")
        assert not (tmp_path / "none").exists()

    stop_at(diamond(), "AddmmBackward0#1", visit)

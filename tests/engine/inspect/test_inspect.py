"""Answers at a stop, on the backend without a framework. Tests look inside the hook, and check that they got there."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from fake_backend import FakeBackend, FakeGraph, FakeTensor
from support.stops import Stops, python_stop, session_of

from adbg.engine.errors import AdbgError, BackendError, CommandError, NotStopped, ProtocolError
from adbg.engine.inspect.dispatch import COMMANDS, Answers
from adbg.engine.inspect.stack import running_stack
from adbg.engine.inspect.tables import info
from adbg.engine.protocol import codec as wire
from adbg.engine.protocol import messages as protocol
from adbg.engine.types import Phase, ValueState


def stop_at(
    graph: FakeGraph, phase: Phase, node: str, visit: Callable[[Answers], None], **answers: Any
) -> tuple[dict[str, Any], FakeBackend]:
    """Run a backward, ``visit`` the stop; the leaves' gradients."""
    backend = FakeBackend()
    stops = Stops(backend, **answers)
    stops.on(phase, node, visit)
    backend.install(stops)
    backend.arm(True)
    result = backend.backward(graph)
    assert stops.visited, f"no stop {phase.value} {node}"
    return result, backend


def ask(answers: Answers, command: str, /, **fields: Any) -> Any:
    """Ask as a client does: arguments and body go over the wire's codec."""
    arguments_type, body_type = protocol.REQUESTS[command]
    arguments = wire.from_json(arguments_type, fields)
    body = answers.dispatch(command, arguments)
    return wire.from_json(body_type, wire.to_json(body))


def text_of(answers: Answers, expression: str, **fields: Any) -> str:
    result: str = ask(answers, "evaluate", expression=expression, **fields).result
    return result


def diamond() -> FakeGraph:
    """A root feeding two nodes that both feed one, which feeds two leaves; made in one file."""
    graph = FakeGraph((2,))
    weight = graph.leaf("fc.weight")
    bias = graph.leaf("fc.bias")
    join = graph.add("AddmmBackward0", weight, bias, module="fc", saved={"self": FakeTensor([1, 2]), "alpha": 1})
    left = graph.add("MulBackward0", join, factor=2.0)
    right = graph.add("MulBackward0", join, factor=3.0)
    graph.add("AddBackward0", left, right, attributes={"alpha": "1"})
    return graph


# ------------------------------------------------------------------ graph


def test_rows_come_in_execution_order_with_states_and_edges_as_indices() -> None:
    def visit(answers: Answers) -> None:
        body = ask(answers, "adbg/graph")
        assert (body.total, body.here, body.backward, body.depth) == (6, 4, 1, 0)
        assert [row.unique_name for row in body.rows] == [
            "AddBackward0#1", "MulBackward0#2", "MulBackward0#1",
            "AddmmBackward0#1", "AccumulateGrad#2", "AccumulateGrad#1",
        ]  # fmt: skip
        assert [row.state for row in body.rows] == ["done", "done", "done", "here", "todo", "todo"]
        assert [row.edges for row in body.rows] == [(3, 2), (4,), (4,), (6, 5), (), ()]
        assert [row.us for row in body.rows] == [1.5, 1.5, 1.5, None, None, None]
        assert body.rows[3].norm == pytest.approx(5 * 2**0.5)  # of the gradient at hand: 2 + 3 twice
        assert body.rows[1].norm == pytest.approx(2**0.5)
        assert body.rows[5].parameter == "fc.weight"
        assert body.rows[0].shape == (2,)
        assert body.rows[0].dtype == "f32"

    stop_at(diamond(), Phase.BEFORE, "AddmmBackward0#1", visit)


def test_here_is_0_at_the_begin_and_behind_the_last_node_at_the_end() -> None:
    def begin(answers: Answers) -> None:
        body = ask(answers, "adbg/graph")
        assert body.here == 0
        assert ask(answers, "adbg/node").index == 1
        assert {row.state for row in body.rows} == {"todo"}

    def end(answers: Answers) -> None:
        body = ask(answers, "adbg/graph")
        assert body.here == 7
        assert ask(answers, "adbg/node").index == 6
        assert {row.state for row in body.rows} == {"done"}

    stop_at(diamond(), Phase.BEGIN, "*", begin)
    stop_at(diamond(), Phase.END, "*", end)


def test_pages_and_version() -> None:
    versions = []

    def visit(answers: Answers) -> None:
        body = ask(answers, "adbg/graph", start=10, count=3)
        assert [row.index for row in body.rows] == [10, 11, 12]
        assert ask(answers, "adbg/graph", start=51, count=10).rows[-1].index == 51
        assert ask(answers, "adbg/graph", start=52, count=10).rows == []
        assert ask(answers, "adbg/graph", start=-5, count=1).rows[0].index == 1
        assert ask(answers, "adbg/graph", start=1, count=-5).rows == []
        versions.append(body.version)
        assert ask(answers, "adbg/graph").version == body.version

    stop_at(FakeGraph.chain(50), Phase.BEFORE, "MulBackward0#3", visit)
    stop_at(FakeGraph.chain(50), Phase.BEFORE, "MulBackward0#3", visit)
    assert len(set(versions)) == 2


def test_a_row_made_before_its_node_ran_shows_the_figures_afterwards() -> None:
    backend = FakeBackend()
    stops = Stops(backend)
    seen: list[tuple[str, float | None]] = []

    def visit(answers: Answers) -> None:
        row = ask(answers, "adbg/graph", start=2, count=1).rows[0]
        seen.append((row.state, row.us))

    for node in ("MulBackward0#2", "AddBackward0#1", "MulBackward0#1"):
        stops.on(Phase.BEFORE, node, visit)
    stops.on(Phase.AFTER, "AddBackward0#1", visit)
    backend.install(stops)
    backend.arm(True)
    backend.backward(FakeGraph.chain(3))
    assert seen == [("todo", None), ("here", None), ("here", 1.5), ("done", 1.5)]


def test_breakpoint_ids_mark_rows_of_the_page_only() -> None:
    asked: list[int] = []

    def breakpoints(graph: Any, keys: Any) -> dict[int, tuple[int, ...]]:
        asked.append(len(keys))
        return {key: (1, 4) for key in keys if graph.describe(key).name == "AddBackward0"}

    def visit(answers: Answers) -> None:
        rows = ask(answers, "adbg/graph", start=1, count=4).rows
        assert [row.breakpoints for row in rows] == [(), (1, 4), (), (1, 4)]
        assert asked == [4]

    stop_at(FakeGraph.chain(9), Phase.BEFORE, "MulBackward0#3", visit, breakpoints=breakpoints)


def test_the_graph_of_an_enclosing_backward() -> None:
    backend = FakeBackend()
    inner = FakeGraph.chain(2)
    outer = FakeGraph()
    leaf = outer.leaf("w")
    outer.add("OuterBackward", leaf, fn=backend.nested(inner), custom=True)
    done = []

    def visit(answers: Answers) -> None:
        if answers.point.stop.depth == 0:
            return
        body = ask(answers, "adbg/graph")
        assert (body.backward, body.depth, body.total) == (2, 1, 3)
        around = ask(answers, "adbg/graph", backward=1)
        assert (around.backward, around.depth, around.here, around.total) == (1, 0, 1, 2)
        assert [row.state for row in around.rows] == ["here", "todo"]
        assert around.rows[0].custom
        assert around.version != body.version
        with pytest.raises(CommandError, match="backward 7 is not running"):
            ask(answers, "adbg/graph", backward=7)
        frames = ask(answers, "stackTrace").stackFrames
        assert [f.name for f in frames if f.kind == "enclosing"] == ["OuterBackward#1 (backward 1)"]
        enclosing = next(f for f in frames if f.kind == "enclosing")
        assert text_of(answers, "index", frameId=enclosing.id) == "1"
        with pytest.raises(CommandError, match="the program did not stop there"):
            text_of(answers, "grad_outputs[0]", frameId=enclosing.id)
        done.append(1)

    stops = Stops(backend)
    stops.on(Phase.BEFORE, "MulBackward0#1", visit)
    backend.install(stops)
    backend.arm(True)
    backend.backward(outer)
    assert done == [1]


# ------------------------------------------------------------------ node


def test_the_node_at_hand_shows_both_sides_and_what_was_saved() -> None:
    def visit(answers: Answers) -> None:
        body = ask(answers, "adbg/node")
        assert (body.index, body.state, body.node.unique_name) == (4, "here", "AddmmBackward0#1")
        (slot,) = body.grad_outputs
        assert (slot.expression, slot.meta.shape, slot.edge) == (
            "grad_outputs[0]",
            (2,),
            "#2 MulBackward0 + #3 MulBackward0",
        )
        assert slot.norm == pytest.approx(5 * 2**0.5)
        assert body.grad_inputs == []
        assert (body.consumers, body.producers) == ([2, 3], [6, 5])
        saved, alpha = body.saved
        assert (saved.expression, saved.meta.shape) == ("saved['self']", (2,))
        assert (alpha.meta, alpha.text) == (None, "alpha = 1")
        assert sorted((part.slot, part.from_node, part.norm) for part in body.contributions) == [
            (0, "#2 MulBackward0", pytest.approx(3 * 2**0.5)),
            (0, "#3 MulBackward0", pytest.approx(2 * 2**0.5)),
        ]
        assert body.forward_note == "made before stacks were on"

    stop_at(diamond(), Phase.BEFORE, "AddmmBackward0#1", visit)


def test_another_node_says_what_was_seen_and_what_was_not_kept() -> None:
    def visit(answers: Answers) -> None:
        ran = ask(answers, "adbg/node", name="MulBackward0#2")
        assert ran.state == "done"
        assert ran.us == 1.5
        assert ran.grad_outputs[0].expression == ""
        assert ran.grad_outputs[0].meta.state is ValueState.NOT_KEPT
        assert ran.grad_outputs[0].norm == pytest.approx(2**0.5)
        assert ran.grad_inputs[0].text.startswith("f32 [2] cpu norm 4.243 (not kept")
        assert ran.grad_inputs[0].edge == "#4 AddmmBackward0"
        todo = ask(answers, "adbg/node", index=6)
        assert (todo.state, todo.node.parameter, todo.attributes) == ("todo", "fc.weight", {"parameter": "fc.weight"})
        assert todo.grad_outputs[0].meta.shape == (2,)
        assert todo.grad_inputs == []

    stop_at(diamond(), Phase.BEFORE, "AddmmBackward0#1", visit)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("MulBackward0", "2 nodes are called 'MulBackward0'"),
        ("Mull", "no node 'Mull' in this graph of 6 nodes .closest: MulBackward0"),
        ("#9", "no node #9: this graph has nodes #1 to #6"),
    ],
)
def test_a_name_that_is_no_single_node_is_explained(name: str, message: str) -> None:
    def visit(answers: Answers) -> None:
        with pytest.raises(CommandError, match=message):
            ask(answers, "adbg/node", name=name)
        assert ask(answers, "adbg/node", name="Addmm").index == 4
        assert ask(answers, "adbg/node", name="#4").index == 4

    stop_at(diamond(), Phase.BEFORE, "AddBackward0#1", visit)


def test_undefined_gradients_show_as_undefined() -> None:
    graph = FakeGraph((2,))
    leaf, other = graph.leaf("a"), graph.leaf("b")
    graph.add("SplitBackward0", leaf, other, fn=lambda backend, grads: [grads[0], None])

    def visit(answers: Answers) -> None:
        body = ask(answers, "adbg/node")
        assert body.grad_inputs[1].meta.shape is None
        assert body.grad_inputs[1].meta.state is ValueState.UNDEFINED
        view = ask(answers, "adbg/tensor", expression="grad_inputs[1]")
        assert view.meta.shape is None
        assert view.stats is None
        assert view.text.startswith("undefined")
        assert ask(answers, "evaluate", expression="grad_inputs[1]").result == "None"
        scope = ask(answers, "scopes", frameId=1).scopes[0]
        shown = {
            v.name: v.value for v in ask(answers, "variables", variablesReference=scope.variablesReference).variables
        }
        assert shown["grad_inputs[1]"] == "undefined  to #2 AccumulateGrad"

    stop_at(graph, Phase.AFTER, "SplitBackward0#1", visit)


# ------------------------------------------------------------------ tensor, evaluate


def test_a_tensor_view_has_meta_and_only_what_was_asked() -> None:
    def visit(answers: Answers) -> None:
        view = ask(answers, "adbg/tensor", expression="grad_outputs[0]", window=True, cols=1)
        assert view.meta.shape == (2,)
        assert view.stats.norm == pytest.approx(5 * 2**0.5)
        assert view.stats.sampled is None
        assert view.window.values == ((5.0,),)
        bare = ask(answers, "adbg/tensor", expression="grad_outputs[0]", stats=False)
        assert (bare.stats, bare.window) == (None, None)
        other = ask(answers, "adbg/tensor", expression="saved['self']", node=4)
        assert other.meta.shape == (2,)
        text = ask(answers, "adbg/tensor", expression="len(grad_outputs)")
        assert (text.meta, text.text) == (None, "1")
        with pytest.raises(CommandError, match=r"grad_outputs of #2 MulBackward0#2 are not kept"):
            ask(answers, "adbg/tensor", expression="grad_outputs[0]", node=2)
        with pytest.raises(CommandError, match="no node #70"):
            ask(answers, "adbg/tensor", expression="saved['self']", node=70)

    stop_at(diamond(), Phase.BEFORE, "AddmmBackward0#1", visit)


def test_evaluate_gives_text_type_value_and_meta() -> None:
    def visit(answers: Answers) -> None:
        here = "a local"
        assert here
        body = ask(answers, "evaluate", expression="norm(grad_outputs[0])")
        assert body.value == pytest.approx(5 * 2**0.5)
        assert (body.type, body.tensor) == ("float", None)
        body = ask(answers, "evaluate", expression="grad_outputs[0]")
        assert body.tensor.shape == (2,)
        assert body.value is None
        assert ask(answers, "evaluate", expression="FakeTensor([2.5])").value == 2.5
        assert ask(answers, "evaluate", expression="[1, 'x', None, float('inf')]").value == [1, "x", None, "inf"]
        assert ask(answers, "evaluate", expression="[1, [2]]").value == [1, [2]]
        assert ask(answers, "evaluate", expression="list(range(1001))").value is None
        assert ask(answers, "evaluate", expression="[1, object()]").value is None
        assert ask(answers, "evaluate", expression="10 ** 5000").value is None
        assert ask(answers, "evaluate", expression="index").value == 4
        with pytest.raises(CommandError, match="name 'nope' is not defined"):
            text_of(answers, "nope")

    stop_at(diamond(), Phase.BEFORE, "AddmmBackward0#1", visit)


def test_statements_print_and_reach_the_frame() -> None:
    counter = 1
    answers = python_stop(None, frame=sys._getframe())
    assert text_of(answers, "print(counter + 1)", context="statement") == "2\n"
    text_of(answers, "counter = counter + 41", context="statement")
    assert counter == 42


def test_a_statement_that_fails_after_an_edit_keeps_the_edit_and_tells_the_error() -> None:
    def visit(answers: Answers) -> None:
        with pytest.raises(CommandError, match="ZeroDivisionError"):
            text_of(answers, "grad_outputs[0] = grad_outputs[0] * 2; 1 / 0", context="statement")
        assert answers.point.edited

    result, _ = stop_at(diamond(), Phase.BEFORE, "AddmmBackward0#1", visit)
    assert result["fc.weight"].values == [10, 10]


# ------------------------------------------------------------------ edits


def test_an_edit_before_the_node_reaches_the_leaves_and_is_adopted() -> None:
    def visit(answers: Answers) -> None:
        old = answers.point.grad_outputs[0]  # type: ignore[index]
        body = ask(answers, "setExpression", expression="grad_outputs[0]", value="grad_outputs[0] * 10")
        assert body.value == "f32 [2] cpu norm 70.71"
        assert old.values == [5, 5]
        assert answers.point.edited
        assert text_of(answers, "grad_outputs[0].tolist()") == "[50.0, 50.0]"
        assert ask(answers, "adbg/node").grad_outputs[0].norm == pytest.approx(50 * 2**0.5)

    result, _ = stop_at(diamond(), Phase.BEFORE, "AddmmBackward0#1", visit)
    assert result["fc.weight"].values == [50, 50]


def test_an_edit_of_a_part_leaves_the_rest_and_the_original() -> None:
    def visit(answers: Answers) -> None:
        old = answers.point.grad_outputs[0]  # type: ignore[index]
        ask(answers, "setExpression", expression="grad_outputs[0][1]", value="-1")
        assert old.values == [5, 5]

    result, _ = stop_at(diamond(), Phase.BEFORE, "AddmmBackward0#1", visit)
    assert result["fc.bias"].values == [5, -1]


def test_an_edit_behind_the_node() -> None:
    def visit(answers: Answers) -> None:
        ask(answers, "setExpression", expression="grad_inputs[1]", value="0")
        scope = ask(answers, "scopes", frameId=1).scopes[0]
        ask(answers, "setVariable", variablesReference=scope.variablesReference, name="grad_inputs[0]", value="7")

    result, _ = stop_at(diamond(), Phase.AFTER, "AddmmBackward0#1", visit)
    assert result["fc.bias"].values == [0, 0]
    assert result["fc.weight"].values == [7, 7]


@pytest.mark.parametrize(
    ("phase", "target", "value", "message"),
    [
        (Phase.BEFORE, "grad_inputs[0]", "0", "grad_inputs exist only after the node ran .use `after` first"),
        (Phase.AFTER, "grad_outputs[0]", "0", "already used its grad_outputs"),
        (Phase.BEFORE, "grad_outputs[3]", "0", r"no grad_outputs\[3\] at this node: it has grad_outputs\[0\] only"),
        (Phase.BEFORE, "grad_outputs", "0", "name one"),
        (Phase.BEFORE, "grad_outputs[0]", "FakeTensor([1, 2, 3])", r"has shape \[2\], the new value \[3\]"),
        (Phase.BEFORE, "grad_outputs[0]", "'text'", "a str is no tensor"),
        (Phase.BEFORE, "saved['self']", "0", "saved tensors are read-only"),
        (Phase.BEGIN, "grad_outputs[0]", "0", "does not stand at a node"),
    ],
)
def test_an_edit_that_cannot_be_is_explained_and_changes_nothing(
    phase: Phase, target: str, value: str, message: str
) -> None:
    def visit(answers: Answers) -> None:
        with pytest.raises(CommandError, match=message):
            ask(answers, "setExpression", expression=target, value=value)
        assert not answers.point.edited

    result, _ = stop_at(diamond(), phase, "*" if phase is Phase.BEGIN else "AddmmBackward0#1", visit)
    assert result["fc.weight"].values == [5, 5]


# ------------------------------------------------------------------ stack, scopes, variables


def test_the_stack_is_node_then_forward_then_live_with_stable_ids() -> None:
    def visit(answers: Answers) -> None:
        body = ask(answers, "stackTrace")
        kinds = [frame.kind for frame in body.stackFrames]
        assert kinds[:3] == ["node", "forward", "forward"]
        assert set(kinds[3:]) == {"live"}
        node = body.stackFrames[0]
        assert (node.name, node.source.path, node.line) == ("MulBackward0#2 before", "/fake/model.py", 3)
        assert [f.id for f in body.stackFrames] == list(range(1, body.totalFrames + 1))
        page = ask(answers, "stackTrace", startFrame=1, levels=1)
        assert page.stackFrames == body.stackFrames[1:2]
        assert page.totalFrames == body.totalFrames
        assert not body.stackFrames[1].locals
        with pytest.raises(CommandError, match=r"'marker' is not known in .* its locals .* are gone"):
            text_of(answers, "marker", frameId=2)
        assert text_of(answers, "index", frameId=2) == text_of(answers, "index")
        assert ask(answers, "scopes", frameId=2).scopes == []
        live = next(
            f for f in body.stackFrames if f.name == "test_the_stack_is_node_then_forward_then_live_with_stable_ids"
        )
        assert text_of(answers, "marker", frameId=live.id) == "'seen'"
        with pytest.raises(CommandError, match="no frame 9999"):
            ask(answers, "scopes", frameId=9999)

    marker = "seen"
    stop_at(FakeGraph.chain(4), Phase.BEFORE, "MulBackward0#2", visit)
    assert marker


class Raising:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    @property
    def trap(self) -> None:
        raise AssertionError("a property must not run")


class Named(NamedTuple):
    x: int
    y: list[int]


@dataclasses.dataclass
class Point:
    x: int
    y: list[int]


def test_variables_of_a_frame_survive_hostile_values_and_page() -> None:
    hostile = Raising()
    hostile.inner = 5  # type: ignore[attr-defined]
    long_list = list(range(5000))
    named = Named(1, [2])
    nested = {"a": [1, {"b": Point(3, [4])}], 2: "two", hostile: 1}
    tensor = FakeTensor([3, 4])
    tensors = [tensor, tensor]
    huge = "x" * 10**7
    _private = 1
    answers = python_stop(FakeBackend(), frame=sys._getframe())
    assert len(locals()) == 9

    frame = next(f for f in ask(answers, "stackTrace").stackFrames if f.locals)
    scopes = {s.name: s for s in ask(answers, "scopes", frameId=frame.id).scopes}
    assert scopes["Globals"].expensive

    def children(reference: int, **page: int) -> dict[str, protocol.Variable]:
        found = ask(answers, "variables", variablesReference=reference, **page).variables
        return {v.name: v for v in found}

    names = children(scopes["Locals"].variablesReference)
    assert list(names)[-1] == "_private"
    assert names["hostile"].value == "<Raising: its repr raised RuntimeError>"
    assert list(children(names["hostile"].variablesReference)) == ["inner"]
    assert names["tensor"].value == "f32 [2] cpu norm 5"
    assert names["tensor"].variablesReference == 0
    assert names["tensor"].adbg.shape == (2,)
    assert names["tensors"].value == "[<f32 [2] cpu norm 5>, <f32 [2] cpu norm 5>]"
    assert len(names["huge"].value) < 400
    assert names["long_list"].indexedVariables == 5000
    page = children(names["long_list"].variablesReference, start=4990, count=100)
    assert list(page) == [f"[{i}]" for i in range(4990, 5000)]
    assert page["[4990]"].evaluateName == "long_list[4990]"
    assert names["named"].value == "Named(x=1, y=[2])"
    assert list(children(names["named"].variablesReference)) == ["x", "y"]
    inner = children(names["nested"].variablesReference)
    assert list(inner) == ["'a'", "2", "<Raising: its repr raised RuntimeError>"]
    deep = children(children(inner["'a'"].variablesReference)["[1]"].variablesReference)["'b'"]
    assert deep.value == "Point(x=3, y=[4])"
    assert deep.evaluateName == "nested['a'][1]['b']"
    assert text_of(answers, deep.evaluateName + ".y", frameId=frame.id) == "[4]"

    body = ask(
        answers, "setVariable", variablesReference=names["long_list"].variablesReference, name="[3]", value="'new'"
    )
    assert body.value == "'new'"
    assert long_list[3] == "new"
    ask(answers, "setVariable", variablesReference=deep.variablesReference, name="x", value="99")
    assert nested["a"][1]["b"].x == 99  # type: ignore[index]
    with pytest.raises(CommandError, match="no variable 'q'"):
        ask(answers, "setVariable", variablesReference=deep.variablesReference, name="q", value="99")
    with pytest.raises(CommandError, match="no variables reference 12345"):
        ask(answers, "variables", variablesReference=12345)


def test_a_local_of_a_function_can_be_set() -> None:
    count = 1
    answers = python_stop(None, frame=sys._getframe())
    frame = next(f for f in ask(answers, "stackTrace").stackFrames if f.locals)
    local = ask(answers, "scopes", frameId=frame.id).scopes[0]
    ask(answers, "setVariable", variablesReference=local.variablesReference, name="count", value="count + 6")
    assert count == 7
    ask(answers, "setExpression", expression="count", value="count * 2")
    assert count == 14


def test_saved_tensors_and_attributes_are_scopes_and_read_only() -> None:
    def visit(answers: Answers) -> None:
        scopes = ask(answers, "scopes", frameId=1).scopes
        assert [s.name for s in scopes] == ["Gradients", "Saved tensors", "Attributes"]
        (saved,) = ask(answers, "variables", variablesReference=scopes[1].variablesReference).variables
        assert (saved.name, saved.value, saved.evaluateName) == ("self", "f32 [4] cpu norm 6", "saved['self']")
        (alpha,) = ask(answers, "variables", variablesReference=scopes[2].variablesReference).variables
        assert (alpha.name, alpha.value) == ("alpha", "1")
        with pytest.raises(CommandError, match="saved tensors are read-only"):
            ask(answers, "setVariable", variablesReference=scopes[1].variablesReference, name="self", value="0")
        with pytest.raises(CommandError, match="`after` first"):
            ask(
                answers,
                "setVariable",
                variablesReference=scopes[0].variablesReference,
                name="grad_inputs[0]",
                value="0",
            )

    stop_at(FakeGraph.chain(3), Phase.BEFORE, "MulBackward0#2", visit)


def test_a_running_thread_shows_live_frames_without_locals() -> None:
    import threading

    body = running_stack(protocol.StackTrace(threading.get_ident()))
    assert body.stackFrames[0].name == "test_a_running_thread_shows_live_frames_without_locals"
    assert {f.kind for f in body.stackFrames} == {"live"}
    assert not any(f.locals for f in body.stackFrames)
    assert body.note == ""
    assert running_stack(protocol.StackTrace(5)).note == "no Python code on that thread"


# ------------------------------------------------------------------ info


def rows(answers: Answers, what: str) -> list[list[Any]]:
    body = ask(answers, "adbg/info", what=what)
    assert all(len(row) == len(body.columns) for row in body.rows)
    return list(body.rows)


def test_tables() -> None:
    def visit(answers: Answers) -> None:
        (row,) = rows(answers, "backward")
        assert row[:5] == [1, 0, "backward", "4/6", "AddBackward0"]
        names = rows(answers, "names")
        assert ["MulBackward0", 2, "name"] in names
        assert ["fc.weight", 1, "param"] in names
        assert ["fc", 1, "module"] in names
        (parameter,) = rows(answers, "params")
        assert parameter[:3] == ["w", "[4]", "f32"]
        assert parameter[5] is False
        assert ["rss", 1000000, 1.0] in rows(answers, "memory")
        assert rows(answers, "capabilities")[0][2:] == ["pre_hooks", "yes", "stop before any node"]
        assert rows(answers, "capabilities")[-1][2:] == [
            "native_vlog",
            "no",
            "the framework writes VLOG records itself",
        ]
        (thread,) = [row for row in rows(answers, "threads") if row[2] == "stopped"]
        assert "test_inspect.py" in thread[3]
        assert ask(answers, "adbg/info", what="breakpoints").text == "no breakpoints"
        with pytest.raises(CommandError, match="unknown table 'weather'"):
            ask(answers, "adbg/info", what="weather")

    stop_at(diamond(), Phase.BEFORE, "AddmmBackward0#1", visit)
    assert ["MulBackward0", 2, "name"] in info(session_of(FakeBackend()), "names", None).rows
    with pytest.raises(NotStopped, match="needs a stop"):
        info(session_of(FakeBackend()), "backward", None)


# ------------------------------------------------------------------ finding nodes, paths


@pytest.mark.parametrize(
    ("text", "index"),
    [("#3", 3), ("3", 3), ("AddmmBackward0", 4), ("addmm", 4), ("MulBackward0#1", 3), ("fc.weight", 6), ("Add*#1", 0)],
)
def test_a_node_is_found_by_its_name(text: str, index: int) -> None:
    def visit(answers: Answers) -> None:
        if index:
            assert ask(answers, "adbg/find", text=text).index == index
            assert ask(answers, "adbg/node", name=text).index == index
        else:
            with pytest.raises(CommandError, match="2 nodes are called"):
                ask(answers, "adbg/find", text=text)

    stop_at(diamond(), Phase.BEFORE, "AddmmBackward0#1", visit)


def test_an_exact_name_wins_over_short_forms() -> None:
    """A custom Function ``Mul`` has a MulBackward; "MulBackward" is a short form of MulBackward0 too."""
    graph = FakeGraph((2,))
    custom = graph.add("MulBackward", graph.leaf("w"))
    graph.add("MulBackward0", custom)

    def visit(answers: Answers) -> None:
        assert ask(answers, "adbg/find", text="MulBackward").index == 2
        with pytest.raises(CommandError, match="2 nodes are called 'Mul': #1 MulBackward0#1, #2 MulBackward#1"):
            ask(answers, "adbg/find", text="Mul")

    stop_at(graph, Phase.BEGIN, "*", visit)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("Mul", "2 nodes are called 'Mul': #2 MulBackward0#2, #3 MulBackward0#1", "name one of them"),
        ("Adm", "no node 'Adm' in this graph of 6 nodes", "closest: AddmmBackward0, AddBackward0"),
        ("fc.wieght", "no node 'fc.wieght'", "closest: fc.weight"),
        ("zzz", "no node 'zzz'", "`info names` lists"),
        ("#7", "no node #7: this graph has nodes #1 to #6", ""),
        ("#0", "no node #0", ""),
    ],
)
def test_a_node_that_is_not_found(text: str, message: str, hint: str) -> None:
    def visit(answers: Answers) -> None:
        with pytest.raises(CommandError) as caught:
            ask(answers, "adbg/find", text=text)
        assert message in caught.value.message
        assert hint in caught.value.hint

    stop_at(diamond(), Phase.BEFORE, "AddmmBackward0#1", visit)


def test_rows_by_index() -> None:
    def visit(answers: Answers) -> None:
        body = ask(answers, "adbg/graph", indices=[5, 2])
        assert [row.index for row in body.rows] == [5, 2]
        with pytest.raises(CommandError, match="no node #9"):
            ask(answers, "adbg/graph", indices=[1, 9])

    stop_at(diamond(), Phase.BEFORE, "AddmmBackward0#1", visit)


def test_the_path_between_two_nodes() -> None:
    def visit(answers: Answers) -> None:
        body = ask(answers, "adbg/path", source=1, node=6)
        assert (body.path, body.total) == ([1, 2, 4, 6], 6)
        assert ask(answers, "adbg/path", source=4, node=4).path == [4]
        with pytest.raises(CommandError, match="only in the opposite direction") as caught:
            ask(answers, "adbg/path", source=6, node=1)
        assert caught.value.hint == "path #1 #6"
        with pytest.raises(CommandError, match="from #5 AccumulateGrad#2 to #6 AccumulateGrad#1, in either direction"):
            ask(answers, "adbg/path", source=5, node=6)

    stop_at(diamond(), Phase.BEFORE, "AddmmBackward0#1", visit)


def test_where_a_gradient_comes_from() -> None:
    def visit(answers: Answers) -> None:
        body = ask(answers, "adbg/path", node=6)
        assert body == protocol.PathBody([1, 2, 4, 6], 6, 4, [4], 2, pytest.approx(0.30103), slots=[[4]])
        assert ask(answers, "adbg/path", node=4).contributions == [2, 3]
        assert ask(answers, "adbg/path", node=1) == protocol.PathBody([1], 6)

    stop_at(diamond(), Phase.BEFORE, "AddmmBackward0#1", visit)


def test_the_path_leads_through_the_first_nonfinite_gradient() -> None:
    graph = FakeGraph((2,))
    join = graph.add("AddmmBackward0", graph.leaf("w"))
    left = graph.add("MulBackward0", graph.add("ExpBackward0", join), factor=float("inf"))
    graph.add("AddBackward0", left, join)

    def visit(answers: Answers) -> None:
        body = ask(answers, "adbg/path", node=5)
        assert (body.path, body.nonfinite) == ([1, 2, 3, 4, 5], 3)

    stop_at(graph, Phase.BEFORE, "ExpBackward0#1", visit)


def test_paths_that_are_too_many_to_be_counted_exactly() -> None:
    """2^15,000 of them: as a decimal number Python refuses it."""
    graph = FakeGraph((1,))
    node = graph.leaf("w")
    for _ in range(15_000):
        node = graph.add("AddBackward0", graph.add("MulBackward0", node), graph.add("MulBackward0", node))

    def visit(answers: Answers) -> None:
        body = ask(answers, "adbg/path", node=45_001)
        assert (body.paths, int(body.paths_log10)) == (0, 4515)
        assert len(body.path) == 30_001

    stop_at(graph, Phase.BEGIN, "*", visit)


# ------------------------------------------------------------------ other stops, errors


def test_a_python_line_with_and_without_a_graph() -> None:
    local = 5
    graph = diamond()
    answers = python_stop(FakeBackend(), graph, sys._getframe())
    body = ask(answers, "adbg/graph")
    assert (body.here, body.backward, body.total) == (0, 0, 6)
    assert {row.state for row in body.rows} == {"todo"}
    node = ask(answers, "adbg/node", name="Addmm")
    assert node.contributions_note == "no backward runs: nothing has been summed yet"
    assert text_of(answers, "local + 1") == str(local + 1)
    assert [f.kind for f in ask(answers, "stackTrace").stackFrames][:1] == ["live"]
    with pytest.raises(CommandError, match="not at a node"):
        text_of(answers, "grad_outputs[0]")
    bare = python_stop(None, None, sys._getframe())
    assert text_of(bare, "local + 1") == "6"
    for command in ("adbg/graph", "adbg/node"):
        with pytest.raises(CommandError, match="there is no graph here"):
            ask(bare, command)
    assert rows(bare, "backward") == []


def test_the_node_that_failed_has_no_gradients_but_says_why() -> None:
    graph = FakeGraph()
    leaf = graph.leaf("w")

    def fail(backend: Any, grads: Any) -> Any:
        raise ValueError("broken\nsecond line")

    graph.add("BadBackward0", leaf, fn=fail)
    seen = []

    def visit(answers: Answers) -> None:
        body = ask(answers, "adbg/node")
        assert body.node.unique_name == "BadBackward0#1"
        assert body.grad_outputs[0].meta.state is ValueState.NOT_HOOKED
        with pytest.raises(CommandError, match="were not kept: nothing was hooked"):
            text_of(answers, "grad_outputs[0]")
        assert "ValueError: broken" in ask(answers, "adbg/info", what="backward").text
        seen.append(1)

    with pytest.raises(ValueError):
        stop_at(graph, Phase.ERROR, "BadBackward0#1", visit)
    assert seen


def test_every_command_answers_and_nothing_but_adbg_errors_leave() -> None:
    class Broken(FakeBackend):
        def meta(self, value: Any) -> Any:
            raise OSError("device lost\nlong trace")

    def visit(answers: Answers) -> None:
        answers.point.backend = Broken()
        with pytest.raises(BackendError, match="fake failed while answering adbg/tensor: OSError: device lost"):
            ask(answers, "adbg/tensor", expression="grad_outputs[0]")
        with pytest.raises(ProtocolError, match="no answer to 'adbg/none'"):
            answers.dispatch("adbg/none", None)
        for command in COMMANDS:  # arguments of a wrong kind altogether
            with pytest.raises(AdbgError):
                answers.dispatch(command, object())

    stop_at(diamond(), Phase.BEFORE, "AddmmBackward0#1", visit)
    assert Answers.commands() == set(COMMANDS)

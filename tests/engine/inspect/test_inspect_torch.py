"""Answers at a stop of a real torch backward: shared gradients stay whole, graphs of real models, what it costs."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.stops import Stops, python_stop

from adbg.engine.capture.dump import dump
from adbg.engine.errors import CommandError
from adbg.engine.inspect.dispatch import Answers
from adbg.engine.protocol import codec as wire
from adbg.engine.protocol import messages as protocol
from adbg.engine.types import Phase, ValueState

torch = pytest.importorskip("torch")
nn = torch.nn


@pytest.fixture
def backend() -> Iterator[Any]:
    from adbg.engine.backends.torch.backend import TorchBackend

    made = TorchBackend()
    yield made
    made.uninstall()


@pytest.fixture
def stops(backend: Any) -> Stops:
    made = Stops(backend)
    backend.install(made)
    backend.set_stacks(True)
    backend.arm(True)
    return made


def ask(answers: Answers, command: str, /, **fields: Any) -> Any:
    arguments_type, body_type = protocol.REQUESTS[command]
    body = answers.dispatch(command, wire.from_json(arguments_type, fields))
    return wire.from_json(body_type, wire.to_json(body))


def text_of(answers: Answers, expression: str, **fields: Any) -> str:
    result: str = ask(answers, "evaluate", expression=expression, **fields).result
    return result


def run(stops: Stops, phase: Phase, node: str, visit: Callable[[Answers], None], backward: Callable[[], Any]) -> None:
    stops.on(phase, node, visit)
    backward()
    if stops.failure is not None:
        raise stops.failure
    assert stops.visited, f"no stop {phase.value} {node}"


# ------------------------------------------------------------------ a gradient shared by a + b


def shared_sum() -> tuple[Any, Any, Any]:
    """AddBackward0 hands one and the same tensor to MulBackward0#1 (a side) and MulBackward0#2 (b side)."""
    a = torch.tensor([1.0, 2.0], requires_grad=True)
    b = torch.tensor([3.0, 4.0], requires_grad=True)
    return a, b, ((a * 1) + (b * 1)) * torch.tensor([1.0, 10.0])


@pytest.mark.parametrize(
    ("text", "context", "edited"),
    [
        ("grad_outputs[0].mul_(2)", "statement", True),
        ("grad_outputs[0].mul_(2)", "repl", True),
        ("grad_outputs[0] *= 2", "statement", True),
        ("grad_outputs[0] = grad_outputs[0] * 2", "statement", True),
        ("g = grad_outputs[0]; g *= 2", "statement", True),
        ("grad_outputs[0].data.mul_(2)", "statement", True),
        ("grad_outputs[0].numpy().__imul__(2)", "repl", True),
        ("torch.mul(grad_outputs[0], 2, out=grad_outputs[0])", "repl", True),
        ("[g.mul_(2) for g in grad_outputs]", "repl", True),
        ("grad_outputs[0][:] = grad_outputs[0] * 2", "statement", True),
        ("grad_outputs[0] * 2", "repl", False),
        ("grad_outputs[0].clone().mul_(2)", "repl", False),
        ("print(grad_outputs[0])", "statement", False),
    ],
)
def test_changing_a_shared_gradient_in_place_changes_this_node_only(
    stops: Stops, text: str, context: str, edited: bool
) -> None:
    a, b, out = shared_sum()

    def visit(answers: Answers) -> None:
        text_of(answers, text, context=context)
        assert answers.point.edited is edited
        expected = [2.0, 20.0] if edited else [1.0, 10.0]
        assert text_of(answers, "grad_outputs[0].tolist()") == str(expected)

    run(stops, Phase.BEFORE, "MulBackward0#2", visit, out.sum().backward)
    assert b.grad.tolist() == ([2.0, 20.0] if edited else [1.0, 10.0])
    assert a.grad.tolist() == [1.0, 10.0]


def test_the_shared_gradient_is_shared_without_the_care(stops: Stops) -> None:
    """What the tests above protect from does happen: a change of the engine's own tensor reaches the sibling."""
    a, b, out = shared_sum()

    def visit(answers: Answers) -> None:
        answers.point.grad_outputs[0].mul_(2)  # type: ignore[index]

    run(stops, Phase.BEFORE, "MulBackward0#2", visit, out.sum().backward)
    assert a.grad.tolist() == [2.0, 20.0]
    assert b.grad.tolist() == [2.0, 20.0]


def test_in_place_changes_add_up_over_several_expressions(stops: Stops) -> None:
    a, b, out = shared_sum()

    def visit(answers: Answers) -> None:
        text_of(answers, "grad_outputs[0].mul_(2)")
        text_of(answers, "grad_outputs[0].add_(1)")
        ask(answers, "setExpression", expression="grad_outputs[0][1]", value="grad_outputs[0][1] * 100")
        text_of(answers, "grad_outputs[0].neg_()")

    run(stops, Phase.BEFORE, "MulBackward0#2", visit, out.sum().backward)
    assert b.grad.tolist() == [-3.0, -2100.0]
    assert a.grad.tolist() == [1.0, 10.0]


def test_an_expanded_gradient_can_be_changed_in_place(stops: Stops) -> None:
    x = torch.ones(3, requires_grad=True)
    run(
        stops,
        Phase.BEFORE,
        "MulBackward0#1",
        lambda answers: text_of(answers, "grad_outputs[0][1] = 5", context="statement"),  # type: ignore[arg-type,return-value]
        (x * 2).sum().backward,
    )
    assert x.grad.tolist() == [2.0, 10.0, 2.0]


def test_a_change_in_place_that_comes_too_late_is_refused_and_not_shown(stops: Stops) -> None:
    a, _, out = shared_sum()

    def visit(answers: Answers) -> None:
        with pytest.raises(CommandError, match="already used its grad_outputs"):
            text_of(answers, "grad_outputs[0].zero_()")
        assert text_of(answers, "grad_outputs[0].tolist()") == "[1.0, 10.0]"
        text_of(answers, "grad_inputs[0].zero_()")
        assert answers.point.edited

    run(stops, Phase.AFTER, "MulBackward0#1", visit, out.sum().backward)
    assert a.grad.tolist() == [0.0, 0.0]


def test_a_change_that_torch_would_refuse_is_refused_here(stops: Stops) -> None:
    a, b, out = shared_sum()

    def visit(answers: Answers) -> None:
        for value, message in (
            ("torch.ones(3)", "shape"),
            ("grad_outputs[0].double()", "dtype f32 and the new value has f64"),
            ("'x'", "cannot become a str"),
            ("grad_outputs[0].resize_(1)", "shape"),
        ):
            with pytest.raises(CommandError, match=message):
                ask(answers, "setExpression", expression="grad_outputs[0]", value=value)
        assert not answers.point.edited

    run(stops, Phase.BEFORE, "MulBackward0#2", visit, out.sum().backward)
    assert b.grad.tolist() == a.grad.tolist() == [1.0, 10.0]


def test_an_edit_stays_differentiable_under_create_graph(stops: Stops) -> None:
    x = torch.tensor(3.0, requires_grad=True)
    y = x**3

    def visit(answers: Answers) -> None:
        ask(answers, "setExpression", expression="grad_inputs[0]", value="grad_inputs[0] * 2")

    found: list[Any] = []

    def backward() -> None:
        found.extend(torch.autograd.grad(y, x, create_graph=True))

    run(stops, Phase.AFTER, "PowBackward0#1", visit, backward)
    stops.at.clear()
    (second,) = torch.autograd.grad(found[0], x)
    assert found[0].item() == 54.0  # 2 * 3 x^2
    assert second.item() == 36.0  # 2 * 6 x


# ------------------------------------------------------------------ nodes of a real model


class Net(nn.Module):  # type: ignore[name-defined,misc]
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.last = nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        h = self.first(x).tanh()
        return self.last(h) + h.sum()  # @joined


def test_a_node_of_a_model_in_full(stops: Stops, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Net()
    loss = net(torch.randn(3, 4)).square().mean()
    line = next(i for i, t in enumerate(Path(__file__).read_text().splitlines(), 1) if t.endswith("# @joined"))

    def visit(answers: Answers) -> None:
        body = ask(answers, "adbg/node")
        assert body.node.name == "TanhBackward0"
        (slot,) = body.grad_outputs
        assert slot.meta.shape == (3, 8)
        assert " + " in slot.edge
        saved = {s.name: s for s in body.saved}
        assert saved["result"].meta.shape == (3, 8)
        assert len(body.consumers) == 2
        graph = ask(answers, "adbg/graph")
        assert graph.total == graph.rows[-1].index
        assert graph.rows[body.index - 1].state == "here"
        assert {row.parameter for row in graph.rows if row.accumulate} == {
            "first.weight", "first.bias", "last.weight", "last.bias",
        }  # fmt: skip
        add = next(row for row in graph.rows if row.name == "AddBackward0")
        assert (add.forward.file, add.forward.line) == (__file__, line)
        view = ask(answers, "adbg/tensor", expression="saved['result']", window=True, slice="[0, :4]")
        assert view.stats.numel == 24
        assert view.window.shape == (4,)
        frames = ask(answers, "stackTrace").stackFrames
        assert frames[0].name == "TanhBackward0#1 before"
        live = [f for f in frames if f.kind == "live"]
        assert not any(Path(f.source.path).is_relative_to(Path(torch.__file__).parent) for f in live)
        test = next(f for f in live if f.name == "test_a_node_of_a_model_in_full")
        scope = ask(answers, "scopes", frameId=test.id).scopes[0]
        values = {v.name: v for v in ask(answers, "variables", variablesReference=scope.variablesReference).variables}
        assert values["loss"].value.startswith("f32 [] cpu = ")
        assert values["loss"].variablesReference == 0
        parameters = {row[0]: row for row in ask(answers, "adbg/info", what="params").rows}
        assert parameters["first.weight"][1] == "[8, 4]"
        assert parameters["first.weight"][5] is False
        (grads,) = dump(answers.point, protocol.Dump("grads", str(tmp_path))).files
        text = Path(grads).read_text()
        assert "Variable: TanhBackward0#1 grad_outputs[0]\n" in text
        data = text.split("data: [", 1)[1].split("]", 1)[0].split()
        assert [float(v) for v in data] == pytest.approx(answers.point.grad_outputs[0].flatten().tolist(), abs=1e-6)  # type: ignore[index]
        (dot,) = dump(answers.point, protocol.Dump("graph", str(tmp_path))).files
        assert "TanhBackward0#1" in Path(dot).read_text()

    run(stops, Phase.BEFORE, "TanhBackward0#1", visit, loss.backward)
    assert net.first.weight.grad is not None


def test_the_values_of_a_dump_are_those_of_a_tensor_with_many_dimensions(stops: Stops, tmp_path: Path) -> None:
    x = torch.randn(2, 3, 4, 5, requires_grad=True)
    factor = torch.arange(120.0).reshape(2, 3, 4, 5)

    def visit(answers: Answers) -> None:
        (grads,) = dump(answers.point, protocol.Dump("grads", str(tmp_path))).files
        data = Path(grads).read_text().split("data: [", 1)[1].split("]", 1)[0].split()
        assert [float(v) for v in data] == factor.flatten().tolist()

    run(stops, Phase.BEFORE, "MulBackward0#1", visit, ((x * 2) * factor).sum().backward)


def test_contributions_stand_beside_their_sum(backend: Any) -> None:
    from adbg.engine.backends.base import HookPlan

    stops = Stops(backend, HookPlan(every=True, contributions=True))
    backend.install(stops)
    backend.arm(True)
    x = torch.ones(2, requires_grad=True)
    y = x * 1
    loss = (y * 2).sum() + (y * 5).sum()

    def visit(answers: Answers) -> None:
        body = ask(answers, "adbg/node")
        assert sorted(part.norm for part in body.contributions) == pytest.approx([2 * 2**0.5, 5 * 2**0.5])
        assert body.grad_outputs[0].norm == pytest.approx(7 * 2**0.5)

    run(stops, Phase.BEFORE, "MulBackward0#1", visit, loss.backward)


def test_reading_saved_tensors_of_a_checkpoint_does_not_run_it(stops: Stops) -> None:
    runs: list[int] = []

    def block(x: Any) -> Any:
        runs.append(1)
        return (x * x).tanh()

    x = torch.ones(3, requires_grad=True)
    out = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False).sum()
    seen = []

    def visit(answers: Answers) -> None:
        before = len(runs)
        for row in ask(answers, "adbg/graph").rows:
            for slot in ask(answers, "adbg/node", index=row.index).saved:
                if slot.meta is not None and slot.meta.shape is None:
                    seen.append(slot.meta.state)
        assert len(runs) == before == 1

    run(stops, Phase.BEFORE, "SumBackward0#1", visit, out.backward)
    assert ValueState.UNREAD in seen


def test_what_cannot_be_computed_leaves_the_rest(backend: Any) -> None:
    empty = torch.empty(3, 4, device="meta")
    answers = python_stop(backend, None)
    assert empty.is_meta
    view = ask(answers, "adbg/tensor", expression="empty", window=True)
    assert view.meta.shape == (3, 4)
    assert view.stats is None
    assert "no data" in view.text


def test_the_index_of_a_graph_dies_with_it(stops: Stops) -> None:
    calls: list[Any] = []
    run(
        stops,
        Phase.BEFORE,
        "MulBackward0#1",
        lambda answers: (
            ask(answers, "adbg/graph"),
            ask(answers, "adbg/node"),
            calls.append(weakref.ref(answers.point.graph)),
        ),  # type: ignore[arg-type,return-value]
        (torch.ones(2, requires_grad=True) * 2).sum().backward,
    )
    gc.collect()
    assert calls[0]() is None


def test_a_python_line_shows_the_graph_so_far(backend: Any) -> None:
    x = torch.ones(2, requires_grad=True)
    y = (x * 2).tanh()
    answers = python_stop(backend, backend.graph_of([y]))
    names = [row.name for row in ask(answers, "adbg/graph").rows]
    assert names == ["TanhBackward0", "MulBackward0", "AccumulateGrad"]
    assert ask(answers, "adbg/node", index=1).saved[0].name == "result"
    assert ask(answers, "evaluate", expression="y.shape").result == "torch.Size([2])"


# ------------------------------------------------------------------ failures, nesting, undefined


def test_a_saved_tensor_that_was_changed_in_place_is_marked_after_the_error(stops: Stops) -> None:
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    z = y * 2
    y.add_(1)  # ExpBackward0 saved its result
    found = []

    def visit(answers: Answers) -> None:
        body = ask(answers, "adbg/node")
        (slot,) = (s for s in body.saved if s.name == "result")
        found.append((body.node.name, slot.meta))
        assert "modified by an inplace operation" in ask(answers, "adbg/info", what="backward").text
        scope = ask(answers, "scopes", frameId=1).scopes[1]
        (variable,) = ask(answers, "variables", variablesReference=scope.variablesReference).variables
        assert "corrupted" in variable.value

    with pytest.raises(RuntimeError, match="inplace"):
        run(stops, Phase.ERROR, "*", visit, z.sum().backward)
    assert stops.failure is None
    ((name, meta),) = found
    assert name == "ExpBackward0"
    assert (meta.state, meta.version, meta.saved_at) == (ValueState.CORRUPTED, 1, 0)
    assert meta.remark == "corrupted: is at version 1; expected version 0"


class Outer(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            inner = x.detach().requires_grad_()
            (result,) = torch.autograd.grad((inner * inner).sum(), inner)
        return grad * result


def test_inside_a_nested_backward_the_enclosing_node_can_be_asked(stops: Stops) -> None:
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    found = []

    def visit(answers: Answers) -> None:
        if answers.point.stop.depth != 1:
            return
        frames = ask(answers, "stackTrace").stackFrames
        enclosing = next(f for f in frames if f.kind == "enclosing")
        found.append(enclosing.name.partition(" ")[0])
        assert any(f.name == "backward" and f.kind == "live" for f in frames)
        scopes = {s.name: s.variablesReference for s in ask(answers, "scopes", frameId=enclosing.id).scopes}
        (saved,) = ask(answers, "variables", variablesReference=scopes["Saved tensors"]).variables
        assert saved.adbg.shape == (2,)
        assert text_of(answers, f"{saved.evaluateName}.tolist()", frameId=enclosing.id) == "[2.0, 3.0]"
        row = ask(answers, "adbg/graph", backward=answers.point.calls[0].call.number).rows
        assert [r.custom for r in row if r.state == "here"] == [True]

    run(stops, Phase.BEFORE, "MulBackward0#1", visit, Outer.apply(x).sum().backward)
    assert found == ["OuterBackward#1"]
    assert x.grad.tolist() == [4.0, 6.0]


def test_undefined_slots_of_split(stops: Stops) -> None:
    x = torch.ones(4, requires_grad=True)
    first, _ = x.split(2)

    def visit(answers: Answers) -> None:
        outputs = ask(answers, "adbg/node").grad_outputs
        assert [slot.meta.shape for slot in outputs] == [(2,), None]
        assert outputs[1].meta.state is ValueState.UNDEFINED
        with pytest.raises(CommandError, match=r"grad_outputs\[1\] is undefined"):
            ask(answers, "setExpression", expression="grad_outputs[1]", value="torch.ones(2)")

    run(stops, Phase.BEFORE, "SplitBackward0#1", visit, first.sum().backward)
    assert x.grad.tolist() == [1, 1, 0, 0]


def test_asking_everything_at_every_stop_changes_nothing(stops: Stops) -> None:
    def train() -> list[Any]:
        torch.manual_seed(3)
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            net(torch.randn(5, 4)).square().mean().backward()
            optimizer.step()
        return [p.detach().clone() for p in net.parameters()]

    def visit(answers: Answers) -> None:
        ask(answers, "adbg/graph")
        ask(answers, "adbg/node")
        for expression in ("grad_outputs", "[g for g in grad_outputs]", "saved", "node", "locals()"):
            text_of(answers, expression)
        ask(answers, "adbg/tensor", expression="grad_outputs[0]", window=True)
        for frame in ask(answers, "stackTrace").stackFrames:
            for scope in ask(answers, "scopes", frameId=frame.id).scopes:
                ask(answers, "variables", variablesReference=scope.variablesReference, count=50)
        assert not answers.point.edited

    stops.on(Phase.BEFORE, "*", visit)
    seen = train()
    if stops.failure is not None:
        raise stops.failure
    assert len(stops.visited) > 10
    stops.backend.uninstall()
    plain = train()
    assert all(torch.equal(a, b) for a, b in zip(seen, plain))


def test_numbers_in_a_tuple_and_figures_are_readable(stops: Stops) -> None:
    def visit(answers: Answers) -> None:
        body = ask(answers, "evaluate", expression="(torch.tensor(69), 2.5, torch.tensor([1.5]))")
        assert body.value == [69, 2.5, 1.5] and body.result.startswith("(tensor(69), 2.5, ")
        assert text_of(answers, "torch.tensor(69)") == "tensor(69)"
        body = ask(answers, "evaluate", expression="{'a': torch.tensor(True), 'b': None}")
        assert body.value == {"a": True, "b": None}
        body = ask(answers, "evaluate", expression="{'a': torch.ones(2)}")
        assert body.value == {"a": {"shape": [2], "dtype": "f32"}}
        text = text_of(answers, "stats(torch.tensor([-1.0, 0.0, 3.0, float('nan'), -float('inf')]))")
        assert text == (
            "5 elements  of the finite:  min -1  max 3  mean 0.6667  std 2.082  norm 3.162"
            "  negative 1  zero 1  positive 1  nan 1  -inf 1"
        )
        assert ask(answers, "evaluate", expression="stats(torch.ones(2)).max").value == 1.0

    x = torch.ones(3, requires_grad=True)
    run(stops, Phase.BEFORE, "TanhBackward0#1", visit, lambda: x.tanh().sum().backward())


class Doubled(torch.autograd.Function):
    """Saves two tensors."""

    @staticmethod
    def forward(ctx: Any, x: Any, scale: Any) -> Any:
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * ctx.saved_tensors[1], None


def test_saved_is_a_mapping(stops: Stops) -> None:
    def visit(answers: Answers) -> None:
        names = ["saved_tensors[0]", "saved_tensors[1]"]
        assert [slot.name for slot in ask(answers, "adbg/node").saved] == names
        value = ask(answers, "evaluate", expression="[list(saved), list(saved.keys()), len(saved)]")
        assert value.result == f"[{names}, {names}, 2]"
        assert ask(answers, "evaluate", expression="[norm(t) for t in saved.values()]").value == [2.0, 2.0]
        assert ask(answers, "evaluate", expression="[n for n, t in saved.items() if t.dim() == 0]").value == names[1:]
        assert ask(answers, "evaluate", expression="saved[1] is saved['saved_tensors[1]']").value is True
        assert ask(answers, "evaluate", expression="dict(saved)['saved_tensors[1]']").value == 2.0
        assert ask(answers, "evaluate", expression="saved.get('none', 7)").value == 7

    x = torch.ones(4, requires_grad=True)
    run(stops, Phase.BEFORE, "DoubledBackward#1", visit, lambda: Doubled.apply(x, torch.tensor(2.0)).sum().backward())


def test_what_a_node_saved_is_freed_by_the_backward_that_ran_it(stops: Stops) -> None:
    """torch's own word: it lets go of them when the node has run, and not before."""
    x = torch.ones(2, requires_grad=True)
    states = []

    def look(answers: Answers) -> None:
        states.extend(slot.meta.state for name in ("Exp", "Sin") for slot in ask(answers, "adbg/node", name=name).saved)

    run(stops, Phase.BEFORE, "SinBackward0#1", look, lambda: x.sin().exp().sum().backward())
    assert states == [ValueState.FREED_NOW, ValueState.OK]

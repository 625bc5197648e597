"""Backwards of custom functions that write their gradient, past autograd, into what forward was given, which the node
that made it has saved, too. Witness: the same gradient by operators of the framework alone.

Paddle counts no change where ``set_value``, ``copy_`` and ``out=`` write; ``assign`` and operators in place it refuses
itself, as torch does what is not written by way of ``.data``."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, only

HEAD = {
    "torch": """
import torch as fw
from torch import nn
fw.manual_seed(0)
Function, noise, gradients, sigmoid = fw.autograd.Function, fw.randn, fw.autograd.grad, fw.sigmoid
def made(*parameters):
    return fw.optim.SGD(parameters, lr=0.01), "zero_grad"
scale = nn.Parameter(fw.full([6], 1.5))
""",
    "paddle": """
import paddle as fw
from paddle import nn
fw.seed(0)
Function, noise, gradients = fw.autograd.PyLayer, lambda *shape: fw.randn(shape), fw.grad
sigmoid = nn.functional.sigmoid
def made(*parameters):
    return fw.optimizer.SGD(0.01, parameters=list(parameters)), "clear_grad"
scale = fw.create_parameter([6], "float32", default_initializer=nn.initializer.Constant(1.5))
""",
}
WORDS = {
    "torch": {
        "SAVED": "ctx.saved_tensors", "OUT": "fw.mul(grad, s, out=x.data)", "WRITES": "x.data.copy_(grad * s)",
        "ALIAS": "x.data", "INTO": "kept.copy_(grad * s)",
    },
    "paddle": {
        "SAVED": "ctx.saved_tensor()", "OUT": "fw.multiply(grad, s, out=x)", "WRITES": "x.set_value(grad * s)",
        "ALIAS": "x.detach()", "INTO": "kept.set_value(grad * s)",
    },
}  # fmt: skip
TRAIN = """
class Scale(Function):
    @staticmethod
    def forward(ctx, x, s):
        ctx.save_for_backward(x, s)
        return x * s
    @staticmethod
    def backward(ctx, grad):
        x, s = SAVED
        by_s = (grad * x).sum(0)
BODY
net, last = nn.Linear(4, 6), nn.Linear(6, 1)
optimizer, clear = made(*net.parameters(), *last.parameters(), scale)
def loss_of(x, scaled):
    h = net(x)
    return last(scaled(GIVEN, scale)).square().mean()
for step in range(4):
    x = noise(8, 4)
    if not step:
        plain = gradients(loss_of(x, lambda value, s: value * s), [net.weight])[0]
    loss = loss_of(x, Scale.apply)
    getattr(optimizer, clear)()
    loss.backward()
    if not step:
        print("right" if float((net.weight.grad - plain).abs().max()) < 1e-6 else "wrong")
    optimizer.step()
"""
OUT = """
OUTMARK
return x, by_s
"""
SET = """
if x.shape[0] > 1:
    WRITESMARK
return x, by_s
"""
ALIAS = """
kept = ALIAS
INTOMARK
return kept, by_s
"""
OWN = """
kept = x.clone()
INTO
return kept, by_s
"""


def program(body: str, given: str, mark: str = "") -> str:
    lines = "\n".join(" " * 8 + line for line in body.strip().splitlines())
    return TRAIN.replace("BODY", lines).replace("GIVEN", given).replace("MARK", mark)


BUGGY = {
    "exp": (OUT, "fw.exp(h)"), "sigmoid": (SET, "sigmoid(h)"), "sqrt": (ALIAS, "(h.abs() + 1).sqrt()"),
    "tanh": (OUT, "fw.tanh(h * 2)"),
}  # fmt: skip
# Saved by another one, that takes it as well: of what a node was given Paddle shows nothing.
BESIDE = program(SET, "h", "  # CAUSE").replace(
    "return last(scaled(h, scale))", "return h.square().mean() + last(scaled(h, scale))"
)
HEALTHY = {
    "of a layer": program(OUT, "h"),
    "of a sum": program(SET, "h + 0.5"),
    "of a difference": program(ALIAS, "h - x[:, :1]"),
    "a clone": program(OWN, "fw.exp(h)"),
    "a product": program("return grad * s, by_s", "sigmoid(h)"),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: program(*each, "  # CAUSE") for name, each in BUGGY.items()} | HEALTHY
    if request.param == "torch":
        texts["beside"] = BESIDE
    for word, meant in WORDS[request.param].items():
        texts = {name: text.replace(word, meant) for name, text in texts.items()}
    texts = {name: HEAD[request.param] + text for name, text in texts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


def on(frameworks: tuple[str, ...]) -> pytest.MarkDecorator:
    cases = [case(name, name, group=f"functions-recycled-{name}") for name in frameworks]
    return pytest.mark.parametrize("runs", cases, indirect=True)


@on(FRAMEWORKS)
@pytest.mark.parametrize("name", BUGGY)
def test_what_another_node_saved_is_written_into(runs: dict[str, Run], name: str) -> None:
    run = runs[name]
    assert run.plain.startswith("wrong"), run.plain
    first = run.check_first("function-input-overwritten")
    assert first["severity"] == "error" and name in first["message"].lower(), first
    assert len(run.above_notes()) == 1, str(run)


@only("torch", "Paddle shows nothing of what an operator saved: only those are known that save what they give")
@on(("torch",))
def test_what_a_node_beside_it_saved(runs: dict[str, Run]) -> None:
    assert runs["beside"].plain.startswith("wrong"), runs["beside"].plain
    first = runs["beside"].check_first("function-input-overwritten")
    assert first["severity"] == "error" and "pow" in first["message"].lower(), first


@on(FRAMEWORKS)
@pytest.mark.parametrize("name", HEALTHY)
def test_what_nothing_else_needs(runs: dict[str, Run], name: str) -> None:
    assert runs[name].plain.startswith("right"), runs[name].plain
    runs[name].check_healthy()

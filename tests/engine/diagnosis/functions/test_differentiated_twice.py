"""Custom functions that are differentiated twice: what forward computed and kept is a constant to their backward.
Witness: the second derivative that the program prints, beside that of the framework's own operators."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as fw
from torch import nn
fw.manual_seed(0)
Function = fw.autograd.Function
def data(rows):
    return fw.linspace(-1, 1, rows).reshape(rows, 1).requires_grad_(True)
def slope_of(y, x):
    return fw.autograd.grad(y.sum(), x, create_graph=True)[0]
def adam(module):
    return fw.optim.Adam(module.parameters(), 1e-2)
def clear(optimizer):
    optimizer.zero_grad()
def saved(ctx):
    return ctx.saved_tensors
""",
    "paddle": """
import paddle as fw
from paddle import nn
fw.seed(0)
Function = fw.autograd.PyLayer
nn.Module = nn.Layer
def data(rows):
    made = fw.linspace(-1, 1, rows).reshape([rows, 1])
    made.stop_gradient = False
    return made
def slope_of(y, x):
    return fw.grad(y.sum(), x, create_graph=True)[0]
def adam(module):
    return fw.optimizer.Adam(1e-2, parameters=module.parameters())
def clear(optimizer):
    optimizer.clear_grad()
def saved(ctx):
    return ctx.saved_tensor()
""",
}
PROGRAM = """
class Wave(Function):
    @staticmethod
    def forward(ctx, x):
        FORWARD
    @staticmethod
    def backward(ctx, grad):
        BACKWARD
class Act(nn.Module):
    def forward(self, x):
        return Wave.apply(x)
PLAIN
at = data(5)
one = slope_of(slope_of(Wave.apply(at * 2) * at, at), at)
other = slope_of(slope_of(plain(at * 2) * at, at), at)
print("apart", bool((one - other).abs().max() > 1e-3))
net = nn.Sequential(nn.Linear(1, 8), Act(), nn.Linear(8, 1))
optimizer = adam(net)
for step in range(8):
    x = data(16)
    y = net(x)
    SLOPES
    loss = (second + x).square().mean()
    clear(optimizer)
    loss.backward()
    optimizer.step()
"""
SECOND = "second = slope_of(slope_of(y * x, x), x)"


def _program(forward: str, backward: str, plain: str = "fw.sin(x)", slopes: str = SECOND) -> str:
    text = PROGRAM.replace("SLOPES", slopes).replace("PLAIN", f"def plain(x):\n    return {plain}")
    return text.replace("FORWARD", forward.replace("\n", "\n        ")).replace(
        "BACKWARD", backward.replace("\n", "\n        ")
    )


BROKEN = {
    "saved": _program(
        "slope = fw.cos(x)\nctx.save_for_backward(slope)  # CAUSE\nreturn fw.sin(x)",
        "(slope,) = saved(ctx)\nreturn grad * slope",
    ),
    "an attribute": _program(
        "gate = fw.tanh(x)\nctx.gate = gate  # CAUSE\nreturn x * gate",
        "return grad * (ctx.gate + ctx.x * (1 - ctx.gate * ctx.gate))",
        "x * fw.tanh(x)",
    ).replace("ctx.gate = gate  # CAUSE", "ctx.x = x\n        ctx.gate = gate  # CAUSE"),
    "inline": _program("ctx.save_for_backward(fw.cos(x))  # CAUSE\nreturn fw.sin(x)", "return grad * saved(ctx)[0]"),
}
SAVED = "slope = fw.cos(x)\nctx.save_for_backward(slope)\nreturn fw.sin(x)", "return grad * saved(ctx)[0]"
BROKEN["beside what is no tensor"] = _program(
    "ctx.size = x.shape\nslope = fw.cos(x)\nctx.save_for_backward(slope)  # CAUSE\nreturn fw.sin(x)", SAVED[1]
)
# The number alone is used: of a gradient that is detached, of the slope at what is given and no parameter's.
DETACHED = _program(*SAVED, slopes="second = y + slope_of(y * x, x).detach()")
INPUT = _program(*SAVED).replace(
    "nn.Sequential(nn.Linear(1, 8), Act(), nn.Linear(8, 1))", "nn.Sequential(Act(), nn.Linear(1, 8), nn.Linear(8, 1))"
).replace("second = slope_of(slope_of(y * x, x), x)", "second = slope_of(y, x)")  # fmt: skip
HEALTHY = {
    "the input": _program("ctx.save_for_backward(x)\nreturn fw.sin(x)", "return grad * fw.cos(saved(ctx)[0])"),
    "a square": _program("ctx.save_for_backward(x)\nreturn x * x", "return grad * 2 * saved(ctx)[0]", "x * x"),
    "linear": _program("ctx.by = 3.0\nreturn x * 3.0", "return grad * ctx.by", "x * 3.0"),
}
ONCE = _program(  # nobody asks for a second derivative of it
    "slope = fw.cos(x)\nctx.save_for_backward(slope)\nreturn fw.sin(x)", "return grad * saved(ctx)[0]",
    slopes="second = y",
)  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {**{f"broken {k}": t for k, t in BROKEN.items()}, **{f"healthy {k}": t for k, t in HEALTHY.items()}}
    for name, text in {"once": ONCE, "detached": DETACHED, "of the input": INPUT}.items():
        texts[name] = text[: text.index("at = data")] + text[text.index("net = nn.") :]  # the witness does it twice
    texts = {key: HEAD[request.param] + text for key, text in texts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"functions-twice-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BROKEN)
def test_what_forward_keeps_is_the_cause(runs: dict[str, Run], name: str) -> None:
    run = runs[f"broken {name}"]
    assert "apart True" in run.output, run.output
    found = run.check_first("wrong-derivative")
    assert "is differentiated twice, and its second derivative is incomplete" in found["message"], found


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_right_twice_is_not_told(runs: dict[str, Run], name: str) -> None:
    run = runs[f"healthy {name}"]
    assert "apart False" in run.output, run.output
    assert not any(found["kind"] == "wrong-derivative" for found in run.every), run


@each
@pytest.mark.parametrize("name", ["once", "detached", "of the input"])
def test_what_reaches_no_parameter_is_not_told(runs: dict[str, Run], name: str) -> None:
    assert not any(found["kind"] == "wrong-derivative" for found in runs[name].every), runs[name]

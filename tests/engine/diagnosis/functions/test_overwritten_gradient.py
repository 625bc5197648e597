"""Backwards of custom functions that write into the gradient that they are given. Witness: the version of that
gradient, by the framework."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch
from torch import nn
torch.manual_seed(0)
Function, noise = torch.autograd.Function, torch.randn
def sgd(parameters):
    return torch.optim.SGD(list(parameters), lr=0.01)
def clear(optimizer):
    optimizer.zero_grad()
def saved(ctx):
    return ctx.saved_tensors[0]
""",
    "paddle": """
import paddle
from paddle import nn
paddle.seed(0)
Function, noise = paddle.autograd.PyLayer, lambda *shape: paddle.randn(shape)
def sgd(parameters):
    return paddle.optimizer.SGD(0.01, parameters=list(parameters))
def clear(optimizer):
    optimizer.clear_grad()
def saved(ctx):
    return ctx.saved_tensor()[0]
""",
}

LOOP = """
class Gate(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clip(-0.5, 0.5)
    @staticmethod
    def backward(ctx, grad):
        x = saved(ctx)
BODY
net, last = nn.Linear(4, 6), nn.Linear(6, 1)
optimizer = sgd([*net.parameters(), *last.parameters()])
for _ in range(4):
    clear(optimizer)
    h = net(noise(8, 4))
    loss = last(JOIN).square().mean()
    loss.backward()
    optimizer.step()
print("done")
"""


def _program(body: str, join: str) -> str:
    lines = "\n".join(" " * 8 + line for line in body.strip().splitlines())
    return LOOP.replace("BODY", lines).replace("JOIN", join)


SKIP = "h + Gate.apply(h)"
BUGGY = {
    "by an alias": _program("""
given = grad
given[x.abs() > 0.5] = 0  # CAUSE
return given
""", SKIP),
    "by a method": _program("""
inside = (x.abs() <= 0.5).astype(grad.dtype) if hasattr(x, "astype") else (x.abs() <= 0.5).to(grad.dtype)
return grad.multiply_(inside)  # CAUSE
""", "Gate.apply(h) + h"),
    "of a view": _program("""
flat = grad.reshape([-1])
flat[(x.abs() > 0.5).reshape([-1])] = 0  # CAUSE
return grad
""", "(h + h.tanh()) + Gate.apply(h)"),
}  # fmt: skip
HEALTHY = {
    "a clone": _program("""
given = grad.clone()
given[x.abs() > 0.5] = 0
return given
""", SKIP),
    "nothing beside it": _program("""
grad[x.abs() > 0.5] = 0
return grad
""", "Gate.apply(h)"),
    "a product": _program("""
return grad * (x.abs() <= 0.5).astype(grad.dtype) if hasattr(x, "astype") else grad * (x.abs() <= 0.5)
""", SKIP),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: HEAD[request.param] + text for name, text in (BUGGY | HEALTHY).items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"functions-overwritten-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_a_gradient_that_another_node_is_given_too(runs: dict[str, Run], name: str) -> None:
    """Paddle's addition gives each side memory of its own: the results are right there, and it is a note."""
    first = runs[name].check_first("function-input-overwritten")
    assert first["severity"] == ("error" if "import torch" in runs[name].program else "note"), first


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_a_gradient_that_is_its_own(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy(*["function-input-overwritten"] * (name == "nothing beside it"))

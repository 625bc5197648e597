"""A quantizer that passes the gradient straight on and gives its codebook none: right where another loss trains it."""

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
def made(net):
    return torch.optim.SGD(net.parameters(), 0.05)
def leaf(value):
    return nn.Parameter(value)
def nearest(z, codes):
    return torch.cdist(z, codes).argmin(1)
def rows(codes, at):
    return codes[at]
""",
    "paddle": """
import paddle
from paddle import nn
paddle.seed(0)
Function, noise = paddle.autograd.PyLayer, lambda *shape: paddle.randn(shape)
def made(net):
    return paddle.optimizer.SGD(0.05, parameters=net.parameters())
def leaf(value):
    return paddle.create_parameter(
        value.shape, "float32", default_initializer=nn.initializer.Assign(value.numpy())
    )
def nearest(z, codes):
    return (z.unsqueeze(1) - codes.unsqueeze(0)).square().sum(-1).argmin(1)
def rows(codes, at):
    return paddle.index_select(codes, at, axis=0)
""",
}
QUANTIZER = """
class Nearest(Function):
    @staticmethod
    def forward(ctx, z, codes):
        return rows(codes, nearest(z, codes))
    @staticmethod
    def backward(ctx, grad):
        return grad, None  # CAUSE
encoder, decoder = nn.Linear(6, 4), nn.Linear(4, 6)
net = nn.Sequential(encoder, decoder)
net.codes = codes = leaf(noise(12, 4))
optimizer = made(net)
for step in range(12):
    x = noise(16, 6)
    z = encoder(x)
    loss = (decoder(Nearest.apply(z, codes)) - x).square().mean()
    LOSS
    optimizer.CLEAR()
    loss.backward()
    optimizer.step()
"""
TRAINED = """picked = rows(codes, nearest(z.detach(), codes.detach()))
    loss = loss + (picked - z.detach()).square().mean() + 0.25 * (z - picked.detach()).square().mean()"""
# The codebook of a buggy one is held by the optimizer, and nothing trains it.
PROGRAMS = {
    "trained": QUANTIZER.replace("LOSS", TRAINED),
    "committed": QUANTIZER.replace("LOSS", TRAINED.replace("0.25", "0.5").replace("# CAUSE", "")),
    "forgotten": QUANTIZER.replace("LOSS", "loss = loss + 0.25 * (z * z).mean()"),
    # Nothing is rounded: the result is a smooth function of both.
    "smooth": QUANTIZER.replace("LOSS", "pass").replace("rows(codes, nearest(z, codes))", "z + codes.mean(0)"),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    clear = "zero_grad" if request.param == "torch" else "clear_grad"
    texts = {name: HEAD[request.param] + text.replace("CLEAR", clear) for name, text in PROGRAMS.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"functions-codebooks-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", ["trained", "committed"])
def test_another_loss_trains_it(runs: dict[str, Run], name: str) -> None:
    assert {each["severity"] for each in runs[name].told} <= {"note"}, runs[name].told


@each
@pytest.mark.parametrize("name", ["forgotten", "smooth"])
def test_nothing_trains_it(runs: dict[str, Run], name: str) -> None:
    assert runs[name].check_first("missing-gradient")["severity"] == "error"

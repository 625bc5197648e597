"""Functions whose backward gives zeros for an input: right for the codebook of a quantizer that another loss trains.
Witness: whether the framework's own gradient of the codes is 0."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, named

HEAD = {
    "torch": """
import torch as fw
from torch import nn
fw.manual_seed(0)
Function, noise = fw.autograd.Function, fw.randn
def made(net):
    optimizer = fw.optim.SGD(net.parameters(), 0.05)
    return optimizer, optimizer.zero_grad
def leaf(value):
    return nn.Parameter(value)
def nearest(z, codes):
    return fw.cdist(z, codes).argmin(1)
def rows(codes, at):
    return codes[at]
""",
    "paddle": """
import paddle as fw
from paddle import nn
fw.seed(0)
Function = fw.autograd.PyLayer
def noise(*shape):
    return fw.randn(shape)
def made(net):
    optimizer = fw.optimizer.SGD(0.05, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
def leaf(value):
    return fw.create_parameter(
        value.shape, "float32", default_initializer=nn.initializer.Assign(value.numpy())
    )
def nearest(z, codes):
    return (z.unsqueeze(1) - codes.unsqueeze(0)).square().sum(-1).argmin(1)
def rows(codes, at):
    return fw.index_select(codes, at, axis=0)
""",
}
QUANTIZER = """
class Nearest(Function):
    @staticmethod
    def forward(ctx, z, codes):
        ctx.save_for_backward(codes)
        return FORWARD
    @staticmethod
    def backward(ctx, grad):
        codes, = SAVED
        return BACKWARD
encoder, decoder = nn.Linear(6, 4), nn.Linear(4, 6)
net = nn.Sequential(encoder, decoder)
net.codes = codes = leaf(noise(12, 4))
optimizer, clear = made(net)
for step in range(12):
    x = noise(16, 6)
    z = encoder(x)
    loss = (decoder(Nearest.apply(z, codes)) - x).square().mean()
    LOSS
    clear()
    loss.backward()
    optimizer.step()
print("codes are trained:", codes.grad is not None and bool(codes.grad.abs().sum() > 0))
"""
ROWS = "rows(codes, nearest(z, codes))"
TRAINED = """picked = rows(codes, nearest(z.detach(), codes.detach()))
    loss = loss + (picked - z.detach()).square().mean() + 0.25 * (z - picked.detach()).square().mean()"""
COMMITTED = "loss = loss + 0.25 * (z * z).mean()"


def program(backward: str, loss: str, forward: str = ROWS) -> str:
    return QUANTIZER.replace("FORWARD", forward).replace("BACKWARD", backward).replace("LOSS", loss)


ZEROS = "grad, fw.zeros_like(codes)"
HEALTHY = {
    "zeros_like": program(ZEROS, TRAINED),
    "a product": program("grad, codes * 0", TRAINED),
    "zeros of its shape": program("grad, fw.zeros(codes.shape)", TRAINED),
    "scaled": program("0.5 * grad, fw.zeros_like(codes)", TRAINED),
    "none, as before": program("grad, None", TRAINED),
    "codes are averaged": program(ZEROS, COMMITTED).replace(
        "    optimizer.step()\n", "    optimizer.step()\n    with fw.no_grad():\n        at = nearest(z, codes)\n"
        "        codes.COPY(0.99 * codes + 0.01 * z.mean(0))\n"),
}  # fmt: skip
# Nothing trains the codes, or nothing is passed straight on.
BUGGY = {
    "smooth": program(f"{ZEROS}  # CAUSE", "pass", "z + codes.mean(0)"),
    "smooth, another loss": program(f"{ZEROS}  # CAUSE", COMMITTED, "z * codes.mean(0)").replace(
        "return grad, fw", "return grad * codes.mean(0), fw"),
    "a product of both": program("grad * codes.mean(), fw.zeros_like(codes)  # CAUSE", "pass", "z * codes.mean()"),
    "on a line of its own": program("grad, other", "pass", "z + codes.mean(0)").replace(
        "        return grad, other", "        other = fw.zeros_like(codes)  # CAUSE\n        return grad, other"),
    "the first one": program("fw.zeros_like(grad), (grad.sum(0) / 12).unsqueeze(0).expand([12, 4])  # CAUSE", "pass",
                             "z + codes.mean(0)"),
    "forgotten": program(f"{ZEROS}  # CAUSE", COMMITTED),
}  # fmt: skip
NOT_BY_GRADIENTS = "codes are averaged"
FAULTS = {
    # FAULT: of None this is an error (test_codebooks), of zeros a note: the codes stay as they were made.
    "forgotten": "whether another loss trains them is looked at only where there is no gradient at all",
}


def texts(framework: str) -> dict[str, str]:
    parts = {f"buggy, {name}": part for name, part in BUGGY.items()} | HEALTHY
    torch = framework == "torch"
    words = {"SAVED": "ctx.saved_tensors" if torch else "ctx.saved_tensor()", "COPY": "copy_" if torch else "set_value"}
    for old, new in words.items():
        parts = {name: part.replace(old, new) for name, part in parts.items()}
    return {name: HEAD[framework] + part for name, part in parts.items()}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts(request.param))


cases = {name: case(name, name, group=f"functions-zeros-given-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@named(HEALTHY, FAULTS)
def test_another_loss_trains_them(runs: dict[str, Run], name: str) -> None:
    run = runs[name]
    assert f"codes are trained: {name != NOT_BY_GRADIENTS}\n" in run.plain, run
    run.check_healthy("missing-gradient")


@each
@named(BUGGY, FAULTS)
def test_nothing_trains_them(runs: dict[str, Run], name: str) -> None:
    run = runs[f"buggy, {name}"]
    assert f"codes are trained: {name == 'the first one'}\n" in run.plain, run
    first = run.check_first("missing-gradient" if name == "forgotten" else "wrong-derivative")
    assert first["severity"] == "error" and len(run.above_notes()) == 1, run

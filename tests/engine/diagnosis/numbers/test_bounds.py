"""Parameters that lie beyond a bound from the beginning, so that their gradient is 0 at all times."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
Module, noise, exp, clip, maximum = nn.Module, torch.randn, torch.exp, torch.clamp, torch.maximum
minimum, full, where = torch.minimum, torch.full, torch.where
def parameter(value):
    return nn.Parameter(torch.full((3,), value))
def adam(net):
    return torch.optim.Adam(net.parameters(), 0.01), "zero_grad"
""",
    "paddle": """
import paddle
from paddle import nn
import paddle.nn.functional as F
paddle.seed(0)
Module, exp, clip, maximum, minimum = nn.Layer, paddle.exp, paddle.clip, paddle.maximum, paddle.minimum
full, where = paddle.full, paddle.where
def noise(*shape):
    return paddle.randn(shape)
def parameter(value):
    return paddle.create_parameter([3], "float32", default_initializer=nn.initializer.Constant(value))
def adam(net):
    return paddle.optimizer.Adam(0.01, parameters=net.parameters()), "clear_grad"
""",
}
# As ``forward`` of the module, or as another method of one that never runs itself.
COMMON = """
class Policy(Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        self.log_std = parameter(START)
    def METHOD(self, x):
        bounded = BOUND  # CAUSE
        return self.mean(x), bounded
net = Policy()
optimizer, clear = adam(net)
for _ in range(20):
    x = noise(16, 4)
    mean, log_std = net.METHOD(x)
    loss = (((x[:, :3] - mean) / exp(log_std)).square() / 2 + log_std).mean()
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
"""


def program(start: str, bound: str, method: str = "dist") -> str:
    return COMMON.replace("START", start).replace("BOUND", bound).replace("METHOD", method)


LOW, HIGH = "full([3], -2.0)", "full([3], 1.5)"
WRONG = {
    "clip": program("-3.0", "clip(self.log_std, -2.0, 1.0)"),
    "clip, forward": program("-3.0", "clip(self.log_std, -2.0, 1.0)", "forward"),
    "method": program("2.0", "self.log_std.clip(-2.0, 1.0)"),
    "hardtanh": program("-1.5", "F.hardtanh(self.log_std)"),
    "relu6": program("-0.5", "F.relu6(self.log_std)"),
    "maximum": program("-3.0", f"maximum(self.log_std, {LOW})"),
    "minimum": program("2.0", f"minimum(self.log_std, {HIGH})", "forward"),
    "where": program("-3.0", f"where(self.log_std > -2.0, self.log_std, {LOW})"),
}
# Inside of the bounds; one element is; at a bound that the loss pulls it away from; both sides are trained.
RIGHT = {
    "inside": program("0.5", "clip(self.log_std, -2.0, 1.0)"),
    "some": program("-1.98", "clip(self.log_std + noise(3) * 0.1, -2.0, 1.0)"),
    "larger": program("-1.0", f"maximum(self.log_std, {LOW})", "forward"),
    "both": program("-1.0", "maximum(self.log_std, minimum(self.log_std * 2, self.log_std))"),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: HEAD[request.param] + text for name, text in {**WRONG, **RIGHT}.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"numbers-bounds-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", WRONG)
def test_beyond_a_bound_from_the_beginning(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("zero-gradient")
    assert "log_std" in first["message"].partition(" always")[0] and first["severity"] == "warning", first
    if name == "clip":
        assert any("was given -3, beside -2 and 1" in line for line in first["evidence"]), first["evidence"]


@each
@pytest.mark.parametrize("name", RIGHT)
def test_within_them(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()

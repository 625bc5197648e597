"""Steps that divide by 0, for the ``eps`` of the optimizer is 0 in the type of what it is added to."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

TORCH = """
import torch
from torch import nn
torch.manual_seed(3)
x = torch.randn(64, 8)
x[:, 0] = 0
y = torch.tanh(x.sum(1))
DTYPE
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(x.dtype)
OPTIMIZER
for step in range(12):
    loss = 0.01 * (net(x).squeeze(-1) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(float(loss))
"""
HALF = TORCH.replace("DTYPE", "x, y = x.half(), y.half()")
WHOLE = TORCH.replace("DTYPE", "")
# An optimizer of the program's own: what it calls eps is the one of its group, and its square is "second".
OWN = """
class Scaled(torch.optim.Optimizer):
    def __init__(self, parameters, lr, eps):
        super().__init__(parameters, {"lr": lr, "eps": eps})
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if not self.state[p]:
                    self.state[p]["second"] = torch.zeros_like(p)
                second = self.state[p]["second"]
                second.mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
                p.addcdiv_(p.grad, second.sqrt() + group["eps"], value=-group["lr"])
optimizer = Scaled(net.parameters(), 1e-3, 1e-8)
"""
PADDLE = """
import paddle
from paddle import nn
paddle.seed(3)
x = paddle.randn([64, 8])
x[:, 0] = 0.0
y = paddle.tanh(x.sum(1))
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
OPTIMIZER
for step in range(12):
    loss = (net(x).squeeze(-1) - y).square().mean()
    optimizer.clear_grad()
    loss.backward()
    optimizer.step()
print(float(loss))
"""


def _torch(base: str, made: str) -> str:
    return base.replace("OPTIMIZER", made if "\n" in made else f"optimizer = torch.optim.{made}  # CAUSE")


def _paddle(made: str) -> str:
    return PADDLE.replace("OPTIMIZER", f"optimizer = paddle.optimizer.{made}  # CAUSE")


# The words that are told of it, and the program.
TOO_SMALL = {
    "torch": {
        "adam": ("eps=1e-08 is 0 in float16", _torch(HALF, "Adam(net.parameters(), lr=1e-3)")),
        "foreach": ("eps=1e-08 is 0 in float16", _torch(HALF, "AdamW(net.parameters(), lr=1e-3, foreach=True)")),
        "adagrad": ("eps=1e-10 is 0 in float16", _torch(HALF, "Adagrad(net.parameters(), lr=1e-2)")),
        "own": ("eps=1e-08 is 0 in float16", _torch(HALF, OWN)),
        "none": ("eps is 0", _torch(WHOLE, "RMSprop(net.parameters(), lr=1e-3, eps=0)")),
    },
    "paddle": {
        "none": ("eps is 0", _paddle("Adam(1e-3, parameters=net.parameters(), epsilon=0.0)")),
        "rms": ("eps is 0", _paddle("RMSProp(1e-3, parameters=net.parameters(), epsilon=0.0)")),
        "adagrad": ("eps is 0", _paddle("Adagrad(1e-3, parameters=net.parameters(), epsilon=0.0)")),
    },
}
HEALTHY = {
    "torch": {
        "large": _torch(HALF, "Adam(net.parameters(), lr=1e-3, eps=1e-4)"),
        "whole": _torch(WHOLE, "Adam(net.parameters(), lr=1e-3)"),
        "sgd": _torch(HALF, "SGD(net.parameters(), lr=1e-2)"),
    },
    "paddle": {
        "large": _paddle("Adam(1e-3, parameters=net.parameters())"),
        "sgd": _paddle("SGD(1e-2, parameters=net.parameters())"),
    },
}
# Not finite after a step as well, but for another reason: nothing is said of eps.
OTHERWISE = {
    "torch": {"rate": _torch(HALF, "Adam(net.parameters(), lr=1e6, eps=1e-4)")},
    "paddle": {"rate": _paddle("Adam(3e38, parameters=net.parameters())")},
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    name = request.param
    texts = {f"small {key}": text for key, (_, text) in TOO_SMALL[name].items()}
    texts |= {f"healthy {key}": text for key, text in HEALTHY[name].items()}
    texts |= {f"otherwise {key}": text for key, text in OTHERWISE[name].items()}
    found = diagnose_each(name, tmp_path_factory.mktemp("programs"), texts)
    return {"": name, **found}  # type: ignore[dict-item]


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"epsilons-{name}") for name in FRAMEWORKS], indirect=True
)


@each
def test_the_step_divides_by_0_and_why(runs: dict[str, Run]) -> None:
    for key, (words, _) in TOO_SMALL[str(runs[""])].items():
        found = runs[f"small {key}"].check_first("nonfinite")
        assert words in found["message"] and "it divides by 0" in found["message"], (key, found)
        assert any("elements that are not finite" in line for line in found["evidence"]), (key, found)


@each
def test_healthy(runs: dict[str, Run]) -> None:
    for key in HEALTHY[str(runs[""])]:
        assert not runs[f"healthy {key}"].above_notes(), runs[f"healthy {key}"]


@each
def test_no_reason_that_is_not_proven(runs: dict[str, Run]) -> None:
    for key in OTHERWISE[str(runs[""])]:
        run = runs[f"otherwise {key}"]
        assert run.every, key
        assert all("divides by 0" not in found["message"] for found in run.every), run

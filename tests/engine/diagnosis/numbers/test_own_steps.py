"""Optimizers that the program defines: the line of their step that makes NaN, and the line that makes one of them."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

# A head of zeros whose first batch gives it no gradient: 0 / 0 in the ratio of both norms.
TORCH = """
import torch
from torch import nn
torch.manual_seed(3)
class Scaled(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                STEP
base = BASE
body, heads = nn.Linear(8, 16), [nn.Linear(16, 1, bias=False) for _ in range(2)]
if ZEROS:
    nn.init.zeros_(heads[1].weight)
every = [*body.parameters(), *(head.weight for head in heads)]
optimizer = MADE
x = torch.randn(64, 8)
for step in range(12):
    h = torch.tanh(body(x))
    loss = SCALE * ((heads[0](h) - 1).square().mean() + 0.0 * heads[1](h).sum())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(float(loss))
"""
PADDLE = """
import paddle
from paddle import nn
paddle.seed(3)
class Scaled(paddle.optimizer.Optimizer):
    def __init__(self, lr, parameters):
        super().__init__(learning_rate=lr, parameters=parameters)
    @paddle.no_grad()
    def step(self):
        for p in self._parameter_list:
            STEP
base = BASE
body, heads = nn.Linear(8, 16), [nn.Linear(16, 1, bias_attr=False) for _ in range(2)]
if ZEROS:
    heads[1].weight.set_value(paddle.zeros([16, 1]))
every = [*body.parameters(), *(head.weight for head in heads)]
optimizer = MADE
x = paddle.randn([64, 8])
for step in range(12):
    h = paddle.tanh(body(x))
    loss = SCALE * ((heads[0](h) - 1).square().mean() + 0.0 * heads[1](h).sum())
    optimizer.clear_grad()
    loss.backward()
    optimizer.step()
print(float(loss))
"""
INNER = {"torch": 16, "paddle": 12}  # how deep STEP is indented
RATIO = {
    "torch": """trust = p.norm() / p.grad.norm()  # CAUSE
p.add_(p.grad * trust.clamp(max=1.0), alpha=-group["lr"])""",
    "paddle": """trust = p.norm() / p.grad.norm()  # CAUSE
p.set_value(p - self.get_lr() * p.grad * trust.clip(max=1.0))""",
}
PLAIN = {
    "torch": 'p.add_(p.grad, alpha=-group["lr"])',
    "paddle": "p.set_value(p - self.get_lr() * p.grad)",
}
# A step of the framework's own below a class of the program's: too large, so the line that makes it is the one.
SGD = {"torch": "torch.optim.SGD", "paddle": "paddle.optimizer.SGD"}
LARGE = """class Own(base):
    def __init__(self, *given, **named):
        super().__init__(*given, **named)
optimizer = """


def _program(framework: str, step: str, made: str, zeros: bool, scale: str = "1.0") -> str:
    text = {"torch": TORCH, "paddle": PADDLE}[framework].replace("BASE", SGD[framework])
    step = step.replace("\n", "\n" + " " * INNER[framework])
    text = text.replace("STEP", step).replace("optimizer = MADE", made).replace("ZEROS", str(zeros))
    return text.replace("SCALE", scale).replace("0.0 *", "0.0 *" if zeros else "0.1 *")


def _programs(framework: str) -> dict[str, str]:
    given = {"torch": "every, lr={}", "paddle": "{}, parameters=every"}[framework]
    own = "optimizer = Scaled(" + given.format(0.05) + ")"
    return {
        "ratio": _program(framework, RATIO[framework], own, zeros=True),
        "healthy": _program(framework, PLAIN[framework], own, zeros=False),
        "too large": _program(
            framework, PLAIN[framework], f"{LARGE}Own({given.format('1e6')})  # CAUSE", zeros=False, scale="1e3"
        ),
    }


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), _programs(request.param))


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"own-steps-{name}") for name in FRAMEWORKS], indirect=True
)


@each
def test_the_line_of_the_step_that_divides(runs: dict[str, Run]) -> None:
    found = runs["ratio"].check_first("nonfinite")
    assert "the step of Scaled makes NaN" in found["message"] and "0 / 0" in found["message"], found
    assert "nan" in runs["ratio"].plain, runs["ratio"].plain


@each
def test_the_line_that_makes_it_is_not_in_its_class(runs: dict[str, Run]) -> None:
    found = runs["too large"].check_first("large-update")
    assert "the steps of Own are larger than the weights themselves" in found["message"], found


@each
def test_healthy(runs: dict[str, Run]) -> None:
    runs["healthy"].check_healthy()

"""Inputs as they were measured, at which training diverges; and large inputs that a normalization meets, small ones at
too large a rate, large ones at a rate that goes with them. Witness: the same program with the input divided learns."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import numpy as np
import torch
from torch import nn
torch.manual_seed(0)
rng = np.random.default_rng(0)
def tensor(array):
    return torch.from_numpy(array.astype("float32"))
def uniform(*shape):
    return torch.rand(*shape)
def concat(parts):
    return torch.cat(parts, 1)
def sgd(net, rate):
    return torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9), "zero_grad"
BatchNorm, exp, autograd = nn.BatchNorm1d, torch.exp, torch.autograd
def adam(net, rate):
    return torch.optim.Adam(net.parameters(), rate), "zero_grad"
""",
    "paddle": """
import numpy as np
import paddle
from paddle import nn
paddle.seed(0)
rng = np.random.default_rng(0)
def tensor(array):
    return paddle.to_tensor(array.astype("float32"))
def uniform(*shape):
    return paddle.rand(shape)
def concat(parts):
    return paddle.concat(parts, 1)
def sgd(net, rate):
    return paddle.optimizer.Momentum(rate, parameters=net.parameters()), "clear_grad"
BatchNorm, exp, autograd = nn.BatchNorm1D, paddle.exp, paddle.autograd
def adam(net, rate):
    return paddle.optimizer.Adam(rate, parameters=net.parameters()), "clear_grad"
""",
}
TRAIN = """
net = nn.Sequential(LAYERS)
optimizer, clear = sgd(net, RATE)
for step in range(60):
    at = step * 32 % 256
    loss = (net(x[at : at + 32]) - y[at : at + 32]).square().mean()
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
"""
USUAL = "nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1)"
COLUMNS = """
age, visits = uniform(256, 1) * 2, uniform(256, 1) * 3
income = uniform(256, 1) * 90000 + 10000  # CAUSE
x = concat([age, income, visits])
y = age + visits
"""
ARRAY = """
pressure = rng.normal(101325.0, 800.0, (256, 3))
x = tensor(pressure)
y = tensor(pressure[:, :1] / 101325.0)
"""
PIXELS = """
x = uniform(256, 3) * 255  # CAUSE
y = x[:, :1] / 255
"""
POISSON = COLUMNS.replace("y = age + visits", "y = visits")
SMALL = COLUMNS.replace(" * 90000 + 10000  # CAUSE", "")


def program(data: str, layers: str = USUAL, rate: str = "0.01") -> str:
    return data + TRAIN.replace("LAYERS", layers).replace("RATE", rate)


WRONG = {
    "columns": program(COLUMNS),
    "pixels": program(PIXELS, rate="0.05"),
    "poisson": program(POISSON).replace(
        "(net(x[at : at + 32]) - y[at : at + 32]).square().mean()",
        "(exp(net(x[at : at + 32])) - y[at : at + 32] * net(x[at : at + 32])).mean()",
    ),
}
RIGHT = {
    "normalized": program(COLUMNS, f"BatchNorm(3), {USUAL}"),
    "divided": program(PIXELS.replace("# CAUSE", ""), rate="0.05").replace(
        "net(x[at : at + 32])", "net(x[at : at + 32] / 255)"
    ),
    "slow": program(PIXELS.replace("# CAUSE", ""), rate="1e-7"),
}
# Two losses in turn, or both at once, one of which begins at 0; another model, which takes log(0) in its first step.
TURNS = """
x = uniform(256, 3) * 255
y = x[:, :1] / 255
net = nn.Sequential(nn.Linear(3, 16), BatchNorm(16), nn.ReLU(), nn.Linear(16, 1))
optimizer, clear = adam(net, 1e-3)
for step in range(30):
    at = step * 32 % 256
    out = net(x[at : at + 32])
    first, second = (out - y[at : at + 32]).square().mean(), out.square().mean() * step
    getattr(optimizer, clear)()
    if step % 2:
        autograd.backward([first, second])
    else:
        second.backward(retain_graph=True)
        first.backward()
    optimizer.step()
"""
IN_PLACE = program(PIXELS.replace("uniform(256, 3) * 255  # CAUSE", "uniform(256, 3)\nx *= 255  # CAUSE"), rate="0.05")
SECOND = (
    program(COLUMNS.replace("# CAUSE", "")).replace(
        "for step",
        """\
other = nn.Linear(3, 1)
rule, also = sgd(other, 0.01)
for step""",
    )
    + """\
    extra = exp(other(x[:4] / 90000)).mean() + (other(x[:4] / 90000) * 0).log().mean()  # CAUSE
    getattr(rule, also)()
    extra.backward()
    rule.step()
"""
)
RIGHT["turns"] = TURNS
RATES = {"rate": program(SMALL, rate="40.0")}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    name = request.param
    every = {**WRONG, **RIGHT, **RATES, "array": program(ARRAY), "in place": IN_PLACE, "second": SECOND}
    return diagnose_each(name, tmp_path_factory.mktemp("programs"), {n: HEAD[name] + t for n, t in every.items()})


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"numbers-unscaled-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", WRONG)
def test_the_line_that_makes_the_large_numbers(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first("unscaled-input")
    assert len(runs[name].above_notes()) == 1, f"what follows from it is told beside it\n{runs[name]}"


@each
def test_numbers_of_an_array(runs: dict[str, Run]) -> None:
    first = runs["array"].above_notes()[0]
    assert first["kind"] == "unscaled-input", str(runs["array"])
    wanted = "from_numpy" if "import torch" in runs["array"].program else "net("  # Paddle's to_tensor is not told
    assert wanted in first["cause"]["text"], first


@each
@pytest.mark.parametrize("name", RIGHT)
def test_what_is_scaled_later_or_stepped_slowly(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()


@each
def test_too_large_a_rate_is_that(runs: dict[str, Run]) -> None:
    kinds = {found["kind"] for found in runs["rate"].every}
    assert "large-update" in kinds and "unscaled-input" not in kinds, str(runs["rate"])


@each
def test_multiplied_in_place(runs: dict[str, Run]) -> None:
    runs["in place"].check_first("unscaled-input")


@each
def test_what_another_model_does_is_told_beside_it(runs: dict[str, Run]) -> None:
    kinds = {found["kind"] for found in runs["second"].above_notes()}
    assert kinds >= {"unscaled-input", "nonfinite"}, str(runs["second"])
    runs["second"].check_names("nonfinite")

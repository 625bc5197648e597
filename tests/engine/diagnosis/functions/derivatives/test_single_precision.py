"""Custom functions that go to float32 inside, so that their backward is checked in single precision, whose steps are
long: kinks are no wrong derivative, and wrong derivatives are told. Witness: the framework's own derivative of the same
forward, beside what backward gives."""

from __future__ import annotations

import pytest
from support.diagnosing import line_of
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as fw
from torch import nn
fw.manual_seed(SEED)
Function, noise, Group = fw.autograd.Function, fw.randn, nn.ModuleList
softmax, gradients, taken = fw.nn.functional.softmax, fw.autograd.grad, fw.take_along_dim
def sgd(parameters):
    return fw.optim.SGD(list(parameters), lr=1e-3), "zero_grad"
def leaf(*shape):
    return fw.randn(*shape, requires_grad=True)
""",
    "paddle": """
import paddle as fw
from paddle import nn
fw.seed(SEED)
Function, noise, Group = fw.autograd.PyLayer, lambda *shape: fw.randn(shape), nn.LayerList
softmax, gradients, taken = fw.nn.functional.softmax, fw.grad, fw.take_along_axis
def sgd(parameters):
    return fw.optimizer.SGD(1e-3, parameters=list(parameters)), "clear_grad"
def leaf(*shape):
    made = fw.randn(shape)
    made.stop_gradient = False
    return made
""",
}
WORDS = {
    "torch": {"SAVED": "ctx.saved_tensors", "SINGLE": "x.float()", "SORTED": "x.sort(1).values", "COUNT": "x.numel()"},
    "paddle": {
        "SAVED": "ctx.saved_tensor()", "SINGLE": 'x.astype("float32")', "SORTED": "x.sort(1)", "COUNT": "x.size"
    },
}  # fmt: skip
ONE = """
class NAME(Function):
    @staticmethod
    def forward(ctx, x):
        x = SINGLE
        ctx.save_for_backward(x)
        return FORWARD
    @staticmethod
    def backward(ctx, grad):
        (x,) = SAVED
        return BACKWARD
"""
TRAIN = """
class Nowhere:
    def save_for_backward(self, *tensors):
        pass

functions = [NAMES]
layers = Group([nn.Linear(16, 32) for _ in functions])
optimizer, clear = sgd(layers.parameters())
for _ in range(5):
    x = noise(64, 16)
    loss = sum(function.apply(layer(x)).mean() for function, layer in zip(functions, layers))
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
for function in functions:
    x = leaf(8, 32)
    weights = fw.randn(list(function.forward(Nowhere(), x).shape))
    (own,) = gradients((function.apply(x) * weights).sum(), [x])
    (told,) = gradients((function.forward(Nowhere(), x) * weights).sum(), [x])
    print(function.__name__, "right" if float((own - told).abs().max()) < 1e-5 else "wrong")
"""

# By name: forward, backward.
HINGE, MEAN = "fw.clip(1 - x, min=0).mean()", "x.abs().mean()"
RIGHT = {
    "Leaky": ("fw.where(x > 0, x, 0.1 * x)", "fw.where(x > 0, grad, 0.1 * grad)"),
    "Hinge": (HINGE, "fw.where(x < 1, -grad / COUNT, 0 * x)"),
    "Size": ("x.abs()", "grad * fw.sign(x)"),
    "Clamp": ("fw.clip(x, -1, 1)", "fw.where(x.abs() < 1, grad, 0 * grad)"),
    "Largest": ("fw.amax(x, 1)", "fw.where(x == fw.amax(x, 1, True), grad.unsqueeze(1), 0 * x)"),
    "Sorted": ("SORTED", "taken(grad, x.argsort(1).argsort(1), 1)"),
}
WRONG = {
    "Square": ("x * x", "grad * x"),  # a factor of 1/2
    "Leaky": (RIGHT["Leaky"][0], "fw.where(x > 0, grad, 0.5 * grad)"),
    "Size": (RIGHT["Size"][0], "grad * fw.ones_like(x)"),
    "Mean": (MEAN, "grad * fw.sign(x)"),  # without 1 / N
    "Soft": ("softmax(x, 1)", "grad * softmax(x, 1) * (1 - softmax(x, 1))"),  # the diagonal alone
    "Sorted": (RIGHT["Sorted"][0], "grad * 1"),
}
SEEDS = (0, 1, 2, 3)


def program(framework: str, functions: dict[str, tuple[str, str]], seed: int, mark: str = "") -> str:
    """``mark``: of the backwards."""
    made = [
        ONE.replace("BACKWARD", backward + mark).replace("FORWARD", forward).replace("NAME", name)
        for name, (forward, backward) in functions.items()
    ]
    text = HEAD[framework].replace("SEED", str(seed)) + "".join(made) + TRAIN.replace("NAMES", ", ".join(functions))
    for word, meant in WORDS[framework].items():
        text = text.replace(word, meant)
    return text


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    name = request.param
    texts = {f"right {seed}": program(name, RIGHT, seed) for seed in SEEDS}
    texts |= {f"wrong {seed}": program(name, WRONG, seed, "  # WRONG") for seed in SEEDS}
    texts |= {each: program(name, {each: WRONG[each]}, 0, "  # CAUSE") for each in WRONG}
    return diagnose_each(name, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"functions-single-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("seed", SEEDS)
def test_kinks_are_no_wrong_derivative(runs: dict[str, Run], seed: int) -> None:
    run = runs[f"right {seed}"]
    assert [line.split() for line in run.plain.splitlines()[:-1]] == [[name, "right"] for name in RIGHT], run.plain
    run.check_healthy()


@each
@pytest.mark.parametrize("seed", SEEDS)
def test_each_wrong_one_is_told_beside_the_others(runs: dict[str, Run], seed: int) -> None:
    run = runs[f"wrong {seed}"]
    assert [line.split() for line in run.plain.splitlines()[:-1]] == [[name, "wrong"] for name in WRONG], run.plain
    marked = [number for number, line in enumerate(run.program.lstrip().splitlines(), 1) if "# WRONG" in line]
    found = {each["cause"]["line"]: (each["kind"], each["severity"]) for each in run.above_notes()}
    assert found == dict.fromkeys(marked, ("wrong-derivative", "error")), str(run)


@each
@pytest.mark.parametrize("name", WRONG)
def test_the_line_and_the_precision(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("wrong-derivative")
    assert first["severity"] == "error" and first["cause"]["line"] == line_of(runs[name].program), first
    assert any("its own precision" in line for line in first["evidence"]), first["evidence"]

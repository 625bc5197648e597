"""Parameters that steps take out of the range of a logarithm or a root; and others whose operand is below it for
another reason. Witness: the program prints the parameter where the loss is NaN."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, named

HEAD = {
    "torch": """
import torch
from torch import nn
torch.manual_seed(0)
Module, noise = nn.Module, torch.randn
def sgd(module, rate):
    return torch.optim.SGD(module.parameters(), lr=rate)
def clear(optimizer):
    optimizer.zero_grad()
def parameter(module, value):
    return nn.Parameter(torch.full((3,), value))
def matrix(module, spread):
    return nn.Parameter(torch.randn(16, 16) * spread)
def normal_(weight, spread):
    nn.init.normal_(weight, 0.0, spread)
""",
    "paddle": """
import paddle
from paddle import nn
paddle.seed(0)
Module, noise = nn.Layer, lambda *shape: paddle.randn(shape)
def sgd(module, rate):
    return paddle.optimizer.SGD(rate, parameters=module.parameters())
def clear(optimizer):
    optimizer.clear_grad()
def parameter(module, value):
    return module.create_parameter([3], default_initializer=nn.initializer.Constant(value))
def matrix(module, spread):
    return module.create_parameter([16, 16], default_initializer=nn.initializer.Normal(0.0, spread))
def normal_(weight, spread):
    nn.initializer.Normal(0.0, spread)(weight)
""",
}

LOOP = """
class Net(Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)
INIT
    def forward(self, x):
BODY
net = Net()
optimizer = sgd(net, 0.2)
for _ in range(30):
    clear(optimizer)
    loss = net(noise(8, 4))
    if loss.isnan().item():
        print("left", [round(float(each), 3) for each in SHOWN])
        break
    loss.backward()
    optimizer.step()
else:
    raise SystemExit("no NaN")
loss.backward()
"""


def _program(init: str, body: str, shown: str = "net.scale") -> str:
    text = LOOP.replace("INIT", f"        {init}").replace("SHOWN", shown)
    return text.replace("BODY", "\n".join(" " * 8 + line for line in body.strip().splitlines()))


SCALE = "self.scale = parameter(self, 0.3)  # CAUSE"
BUGGY = {
    "a logarithm": _program(SCALE, """
return (self.scale.log() * 0.1).sum() + (self.scale * 2).sum() + 0 * self.body(x).mean()
"""),
    "behind a product": _program(SCALE, """
mean = nn.functional.softplus(self.body(x)) + 0.1
return ((self.scale * mean).log().mean() * 0.01) + self.scale.sum()
"""),
    "a root": _program(SCALE, """
return (self.scale + 1e-6).sqrt().sum() + self.scale.sum() + 0 * self.body(x).mean()
"""),
}  # fmt: skip
# Before the first step: 4 times as large each time, and of a usual size, of inputs that are too large.
REPEATED = """
class Net(Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 16)
        self.again = matrix(self, SPREAD)  # MATRIX
    def forward(self, x):
        h = self.body(x)
        for _ in range(80):
            h = h.matmul(self.again)  # PRODUCT
        return h.mean()
net = Net()
optimizer = sgd(net, 0.1)
loss = net(noise(8, 4) * SIZE)
print("finite", bool(loss.isfinite().item()))
loss.backward()
optimizer.step()
"""
LARGE = REPEATED.replace("SPREAD", "1.5").replace("SIZE", "1.0").replace("MATRIX", "CAUSE")
USUAL = REPEATED.replace("SPREAD", "0.5").replace("SIZE", "1e37").replace("PRODUCT", "CAUSE")
# A layer of the framework's, which the program fills: the last line that does, and it alone.
FILLED = """
class Net(Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 16)
        self.again = nn.Linear(16, 16)
        self.other = nn.Linear(16, 1)
        FILL
    def forward(self, x):
        h = self.body(x)
        for _ in range(80):
            h = self.again(h)
        return self.other(h).mean()
net = Net()
AFTER
optimizer = sgd(net, 0.1)
loss = net(noise(8, 4))
print("finite", bool(loss.isfinite().item()), "large", float(net.again.weight.norm()) > 4 * 4)
loss.backward()
optimizer.step()
"""


def filled(fill: str = "", after: str = "") -> str:
    return FILLED.replace("FILL", fill.replace("\n", "\n        ")).replace("AFTER", after)


TORCH_FILLS = {
    "by init": filled("nn.init.normal_(self.again.weight, 0.0, 1.5)  # CAUSE"),
    "by init, of several": filled("nn.init.normal_(self.again.weight, 0.0, 0.1)\nnn.init.normal_(self.other.weight)\n"
                                  "nn.init.uniform_(self.again.weight, -3, 3)  # CAUSE\n"
                                  "nn.init.zeros_(self.again.bias)"),
    "by its data": filled("self.again.weight.data.normal_(0, 2)  # CAUSE"),
    "by init, of its data": filled("nn.init.normal_(self.again.weight.data, std=2)  # CAUSE"),
    "without gradients": filled("with torch.no_grad():\n    self.again.weight.mul_(30.0)  # CAUSE"),
    "from outside": filled(after="net.again.weight.data.normal_(0, 2)  # CAUSE"),
    "by a function of the program's": filled("normal_(self.again.weight, 1.5)  # CAUSE"),
    "on several lines": filled("nn.init.normal_(  # CAUSE\n    self.again.weight,\n    std=2.0,\n)"),
    "by apply": filled(after="""
def init(module):
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=1.5)  # CAUSE
net.apply(init)
"""),
}  # fmt: skip
PADDLE_FILLS = {
    "by an initializer": filled("nn.initializer.Normal(0.0, 1.5)(self.again.weight)  # CAUSE"),
    "by set_value": filled("self.again.weight.set_value(paddle.randn([16, 16]) * 2)  # CAUSE"),
    "by its own call": filled("with paddle.no_grad():\n    self.again.weight.normal_(0.0, 2.0)  # CAUSE"),
    "by an attribute": FILLED.replace("        FILL\n", "")
    .replace("AFTER\n", "")
    .replace(
        "self.again = nn.Linear(16, 16)",
        "self.again = nn.Linear(16, 16, weight_attr=nn.initializer.Normal(0.0, 2.0))  # CAUSE",
    ),
}
FILLS = {"torch": TORCH_FILLS, "paddle": PADDLE_FILLS}
FAULTS = {
    # FAULT: the line that makes the layer is named.
    "by a function of the program's": "the weight is an argument of a function of the program's",
    "by apply": "the weight has another name in a function for all layers",
    "by an initializer": "an initializer of Paddle's is called with the weight",
    "by set_value": "what set_value writes is not looked for",
}
# The operand is a sum that may be below 0 whatever its parts are.
OTHER = _program(
    "self.scale = parameter(self, -0.1)",
    """
return (self.body(x) + self.scale + 2.0).log().mean() + self.body(x).mean()  # CAUSE
""",
)
MORE = {"a sum": OTHER, "large": LARGE, "usual": USUAL}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    more = {f"filled, {name}": text for name, text in FILLS[request.param].items()}
    texts = {name: HEAD[request.param] + text for name, text in (BUGGY | MORE | more).items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"numbers-unconstrained-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_what_gives_the_parameter_is_the_line(runs: dict[str, Run], name: str) -> None:
    run = runs[name]
    assert "left [-" in run.plain, run.plain
    first = run.check_first("nonfinite")
    assert any("scale" in each and "by the optimizer's steps" in each for each in first["evidence"]), first


@each
def test_a_sum_is_no_parameter_s(runs: dict[str, Run]) -> None:
    first = runs["a sum"].check_first("nonfinite")
    assert not any("by the optimizer's steps" in each for each in first["evidence"]), first


@each
@pytest.mark.parametrize("name", ["large", "usual"])
def test_a_matrix_that_was_initialised_large(runs: dict[str, Run], name: str) -> None:
    run = runs[name]
    assert "finite False" in run.plain, run.plain
    told = any("as it was initialised" in each for each in run.check_first("nonfinite")["evidence"])
    assert told == (name == "large"), run


def check_filled(run: Run) -> None:
    assert "finite False large True\n" in run.plain, run.plain
    first = run.check_first("nonfinite")
    assert any("again.weight" in each and "as it was initialised" in each for each in first["evidence"]), first


@pytest.mark.parametrize("runs", [cases["torch"]], indirect=True)
@named(TORCH_FILLS, FAULTS)
def test_the_line_that_fills_a_layer(runs: dict[str, Run], name: str) -> None:
    check_filled(runs[f"filled, {name}"])


@pytest.mark.parametrize("runs", [cases["paddle"]], indirect=True)
@named(PADDLE_FILLS, FAULTS)
def test_the_line_that_fills_a_layer_of_paddle(runs: dict[str, Run], name: str) -> None:
    check_filled(runs[f"filled, {name}"])

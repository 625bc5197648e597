"""Straight-through estimators: the wrong way round, in several shapes, and the right ones. Witness: the gradient that
the program prints of what is rounded."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as framework
from torch import nn
from torch.nn import functional as F
framework.manual_seed(0)
Module = nn.Module
def noise(*shape):
    return framework.randn(*shape)
def own(*shape):
    return nn.Parameter(framework.randn(*shape) * 0.5)
def adam(net):
    return framework.optim.Adam(net.parameters(), 0.01)
def clear(rule):
    rule.zero_grad()
def floats(value):
    return value.float()
""",
    "paddle": """
import paddle as framework
from paddle import nn
from paddle.nn import functional as F
framework.seed(0)
Module = nn.Layer
def noise(*shape):
    return framework.randn(shape)
def own(*shape):
    return framework.create_parameter(list(shape), "float32", default_initializer=nn.initializer.Normal(0.0, 0.5))
def adam(net):
    return framework.optimizer.Adam(0.01, parameters=net.parameters())
def clear(rule):
    rule.clear_grad()
def floats(value):
    return value.astype("float32")
""",
}
BODY = """
class Net(Module):
    def __init__(self):
        super().__init__()
        self.weight, self.codes = own(6, 8), own(8, 8)
        self.head = nn.Linear(8, 1)
    def forward(self, x):
        w = self.weight
HOW
        return self.head(framework.tanh(h))
net = Net()
rule = adam(net)
for step in range(10):
    x = noise(16, 6)
    loss = (net(x) - x.sum(1).reshape([16, 1])).square().mean()
    clear(rule)
    loss.backward()
    if step == 9:
        print("gradient", net.weight.grad is not None and float(net.weight.grad.abs().sum()) > 0)
    rule.step()
"""


def program(how: str) -> str:
    return BODY.replace("HOW", "\n".join(" " * 8 + line for line in how.strip().splitlines()))


LINEAR = """
q = framework.round(w * 4) / 4
SUM
h = x @ used
"""
PLAIN = program(LINEAR.replace("SUM", "used = q + (w - q).detach()  # CAUSE"))
TURNED = program(LINEAR.replace("SUM", "used = (w - q).detach() + q  # CAUSE"))
MINUS = program(LINEAR.replace("SUM", "difference = (q - w).detach()\nused = q - difference  # CAUSE"))
THREE = program(LINEAR.replace("SUM", "rest = w.detach() - q.detach()\nused = rest + q  # CAUSE"))
UNRECORDED = program(
    LINEAR.replace("SUM", "with framework.no_grad():\n    rest = w - q\nused = framework.add(q, rest)  # CAUSE")
)
# A sign, of what is computed.
SIGN = program("""
h = x @ w
bits = framework.sign(h)
h = bits + (h - bits).detach()  # CAUSE
""")
# One-hot classes have no gradient at all.
HARD = program("""
soft = F.softmax(x @ w, -1)
hard = floats(F.one_hot(soft.argmax(-1), 8))
h = hard + (soft - hard).detach()  # CAUSE
""")
# Rows of a table, which get theirs.
CODES = program("""
z = x @ w
near = (z.detach().unsqueeze(1) - self.codes.unsqueeze(0)).square().sum(-1).argmin(-1)
found = F.embedding(near, self.codes)
h = found + (z - found).detach()  # CAUSE
""")
ZEROS = {"plain": PLAIN, "turned": TURNED, "minus": MINUS, "three": THREE, "unrecorded": UNRECORDED, "sign": SIGN}
NONE = {"hard": HARD}
# No sum is to blame where there is none: the rounding itself is.
ALONE = program("q = framework.round(w * 4) / 4  # CAUSE\nh = x @ (q + 0.1 * noise(6, 8))")
# The codebook loss detaches the codes; how the nearest one is found is no cut, which an index has in any case.
BOOK = program("""
with framework.no_grad():
    near = (w.unsqueeze(1) - self.codes.unsqueeze(0)).square().sum(-1).argmin(-1)
picked = self.codes[near]
book = (picked.detach() - w).square().mean()  # CAUSE
self.extra = book + 0.25 * (w - picked.detach()).square().mean()
h = framework.matmul(x, w + (picked - w).detach())
""").replace("(net(x) - x.sum(1).reshape([16, 1])).square().mean()", "net(x).square().mean() + net.extra")
BOOKS = {"codebook": BOOK, "codebook in sight": BOOK.replace("with framework.no_grad():", "if True:")}
BOOK_RIGHT = BOOK.replace("(picked.detach() - w).square().mean()  # CAUSE", "(picked - w.detach()).square().mean()")
HEALTHY = {
    "right codebook": BOOK_RIGHT,
    "right": program(LINEAR.replace("SUM", "used = w + (q - w).detach()")),
    "right in three": program(LINEAR.replace("SUM", "used = q.detach() - w.detach() + w")),
    "right one-hot": program("""
soft = F.softmax(x @ w, -1)
hard = floats(F.one_hot(soft.argmax(-1), 8))
h = hard - soft.detach() + soft + 0 * self.codes.sum()
"""),
    # Both: the codes learn by the rows that are found, the weights past them.
    "codes": program("""
z = x @ w
near = (z.detach().unsqueeze(1) - self.codes.unsqueeze(0)).square().sum(-1).argmin(-1)
found = F.embedding(near, self.codes)
h = z + (found - z).detach() + 0.1 * found
"""),
    # What is rounded is used beside it.
    "beside": program("""
h = x @ w
q = framework.round(h)
h = q + (h - q).detach() + 0.1 * h
"""),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {**ZEROS, **NONE, **BOOKS, **HEALTHY, "codes lost": CODES, "alone": ALONE}
    unused = ", self.codes = own(6, 8), own(8, 8)"
    texts = {name: text if text.count("self.codes") > 1 else text.replace(unused, " = own(6, 8)")
             for name, text in texts.items()}  # fmt: skip
    texts = {name: HEAD[request.param] + text for name, text in texts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"graphs-straight-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", ZEROS)
def test_what_is_rounded_gets_the_gradient(runs: dict[str, Run], name: str) -> None:
    assert "gradient False" in runs[name].plain
    assert "the wrong way round" in runs[name].check_first("rounded-gradient")["message"]
    assert len(runs[name].above_notes()) == 1, str(runs[name])


@each
@pytest.mark.parametrize("name", [*NONE, "codes lost"])
def test_what_is_picked_gets_the_gradient(runs: dict[str, Run], name: str) -> None:
    assert "gradient False" in runs[name].plain
    assert "the wrong way round" in runs[name].check_first("no-gradient")["message"]


@each
@pytest.mark.parametrize("name", BOOKS)
def test_the_loss_that_leaves_out_its_codes(runs: dict[str, Run], name: str) -> None:
    assert "detach() cuts it off" in runs[name].check_first("no-gradient")["message"]


@each
def test_the_rounding_alone(runs: dict[str, Run]) -> None:
    assert "has derivative 0" in runs["alone"].check_first("rounded-gradient")["message"]


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_the_gradient_goes_past_it(runs: dict[str, Run], name: str) -> None:
    assert "gradient True" in runs[name].plain
    runs[name].check_healthy()

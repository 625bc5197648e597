"""All pairs that are meant, picks from another axis that are meant, a write that no gradient minds, probabilities that
a loss is meant to get; beside the mistakes that look like them."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
noise, ones, conv = torch.randn, torch.ones, nn.Conv2d
def sgd(*modules):
    return torch.optim.SGD([each for module in modules for each in module.parameters()], 0.05)
def pick(x, index, axis):
    return x.gather(axis, index)
def best(x, count):
    return x.detach().topk(count, dim=0)[1]
""",
    "paddle": """
import paddle
from paddle import nn
from paddle.nn import functional as F
paddle.seed(0)
noise, ones = lambda *shape: paddle.randn(shape), lambda *shape: paddle.ones(shape)
conv = nn.Conv2D
def sgd(*modules):
    return paddle.optimizer.SGD(0.05, parameters=[each for module in modules for each in module.parameters()])
def pick(x, index, axis):
    return paddle.take_along_axis(x, index, axis)
def best(x, count):
    return x.detach().topk(count, axis=0)[1]
""",
}
LOOP = """
net, other = nn.Linear(4, 1), nn.Linear(4, 1)
opt = sgd(net, other)
for step in range(3):
    x = noise(6, 4)
    one, two, target = net(x), other(x), x.sum(1)
    loss = LOSS
    loss = loss + 0.1 * two.square().mean()
    loss.backward()
    opt.step()
    opt.CLEAR()
"""


def loss(text: str, before: str = "", cause: str = "  # CAUSE") -> str:
    return LOOP.replace("LOSS", text + cause).replace("    loss =", f"{before}    loss =")


SQUARED = loss("((one - target) ** 2).mean()")
PAIRED = loss("F.mse_loss(one, target)")
# As an advantage of one shape weighs log-probabilities of another.
WEIGHED = loss("-(F.log_sigmoid(one) * target).mean()").replace("F.log_sigmoid", "F.softplus")
# A number of each sample as a column of more axes: [6, 1, 1] and [6] give [6, 1, 6].
DEEP = loss("(noise(6, 1, 1).abs() * squares).mean()", "    squares = (one.squeeze(1) - target) ** 2\n")
COLUMN = loss("(column - one.squeeze(1)).abs().mean()", "    column = target.unsqueeze(1)\n")
MEANT = {
    "energy": loss("(one[:, 0].unsqueeze(1) - target).abs().mean()", "", ""),
    "outer": loss("((one * target - noise(6, 6)) ** 2).mean()", "", ""),
    "margins": loss("((one - target) - (target.unsqueeze(1) - target)).abs().mean()", "", ""),
}
RANKED = loss("F.softplus(two.squeeze(1) - one).mean()")

ROUTED = """
gate, expert, head = nn.Linear(4, 3), nn.Linear(4, 4), nn.Linear(4, 1)
opt = sgd(gate, expert, head)
for step in range(3):
    x = noise(8, 4)
    scores = F.softmax(gate(x), -1)  # CAUSE
    chosen = best(scores, 2)
    weights = pick(scores, chosen, 0)
    loss = (head(expert(x)).mean() + weights.square().mean()).square()
    loss.backward()
    opt.step()
    opt.CLEAR()
"""

# A norm that is bounded between forward and backward: of a first layer, whose weight no gradient needs.
BOUNDED = """
first, second = conv(2, 3, 3), conv(3, 1, 3)
opt = sgd(first, second)
for step in range(3):
    loss = second(first(noise(4, 2, 8, 8)).tanh()).square().mean()
    WRITE  # CAUSE
    loss.backward()
    opt.step()
    opt.CLEAR()
"""
OF_FIRST = BOUNDED.replace("WRITE", "WEIGHT(first)")
OF_SECOND = BOUNDED.replace("WRITE", "WEIGHT(second)")

# Scores of three classes at five places, brought to the shape that the loss wants.
TAGGED = """
net = nn.Linear(4, 3)
opt = sgd(net)
for step in range(3):
    x = noise(6, 5, 4)
    tags = x[:, :, :3].argmax(-1)
    loss = F.cross_entropy(SHAPED, tagsALONG)  # CAUSE
    loss.backward()
    opt.step()
    opt.CLEAR()
"""
RESHAPED = TAGGED.replace("SHAPED", "net(x).reshape([6, 3, 5])")
LOGARITHMS = TAGGED.replace("F.cross_entropy(SHAPED, tagsALONG)", "F.nll_loss(F.log_softmax(rows, 1), tags)").replace(
    "    loss =", "    rows = net(x).reshape([6, 3, 5])  # CAUSE\n    loss ="
).replace("tags)  # CAUSE", "tags)")  # fmt: skip
TURNED = {
    "transposed": TAGGED.replace("SHAPED", "net(x).TURN"),
    "folded": TAGGED.replace("SHAPED, tagsALONG", "net(x).reshape([30, 3]), tags.flatten()"),
    # A layer that gives all places of one class side by side, and rows that change places with their targets.
    "wide": TAGGED.replace("Linear(4, 3)", "Linear(20, 15)").replace(
        "SHAPED", "net(x.flatten(1)).reshape([6, 5, 3]).reshape([6, 3, 5])"
    ),
    "rows": TAGGED.replace("SHAPED, tagsALONG", "net(x).reshape([5, 6, 3])[:, 0], tags.reshape([5, 6])[:, 0]"),
}

ABSOLUTE = """
net = nn.Linear(4, 3)
opt = sgd(net)
for step in range(3):
    x = noise(8, 4)
    loss = 1 + F.nll_loss(F.softmax(net(x), 1), x[:, :3].argmax(1))  # CAUSE
    loss.backward()
    opt.step()
    opt.CLEAR()
"""

BUGGY = {
    "loss-broadcast": ("error", SQUARED), "loss-broadcast, paired": ("error", PAIRED),
    "wrong-axis, reshaped": ("error", RESHAPED), "wrong-axis, logarithms": ("error", LOGARITHMS),
    "loss-broadcast, weighed": ("warning", WEIGHED), "loss-broadcast, deep": ("warning", DEEP),
    "loss-broadcast, column": ("warning", COLUMN),
    "silent-overwrite": ("error", OF_SECOND), "loss-input": ("warning", ABSOLUTE),
}  # fmt: skip
NOTES = {"loss-broadcast, ranked": RANKED, "wrong-axis": ROUTED}
HEALTHY = MEANT | TURNED | {"bounded": OF_FIRST}
WORDS = {
    "torch": {"CLEAR": "zero_grad", "ALONG": "", "TURN": "transpose(1, 2)",
              "WEIGHT(first)": "first.weight.data.mul_(0.5)",
              "WEIGHT(second)": "second.weight.data.mul_(0.5)"},
    "paddle": {"CLEAR": "clear_grad", "ALONG": ", axis=1", "TURN": "transpose([0, 2, 1])",
               "WEIGHT(first)": "first.weight.set_value(first.weight * 0.5)",
               "WEIGHT(second)": "second.weight.set_value(second.weight * 0.5)"},
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    framework = request.param
    programs = {name: text for name, (_, text) in BUGGY.items()} | NOTES | HEALTHY
    for word, meant in WORDS[framework].items():
        programs = {name: text.replace(word, meant) for name, text in programs.items()}
    texts = {name: HEAD[framework] + text for name, text in programs.items()}
    return diagnose_each(framework, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"graphs-pairs-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_mistakes_are_still_told(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first(name.partition(",")[0])
    assert first["severity"] == BUGGY[name][0], first
    if first["severity"] == "warning":
        assert first["confidence"] <= 0.7 and "meant" in " ".join([first["message"], *first["evidence"]]), first


@each
@pytest.mark.parametrize("name", NOTES)
def test_what_cannot_be_told_apart_is_a_note(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first(name.partition(",")[0])
    assert first["severity"] == "note" and first["confidence"] < 0.5 and "decides it" in first["evidence"][-1], first


@each
def test_what_is_meant_is_no_finding(runs: dict[str, Run]) -> None:
    for name in HEALTHY:
        runs[name].check_healthy()

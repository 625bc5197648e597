"""A reshape to rows as long as there are channels, of what has its channels in front of its positions; and what looks
like it."""

from __future__ import annotations

import re

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
noise = torch.randn
def sgd(*modules):
    return torch.optim.SGD([each for module in modules for each in module.parameters()], 0.05)
def turned(x, *order):
    return x.permute(order)
def clear(opt):
    opt.zero_grad()
conv1, conv2, norm = nn.Conv1d, nn.Conv2d, nn.BatchNorm2d
""",
    "paddle": """
import paddle
from paddle import nn
from paddle.nn import functional as F
paddle.seed(0)
noise = lambda *shape: paddle.randn(shape)
def sgd(*modules):
    return paddle.optimizer.SGD(0.05, parameters=[each for module in modules for each in module.parameters()])
def turned(x, *order):
    return x.transpose(list(order))
def clear(opt):
    opt.clear_grad()
conv1, conv2, norm = nn.Conv1D, nn.Conv2D, nn.BatchNorm2D
""",
}
MADE = {
    "many": "conv2(3, 12, 3, padding=1)",
    "image": "conv2(3, 5, 3, padding=1)", "tokens": "conv1(4, 6, 3, padding=1)", "one": "conv2(3, 1, 3, padding=1)",
    "bn": "norm(5)", "out": "nn.Linear(5, 3)", "long": "nn.Linear(63, 3)", "wide": "nn.Linear(5 * 7 * 9, 3)",
}  # fmt: skip
LOOP = """
LAYERS
for step in range(4):
    x, words = noise(8, 3, 7, 9), noise(8, 4, 10)
    colours, kinds, y = x.argmax(1), words.argmax(1), x.mean([2, 3]).argmax(-1)
BODY
    loss.backward()
    opt.step()
    clear(opt)
"""


def program(body: str) -> str:
    used = [name for name in MADE if re.search(rf"\b{name}\(", body)]
    layers = [f"{name} = {MADE[name]}" for name in used] + [f"opt = sgd({', '.join(used)})"]
    return LOOP.replace("LAYERS", "\n".join(layers)).replace(
        "BODY", "\n".join("    " + line for line in body.strip().splitlines())
    )


LOSSES = {
    "pixels": program("""
scores = image(x)
rows = scores.reshape([-1, scores.shape[1]])  # CAUSE
loss = F.cross_entropy(rows, colours.reshape([-1]))
"""),
    "tokens": program("""
scores = F.relu(tokens(words)) * 2.0
rows = scores.reshape([-1, 6])  # CAUSE
loss = F.cross_entropy(rows, kinds.flatten())
"""),
    "rows that are counted": program("""
rows = bn(image(x)).reshape([8 * 63, 5])  # CAUSE
loss = F.cross_entropy(F.dropout(rows, 0.1), colours.reshape([-1]))
"""),
}
LAYERS = {
    "a linear layer": program("""
seen = F.relu(bn(image(x)))
rows = seen.reshape([8, -1, 5])  # CAUSE
loss = F.cross_entropy(out(rows).mean(1), y)
"""),
    "a softmax": program("""
rows = image(x).flatten(2).reshape([-1, 5])  # CAUSE
loss = (F.softmax(rows, -1)[:, 0] - noise(8 * 63)).square().mean()
"""),
}
# Several numbers for each of several anchors, which are picked by place.
PARTS = {
    "anchors": program("""
found = many(x).reshape([8, -1, 4])  # CAUSE
loss = (found[..., 0] - 1).square().mean() + (found[..., 1:] - 0.5).square().mean()
"""),
}
HEALTHY = {
    "anchors, moved": program("""
found = turned(many(x), 0, 2, 3, 1).reshape([8, -1, 4])
loss = (found[..., 0] - 1).square().mean() + (found[..., 1:] - 0.5).square().mean()
"""),
    "anchors apart": program("""
found = many(x).reshape([8, 3, 4, 63])
loss = (found[:, :, 0] - 1).square().mean() + (found[:, :, 1:] - 0.5).square().mean()
"""),
    "moved": program("""
loss = F.cross_entropy(turned(image(x), 0, 2, 3, 1).reshape([-1, 5]), colours.reshape([-1]))
loss = loss + F.cross_entropy(turned(tokens(words), 0, 2, 1).reshape([-1, 6]), kinds.reshape([-1]))
loss = loss + F.cross_entropy(turned(image(x).flatten(2), 0, 2, 1).reshape([-1, 5]), colours.reshape([-1]))
"""),
    "flat": program("""
loss = F.cross_entropy(wide(image(x).flatten(1)), y) + image(x).square().mean()
"""),
    "one channel": program("""
scores = one(x)
loss = (F.sigmoid(scores.reshape([-1, 1])) - 0.5).square().mean() + F.cross_entropy(scores.reshape([8, -1]), y)
"""),
    "each channel": program("""
seen = image(x)
maps = F.softmax(seen.reshape([8, 5, -1]), -1).sum(1)
maps = maps + F.softmax(seen.reshape([8 * 5, 63]), -1).reshape([8, 5, 63])[:, 0]
square = seen[:, :, :5, :5]
loss = F.cross_entropy(long(maps), y) + F.cross_entropy(out(square.reshape([-1, 5])).reshape([8, -1, 3]).mean(1), y)
"""),
    "one position": program("""
seen = F.relu(image(x)).mean([2, 3], keepdim=True)
loss = F.cross_entropy(out(image(x)[:, :, :1, :1].reshape([-1, 5])), y) + F.cross_entropy(out(seen.reshape([-1, 5])), y)
"""),
    "groups, and shuffled": program("""
seen = tokens(words)
groups = seen.reshape([8 * 2, -1])
normal = ((groups - groups.mean(-1, keepdim=True)) / (groups.std(-1, keepdim=True) + 1e-5)).reshape([8, 6, 10])
mixed = turned(normal.reshape([8, 2, 3, 10]), 0, 2, 1, 3).reshape([8, 6, 10])
loss = F.cross_entropy(turned(mixed, 0, 2, 1).reshape([-1, 6]), kinds.reshape([-1]))
"""),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: HEAD[request.param] + text for name, text in (LOSSES | LAYERS | PARTS | HEALTHY).items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"axes-rows-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", LOSSES | LAYERS)
def test_rows_of_several_positions(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("wrong-axis")
    assert first["severity"] == ("error" if name in LOSSES else "warning"), first
    assert "of one position has several positions in it" in first["message"], first
    assert "positions of channel 0" in first["evidence"][1], first


@each
def test_numbers_of_several_anchors(runs: dict[str, Run]) -> None:
    first = runs["anchors"].check_first("wrong-axis")
    assert "are one channel at 4 positions" in first["message"], first


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_rows_of_one_position_or_channel(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()

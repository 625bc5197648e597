"""A reshape that puts channels where a convolution, or what comes behind one, wants them, and moves no element; and
what looks like it."""

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
def integers(most, *shape):
    return torch.randint(0, most, shape)
conv1, conv2, pool = nn.Conv1d, nn.Conv2d, nn.MaxPool2d((7, 9))
recurrent = lambda one, other: nn.GRU(one, other, batch_first=True)
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
def integers(most, *shape):
    return paddle.randint(0, most, shape)
conv1, conv2, pool = nn.Conv1D, nn.Conv2D, nn.MaxPool2D((7, 9))
recurrent = lambda one, other: nn.GRU(one, other)
""",
}
LAYERS = {
    "conv": "conv1(4, 6, 3)", "image": "conv2(3, 6, 3)", "wide": "nn.Linear(5, 4)", "embed": "nn.Embedding(9, 4)",
    "out": "nn.Linear(6, 3)", "mid": "nn.Linear(4, 6)", "rnn": "recurrent(6, 6)",
    "deep": "nn.Linear(3, 6)",
}  # fmt: skip
LOOP = """
LAYERS
for step in range(5):
    x, pixels, words = noise(8, 10, 4), noise(8, 7, 9, 3), integers(9, 8, 10)
    y = x.mean(1)[:, :3].argmax(-1)
    colours = pixels.mean([1, 2]).argmax(-1)
BODY
    loss.backward()
    opt.step()
    clear(opt)
"""


def program(body: str) -> str:
    used = [name for name in LAYERS if re.search(rf"\b{name}\(", body)]
    layers = [f"{name} = {LAYERS[name]}" for name in used] + [f"opt = sgd({', '.join(used)})"]
    text = LOOP.replace("LAYERS", "\n".join(layers))
    return text.replace("BODY", "\n".join("    " + line for line in body.strip().splitlines()))


BUGGY = {
    "data": program("""
rows = x.reshape([8, 4, 10])  # CAUSE
loss = F.cross_entropy(out(F.relu(conv(rows)).mean(-1)), y)
"""),
    "pixels": program("""
planes = pixels.reshape([8, 3, 7, 9])  # CAUSE
loss = F.cross_entropy(out(F.relu(image(planes)).mean([2, 3])), colours)
"""),
    "words": program("""
seen = F.relu(embed(words))
rows = seen.reshape([8, 4, 10])  # CAUSE
loss = F.cross_entropy(out(conv(rows).mean(-1)), y)
"""),
    "a layer before": program("""
seen = F.relu(wide(noise(8, 10, 5)))
rows = seen.reshape([8, 4, 10]) * 0.5  # CAUSE
loss = F.cross_entropy(out(F.relu(conv(rows)).mean(-1)), y)
"""),
    "a layer behind": program("""
seen = F.relu(conv(turned(x, 0, 2, 1)))
rows = seen.reshape([8, 8, 6])  # CAUSE
loss = F.cross_entropy(out(rows).mean(1), y)
"""),
    "a recurrent layer behind": program("""
seen = F.relu(conv(turned(x, 0, 2, 1)))
rows = seen.reshape([8, 8, 6])  # CAUSE
loss = F.cross_entropy(out(rnn(rows)[0].mean(1)), y)
"""),
    "a pool behind": program("""
seen = deep(pixels)
planes = seen.reshape([8, 6, 7, 9])  # CAUSE
loss = F.cross_entropy(out(pool(planes).flatten(1)), colours)
"""),
}
HEALTHY = {
    "transposed": program("""
seen = F.relu(conv(turned(x, 0, 2, 1)))
loss = F.cross_entropy(out(rnn(turned(seen, 0, 2, 1))[0].mean(1)), y)
loss = loss + F.cross_entropy(out(image(turned(pixels, 0, 3, 1, 2)).mean([2, 3])), colours)
"""),
    # One long vector of each sample, in the order that the convolution wants.
    "flat": program("""
flat = noise(8, 40)
rows = flat.reshape([8, 10, 4]).reshape([8, 4, 10])
loss = F.cross_entropy(out(F.relu(conv(rows)).mean(-1)), flat.reshape([8, 4, 10]).mean(-1)[:, :3].argmax(-1))
"""),
    "noise alone": program("""
rows = noise(8, 10, 4).reshape([8, 4, 10])
loss = out(F.relu(conv(rows)).mean(-1)).square().mean()
"""),
    "an axis of one": program("""
grey = pixels.mean(-1, keepdim=True)
planes = grey.reshape([8, 1, 7, 9])
planes = planes + 0 * turned(pixels, 0, 3, 1, 2)
loss = F.cross_entropy(out(image(planes).mean([2, 3])), colours)
"""),
    "shuffled, and heads": program("""
seen = F.relu(conv(turned(x, 0, 2, 1)))
seen = turned(seen.reshape([8, 2, 3, 8]), 0, 2, 1, 3).reshape([8, 6, 8])
every = turned(seen, 0, 2, 1)
heads = turned(every.reshape([8, 8, 2, 3]), 0, 2, 1, 3)
merged = turned(heads, 0, 2, 1, 3).reshape([8, 8, 6])
loss = F.cross_entropy(out(merged).mean(1), y)
"""),
    "there and back": program("""
seen = mid(x)
loss = F.cross_entropy(out(F.relu(seen.reshape([8, 6, 10])).reshape([8, 10, 6])).mean(1), y)
"""),
    # A vector that a layer gives is laid out as the next one learns to take it.
    "a vector": program("""
rows = F.relu(mid(x.mean(1))).reshape([8, 2, 3]).reshape([8, 3, 2])
loss = F.cross_entropy(rows.mean(-1), y)
"""),
    "pixels shuffled": program("""
seen = F.relu(image(turned(pixels, 0, 3, 1, 2)))
parts = turned(seen.reshape([8, 6, 5, 7, 1, 1]), 0, 1, 2, 4, 3, 5).reshape([8, 6, 5, 7])
loss = F.cross_entropy(out(parts.mean([2, 3])), colours)
"""),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: HEAD[request.param] + text for name, text in (BUGGY | HEALTHY).items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"axes-channels-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_channels_that_are_put_together_of_several(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("wrong-axis")
    assert first["severity"] == "warning" and "use transpose" in first["message"], first
    assert "elements of one sample lie elsewhere" in first["evidence"][1], first


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_one_that_mixes_nothing(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()

"""Small integers that wrap around before they become floating point. Witness: the same in a wide type, which the
programs compute beside it and print."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as fw
from torch import nn
fw.manual_seed(0)
def pixels(*shape, kind="uint8", low=0, high=256):
    return fw.randint(low, high, shape).to(getattr(fw, kind))
def real(x):
    return x.float()
def wide(x):
    return x.long()
def made(net):
    return fw.optim.SGD(net.parameters(), 0.01), "zero_grad"
""",
    "paddle": """
import paddle as fw
from paddle import nn
fw.seed(0)
def pixels(*shape, kind="uint8", low=0, high=256):
    return fw.randint(low, high, shape).astype(kind)
def real(x):
    return x.astype("float32")
def wide(x):
    return x.astype("int64")
def made(net):
    return fw.optimizer.SGD(0.01, parameters=net.parameters()), "clear_grad"
""",
}
TRAIN = """
net = nn.Linear(8, 1)
scale = globals().get("scale", 255)
optimizer, clear = made(net)
for step in range(4):
    images = pixels(6, 8)
    rows, exact = prepared(images)
    print("wrapped", int((wide(rows) != wide(exact)).sum()) > 0)
    loss = net(real(rows).detach() / scale).square().mean()
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
"""
SHIFTED = """
def prepared(images):
    return images - 128, wide(images) - 128  # CAUSE
"""
BRIGHTER = """
class Brighter:
    def __init__(self, by):
        self.by = by
    def __call__(self, image):
        return (image + self.by).reshape([8])  # CAUSE
brighter = Brighter(60)
def prepared(images):
    return fw.stack([brighter(each) for each in images]), wide(images) + 60
"""
# A window of sound: 16 bits are not enough for the sum of two.
MIXED = """
scale = 32768
def prepared(images):
    one, other = pixels(6, 8, kind="int16", low=9000, high=32000), pixels(6, 8, kind="int16", low=9000, high=32000)
    mixed = one + other  # CAUSE
    return mixed.reshape([8, 6]).reshape([6, 8]), wide(one) + wide(other)
"""
WIDE = SHIFTED.replace("images - 128,", "wide(images) - 128,").replace("  # CAUSE", "")
# A hash of the rows, which stays an integer: a bucket that picks rows of a table.
HASHED = """
table = nn.Embedding(16, 8)
def prepared(images):
    codes = images + 200
    buckets = wide(codes) % 16
    return table(buckets[:, 0]).detach() * 100, table(buckets[:, 0]).detach() * 100
"""
# What is left out is 255; and hues, which go round.
LEFT_OUT = """
def prepared(images):
    labels = pixels(6, 8, high=6)
    return labels - 1, labels
"""
HUES = """
def prepared(images):
    hue = images + 100
    return hue, hue
"""
BUGGY = {"shifted": SHIFTED, "brighter": BRIGHTER, "mixed": MIXED}
FITS = """
def prepared(images):
    half = pixels(6, 8, high=100)
    return half + 100, wide(half) + 100
"""
HEALTHY = {"left out": LEFT_OUT, "hues": HUES, "in a wide type": WIDE, "it fits": FITS, "hashed": HASHED}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: HEAD[request.param] + text + TRAIN for name, text in {**BUGGY, **HEALTHY}.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"numbers-overflow-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_the_line_that_computes_in_the_small_type(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("integer-overflow")
    assert "wrapped True" in runs[name].plain and " became " in first["evidence"][0], str(runs[name])


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_wraps_or_it_stays_an_integer(runs: dict[str, Run], name: str) -> None:
    assert ("wrapped True" in runs[name].plain) == (name == "left out"), str(runs[name])
    runs[name].check_healthy()

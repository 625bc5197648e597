"""Numbers of a row that are picked by place, of what was reshaped with its channels still in front of its positions.
Witness: whether the picked numbers are those of one channel of the layer's result, by comparing them."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as fw
from torch import nn
fw.manual_seed(0)
randn, no_grad, conv = fw.randn, fw.no_grad, nn.Conv2d
def sgd(net):
    optimizer = fw.optim.SGD(net.parameters(), 0.05)
    return optimizer, optimizer.zero_grad
def turned(x, *order):
    return x.permute(order)
""",
    "paddle": """
import paddle as fw
from paddle import nn
fw.seed(0)
no_grad, conv = fw.no_grad, nn.Conv2D
def randn(*shape):
    return fw.randn(shape)
def sgd(net):
    optimizer = fw.optimizer.SGD(0.05, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
def turned(x, *order):
    return x.transpose(list(order))
""",
}
START = """
net = conv(3, CHANNELS, 3, padding=1)
optimizer, clear = sgd(net)
for at in range(4):
    x = randn(2, 3, 7, 11)
    seen = net(x)
    BODY
    loss = (first - 1).square().mean() + rest.abs().mean()
    loss.backward()
    optimizer.step()
    clear()
channels = [sorted(each.flatten().tolist()) for each in turned(seen, 1, 0, 2, 3)]
parts = [sorted(sum((channels[at] for at in range(of, len(channels), EVERY)), [])) for of in range(EVERY)]
print("one channel" if sorted(first.flatten().tolist()) in parts else "several channels")
"""


def program(*lines: str, channels: int = 5, every: int = 5) -> str:
    body = START.replace("BODY", "\n    ".join(lines)).replace("CHANNELS", str(channels))
    return body.replace("EVERY", str(every))


PICKS = ("first = rows[..., 0]", "rest = rows[..., 1:]")
BUGGY = {
    "rows of all channels": program("rows = seen.reshape([2, -1, 5])  # CAUSE", *PICKS),
    "rows of all samples": program("rows = seen.reshape([-1, 5])  # CAUSE", "first, rest = rows[:, 0], rows[:, 1:]"),
    "looked at first": program("rows = (seen * 2.0).reshape([2, 77, 5])  # CAUSE", "shown = rows.detach()", *PICKS)
    .replace("seen = net(x)", "seen = net(x)").replace("turned(seen,", "turned(seen * 2.0,"),
    "anchors": program("rows = seen.reshape([2, -1, 5])  # CAUSE", *PICKS, channels=15),
    "anchors, of all samples": program("rows = seen.reshape([-1, 6])  # CAUSE", "first, rest = rows[:, 0], rows[:, 2:]",
                                       channels=12, every=6),
}  # fmt: skip
HEALTHY = {
    "moved last": program("rows = turned(seen, 0, 2, 3, 1).reshape([2, -1, 5])", *PICKS),
    "moved last, of all samples": program("rows = turned(seen, 0, 2, 3, 1).reshape([-1, 5])",
                                          "first, rest = rows[:, 0], rows[:, 1:]"),
    "flattened, then moved": program("rows = turned(seen.reshape([2, 5, 77]), 0, 2, 1)", *PICKS),
    "channels in front": program("rows = seen.reshape([2, 5, -1])", "first, rest = rows[:, 0], rows[:, 1:]"),
    "anchors in front": program("rows = seen.reshape([2, 3, 5, 7, 11])",
                                "first, rest = rows[:, :, 0], rows[:, :, 1:]", channels=15),
    "anchors, moved last": program("rows = turned(seen, 0, 2, 3, 1).reshape([2, -1, 5])", *PICKS, channels=15),
    "anchors in front, moved last": program(
        "rows = turned(seen.reshape([2, 3, 5, 7, 11]), 0, 1, 3, 4, 2).reshape([2, -1, 5])", *PICKS, channels=15),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: HEAD[request.param] + part for name, part in {**BUGGY, **HEALTHY}.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"anchors-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_places_of_rows_that_mix_channels(runs: dict[str, Run], name: str) -> None:
    assert "several channels\n" in runs[name].plain, runs[name]
    first = runs[name].check_first("wrong-axis")
    assert first["severity"] != "note" and "moves no element" in first["message"], first


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_places_of_one_channel(runs: dict[str, Run], name: str) -> None:
    assert "one channel\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()

"""Where a gradient is cut off behind what only some ways lead through: rows that are written into a buffer, the pools
of one size of Paddle, which make another tensor of the same node. Witness: the framework's own ``.grad`` is None."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import numpy as np
import torch as fw
from torch import nn
import torch.nn.functional as F
fw.manual_seed(0)
randn, zeros, tensor = fw.randn, fw.zeros, fw.as_tensor
pool, flat = nn.AdaptiveAvgPool1d(1), nn.Flatten()
conv = nn.Conv1d(1, 4, 3)
def sgd(*nets):
    optimizer = fw.optim.SGD([each for net in nets for each in net.parameters()], 0.1)
    return optimizer, optimizer.zero_grad
""",
    "paddle": """
import numpy as np
import paddle as fw
from paddle import nn
import paddle.nn.functional as F
fw.seed(0)
def randn(*shape):
    return fw.randn(shape)
def zeros(*shape):
    return fw.zeros(shape)
tensor = fw.to_tensor
pool, flat = nn.AdaptiveAvgPool1D(1), nn.Flatten()
conv = nn.Conv1D(1, 4, 3)
def sgd(*nets):
    optimizer = fw.optimizer.SGD(0.1, parameters=[each for net in nets for each in net.parameters()])
    return optimizer, optimizer.clear_grad
""",
}
BODY = """
first, last = nn.Linear(6, 4), nn.Linear(4, 1)
optimizer, clear = sgd(first, conv, last)
for at in range(12):
    x = randn(8, 6)
    LINES
    loss = (last(h) - x.sum(1, keepdim=True)).square().mean()
    if at == 11:
        print("cut:", [(each.grad is None) for each in (NET.weight, last.weight)])
        break
    loss.backward()
    optimizer.step()
    clear()
"""


def program(*lines: str, net: str = "first") -> str:
    body = BODY.replace("LINES", "\n    ".join(lines)).replace("NET", net)
    # the gradients are looked at before they are cleared
    return body.replace("    clear()\n", "    if at < 10:\n        clear()\n")


BUGGY = {
    "rows of a buffer": program("made = first(x)", "shown = float(made.detach().sum())", "h = zeros(8, 4)",
                                "for row in range(8):", "    h[row] = made[row].detach()  # CAUSE"),
    "a part of a buffer": program("made = first(x)", "shown = float(made.detach().sum())", "h = zeros(8, 4)",
                                  "h[:, :] = made.detach()  # CAUSE"),
    "NumPy behind a pool": program("made = flat(pool(F.relu(conv(x.unsqueeze(1)))))",
                                   "h = made.NUMBERS  # CAUSE",
                                   "h = tensor(h - h.mean(1, keepdims=True))", net="conv"),
    "a cut behind a pool": program("made = flat(pool(F.relu(conv(x.unsqueeze(1)))))", "h = made.detach()  # CAUSE",
                                   net="conv"),
}  # fmt: skip
HEALTHY = {
    "rows of a buffer": program("made = first(x)", "shown = float(made.detach().sum())", "h = zeros(8, 4)",
                                "for row in range(8):", "    h[row] = made[row]"),
    "behind a pool": program("h = flat(pool(F.relu(conv(x.unsqueeze(1)))))", "shown = h.NUMBERS.sum()", net="conv"),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = {f"buggy, {name}": part for name, part in BUGGY.items()} | HEALTHY
    texts = {}
    for name, part in parts.items():
        used = "sgd(conv, last)" if "conv(" in part.partition("for at")[2] else "sgd(first, last)"
        texts[name] = HEAD[request.param] + part.replace("sgd(first, conv, last)", used).replace(
            "NUMBERS", {"torch": "detach().numpy()", "paddle": "numpy()"}[request.param]
        )
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"followed-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_the_line_that_cuts_it_off(runs: dict[str, Run], name: str) -> None:
    run = runs[f"buggy, {name}"]
    assert "cut: [True, False]\n" in run.plain, run
    first = run.check_first("no-gradient")
    assert first["severity"] == "error", first


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_not_cut_off(runs: dict[str, Run], name: str) -> None:
    assert "cut: [False, False]\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()

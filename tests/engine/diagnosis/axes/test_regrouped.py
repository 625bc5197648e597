"""A reshape of rows, channels and places to steps in front, in front of what goes along these steps: no transpose; and
what looks so. Witness: whether what a row of the result has is of one row of what was reshaped."""

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
Module = nn.Module
noise = torch.randn
def sgd(*modules):
    return torch.optim.SGD([each for module in modules for each in module.parameters()], 0.05)
def turn(x, *order):
    return x.permute(*order)
def clear(opt):
    opt.zero_grad()
def front(kind, inner, outer):
    return getattr(nn, kind)(inner, outer)
conv, flat_conv = nn.Conv2d, nn.Conv1d
""",
    "paddle": """
import paddle
from paddle import nn
from paddle.nn import functional as F
paddle.seed(0)
Module = nn.Layer
noise = lambda *shape: paddle.randn(shape)
def sgd(*modules):
    return paddle.optimizer.SGD(0.05, parameters=[each for module in modules for each in module.parameters()])
def turn(x, *order):
    return x.transpose(order)
def clear(opt):
    opt.clear_grad()
def front(kind, inner, outer):
    return getattr(nn, kind)(inner, outer, time_major=True)
conv, flat_conv = nn.Conv2D, nn.Conv1D
""",
}
LOOP = """
MODULES
opt = sgd(USED)
for count in (ROWS):
    x = noise(count, SHAPE)
    y = x.reshape([count, -1])[:, :4].argmax(-1)
BODY
    loss.backward()
    opt.step()
    clear(opt)
"""
KNOWN = {
    "maps": "conv(1, 3, 3, padding=1)", "lines": "flat_conv(2, 4, 3, padding=1)", "gru": 'front("GRU", 12, 8)',
    "small": 'front("LSTM", 4, 8)', "one": 'front("GRU", 1, 8)', "cell": "nn.Linear(3, 8)", "out": "nn.Linear(8, 4)",
}  # fmt: skip


def program(body: str, shape: str = "1, 4, 5", rows: str = "6, 6, 6") -> str:
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    used = [name for name in KNOWN if f"{name}(" in body]
    modules = "\n".join(f"{name} = {KNOWN[name]}" for name in used)
    text = LOOP.replace("BODY", lines).replace("MODULES", modules).replace("USED", ", ".join(used))
    return text.replace("SHAPE", shape).replace("ROWS", rows)


# A map of [6, 3, 4, 5] to steps of its columns.
COLUMNS = program("""
f = maps(x)
b, c, h, w = f.shape
seq = f.reshape([w, b, c * h])  # CAUSE
loss = F.cross_entropy(out(gru(seq)[0].mean(0)), y)
""")
# Channels behind the steps, in batches of twice as many rows as steps.
CHANNELS = program("""
f = F.relu(lines(x))
seq = f.reshape([5, 10, 4])  # CAUSE
loss = F.cross_entropy(out(small(seq)[0][-1]), y)
""", "2, 5", "10, 10, 10")  # fmt: skip
# All places of a map are steps, taken one by one.
PLACES = program("""
tokens = F.relu(maps(x)).reshape([20, 6, 3])  # CAUSE
state = noise(6, 8) * 0
for at in range(20):
    state = (cell(tokens[at]) + state * 0.5).tanh()
loss = F.cross_entropy(out(state), y)
""")
# Data of one number a step; the last batch is smaller.
SINGLE = program("""
loss = F.cross_entropy(out(one(x.reshape([5, count, 1]))[0][-1]), y)  # CAUSE
""", "5", "6, 6, 4")  # fmt: skip
BUGGY = {"columns": COLUMNS, "channels": CHANNELS, "places": PLACES, "single": SINGLE}
HEALTHY = {
    "turned": program("""
f = maps(x)
b, c, h, w = f.shape
seq = turn(f, 3, 0, 1, 2).reshape([w, b, c * h])
loss = F.cross_entropy(out(gru(seq)[0].mean(0)), y)
"""),
    # It came so, and was only told other sizes for the layer in between.
    "laid out so": program("""
seq = noise(5, 6, 12)
found = out(gru(seq.reshape([6, 3, 4, 5]).reshape([5, 6, 12]))[0][-1])
loss = F.cross_entropy(found, seq[-1, :, :4].argmax(-1))
"""),
    # Any order of random numbers is as good as any other.
    "noise": program("""
z = noise(6, 3, 4, 5)
loss = (out(gru(z.reshape([5, 6, 12]))[0][-1]) - 1).square().mean()
"""),
    # A sum over all of it does not mind.
    "merged": program("""
f = F.relu(maps(x)).reshape([5, 6, 12])
loss = (f.reshape([6, 60]).mean(-1) - x.reshape([6, 20]).mean(-1)).square().mean()
"""),
    # Heads, with the rows in front.
    "heads": program("""
f = lines(x)
heads = turn(f, 0, 2, 1).reshape([6, 5, 2, 2])
loss = F.cross_entropy(out(small(turn(heads.reshape([6, 5, 4]), 1, 0, 2))[0][-1]), y)
""", "2, 5"),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: HEAD[request.param] + text for name, text in {**BUGGY, **HEALTHY}.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"axes-regrouped-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_rows_are_put_together_of_several(runs: dict[str, Run], name: str) -> None:
    assert "Error" not in runs[name].plain, runs[name].plain
    first = runs[name].check_first("wrong-axis")
    assert first["severity"] == "warning" and "use transpose" in first["message"], first


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_others_explain_it(runs: dict[str, Run], name: str) -> None:
    assert "Error" not in runs[name].plain, runs[name].plain
    runs[name].check_healthy()

"""A reshape that exchanges two sizes where a transpose was meant; and what looks like it."""

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
noise, stack = torch.randn, torch.stack
def sgd(*modules):
    return torch.optim.SGD([each for module in modules for each in module.parameters()], 0.05)
def turned(x, one, other):
    return x.transpose(one, other)
def clear(opt):
    opt.zero_grad()
def soft(x, axis):
    return F.softmax(x, dim=axis)
""",
    "paddle": """
import paddle
from paddle import nn
from paddle.nn import functional as F
paddle.seed(0)
noise, stack = lambda *shape: paddle.randn(shape), paddle.stack
def sgd(*modules):
    return paddle.optimizer.SGD(0.05, parameters=[each for module in modules for each in module.parameters()])
def turned(x, one, other):
    order = list(range(x.ndim))
    order[one], order[other] = other, one
    return x.transpose(order)
def clear(opt):
    opt.clear_grad()
def soft(x, axis):
    return F.softmax(x, axis=axis)
""",
}
LOOP = """
net, out = nn.Linear(4, 8), nn.Linear(8, 3)
opt = sgd(net, out)
COUNT, TIMES = 6, 5
for count in (6, 4, 6, 6):
    x = noise(COUNT, TIMES, 4)
    tags = x[:, :, :3].argmax(-1)
BODY
    loss.backward()
    opt.step()
    clear(opt)
"""


def program(body: str, count: str = "6", times: str = "5") -> str:
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    return LOOP.replace("BODY", lines).replace("COUNT, TIMES = 6, 5\n", "").replace("COUNT", count).replace(
        "TIMES", times
    )  # fmt: skip


LAST = program("""
every = F.relu(net(turned(x, 0, 1)))
rows = every.reshape([6, 5, 8])  # CAUSE
loss = F.cross_entropy(out(rows[:, -1]), tags[:, -1])
""")
STACKED = program("""
every = [F.relu(net(x[:, at])) for at in range(5)]
together = out(stack(every)).tanh()
rows = together.reshape([6, 5, 3])  # CAUSE
loss = (rows.mean(1) - x.mean(1)[:, :3]).square().mean()
""")
# Only one of the two sizes changes from batch to batch.
VARIES = program("""
rows = out(F.relu(net(x))).reshape([count, 5, 3])  # CAUSE
weights = soft(rows, 1)
loss = (weights * rows).square().mean()
""", "5", "count")  # fmt: skip
CHANNELS = program("""
every = F.relu(net(x))
planes = turned(every, 1, 2).exp()
rows = planes.reshape([6, 5, 8])  # CAUSE
loss = F.cross_entropy(out(rows[:, 1:].mean(1)), tags[:, 0])
""")
BUGGY = {"last": LAST, "stacked": STACKED, "varies": VARIES, "channels": CHANNELS}

HEALTHY = {
    # Both axes are merged behind it, in the order that the targets have.
    "merged": program("""
every = F.relu(net(turned(x, 0, 1))).reshape([6, 5, 8])
loss = F.cross_entropy(out(every).reshape([-1, 3]), turned(tags, 0, 1).flatten())
"""),
    # Rows that change places with their targets.
    "likewise": program("""
rows = out(F.relu(net(x))).reshape([count, 5, 3])
loss = F.cross_entropy(rows[:, 0], tags.reshape([count, 5])[:, 0])
""", "5", "count"),
    "turned back": program("""
every = turned(F.relu(net(turned(x, 0, 1))), 0, 1)
loss = F.cross_entropy(out(every.reshape([count, 5, 8])[:, -1]), tags[:, -1])
""", "count"),
    # Heads are parted and merged, channels are shuffled.
    "heads": program("""
heads = turned(F.relu(net(x)).reshape([count, 5, 2, 4]), 1, 2)
mixed = soft(heads.matmul(turned(heads, 2, 3)), -1).matmul(heads)
shuffled = turned(turned(mixed, 1, 2).reshape([count, 5, 2, 4]), 2, 3).reshape([count, 5, 8])
loss = F.cross_entropy(out(shuffled)[:, -1], tags[:, -1])
""", "count"),
    # What a layer gives lies as the layer learns that it is taken.
    "learnt": program("""
matrix = F.relu(net(x)).reshape([count, 5, 8]).mean(1).reshape([count, 2, 4]).reshape([count, 4, 2])
loss = soft(x.matmul(matrix), 1).square().mean() + out(net(x)).square().mean()
""", "count"),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    framework = request.param
    texts = {name: HEAD[framework] + text for name, text in (BUGGY | HEALTHY).items()}
    return diagnose_each(framework, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"graphs-exchanged-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_a_reshape_that_exchanges_two_sizes(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("wrong-axis")
    assert first["severity"] == "warning" and "use transpose" in first["message"], first


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_one_that_mixes_nothing(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()

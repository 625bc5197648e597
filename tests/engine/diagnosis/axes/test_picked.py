"""Columns that a target picks in all rows; beside scores against the items of a batch, which are meant so. And the line
that steps a schedule of epochs in each batch."""

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
def noise(*shape):
    return framework.randn(*shape)
def classes(n, rows):
    return framework.randint(0, n, (rows,))
def own(table, index):
    return table.gather(1, index.unsqueeze(1)).squeeze(1)
def sgd(net):
    return framework.optim.SGD(net.parameters(), 0.1), "zero_grad"
def decays(opt):
    return framework.optim.lr_scheduler.ExponentialLR(opt, gamma=0.7)
""",
    "paddle": """
import paddle as framework
from paddle import nn
from paddle.nn import functional as F
framework.seed(0)
def noise(*shape):
    return framework.randn(shape)
def classes(n, rows):
    return framework.randint(0, n, [rows])
def own(table, index):
    return framework.take_along_axis(table, index.unsqueeze(1), 1).squeeze(1)
def sgd(net):
    return framework.optimizer.SGD(0.1, parameters=net.parameters()), "clear_grad"
def decays(opt):
    rate = framework.optimizer.lr.ExponentialDecay(0.1, 0.7)
    opt.set_lr_scheduler(rate)
    return rate
""",
}
TRAIN = """
net = nn.Linear(5, 6)
optimizer, clear = sgd(net)
for _ in range(10):
    x, y = noise(16, 5), classes(6, 16)
    prob = F.softmax(net(x), -1)
    BODY
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
"""
WRONG = {
    "indexed": "loss = -prob[:, y].log().mean()  # CAUSE",
    "selected": "loss = (1 - PICK.clip(1e-6, 1) ** 0.5).mean()  # CAUSE",
    "against goals": "taken = PICKED  # CAUSE\n    loss = F.mse_loss(taken, noise(16, 1))",
    "weighed": "taken = prob[:, y].log()  # CAUSE\n    loss = -(taken * noise(16).abs()).sum() / 16",
}
RIGHT = {
    "each its own": "loss = -own(prob, y).log().mean()",
    "in the batch": "loss = F.cross_entropy(net(x)[:, y], framework.arange(16))",
    "against others": "loss = F.softplus(net(x)[:, y] - own(net(x), y).unsqueeze(1)).mean()",
    "rows": "loss = -prob[y].log().mean()",
}
EPOCHS = """
net = nn.Linear(5, 6)
optimizer, clear = sgd(net)
schedule = decays(optimizer)
for _ in range(10):
    for _ in range(12):
        loss = F.cross_entropy(net(noise(16, 5)), classes(6, 16))
        getattr(optimizer, clear)()
        loss.backward()
        optimizer.step()
        schedule.step()  # CAUSE
"""


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: TRAIN.replace("BODY", body) for name, body in {**WRONG, **RIGHT}.items()}
    pick = {"torch": "prob.index_select(1, y)", "paddle": "framework.gather(prob, y, axis=1)"}[request.param]
    # Paddle's takes an index of (N, 1) as torch's does, and picks what one of (N,) does.
    picked = {"torch": "prob.index_select(1, y)", "paddle": "prob.gather(y.unsqueeze(1), axis=1)"}[request.param]
    texts = {name: text.replace("PICKED", picked).replace("PICK", pick) for name, text in texts.items()}
    texts = {name: HEAD[request.param] + text for name, text in {**texts, "epochs": EPOCHS}.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"axes-picked-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", WRONG)
def test_every_row_with_every_target(runs: dict[str, Run], name: str) -> None:
    assert "[16, 6] and 16 indices" in runs[name].check_first("loss-broadcast")["evidence"][0]


@each
@pytest.mark.parametrize("name", RIGHT)
def test_what_is_meant(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()


@each
def test_the_line_that_steps_in_each_batch(runs: dict[str, Run]) -> None:
    runs["epochs"].check_first("zero-learning-rate")

"""Labels that count from 1, which a loss over classes refuses: the line that last gave them their value is named."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as fw
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset
import numpy as np
fw.manual_seed(0)
numbers = np.random.default_rng(0)
tensor, randn = fw.tensor, fw.randn
def sgd(net):
    optimizer = fw.optim.SGD(net.parameters(), 0.05)
    return optimizer, optimizer.zero_grad
""",
    "paddle": """
import paddle as fw
from paddle import nn
import paddle.nn.functional as F
from paddle.io import DataLoader, Dataset, TensorDataset
import numpy as np
fw.seed(0)
numbers = np.random.default_rng(0)
tensor = fw.to_tensor
def randn(*shape):
    return fw.randn(shape)
def sgd(net):
    optimizer = fw.optimizer.SGD(0.05, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
""",
}
NET = """
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
optimizer, clear = sgd(net)
def update(loss):
    loss.backward()
    optimizer.step()
    clear()
class Rows(Dataset):
    def __init__(self, n, first, last):
        self.x = numbers.normal(size=(n, 6)).astype("float32")
        self.y = numbers.integers(first, last + 1, n)
        self.y[:2] = first, last
    def __len__(self):
        return len(self.y)
    def __getitem__(self, at):
        return self.x[at], self.y[at]
"""
STARS = """
loss_of = nn.CrossEntropyLoss()
def epoch(loader):
    for x, stars in loader:
        target = stars  # CAUSE
        out = net(x)
        loss = loss_of(out, target)
        update(loss)
epoch(DataLoader(Rows(96, 1, 4), batch_size=48))
"""
# The labels are made once, and handed to the function of the loss, which only changes their form.
HANDED = """
x = randn(64, 6)
y = tensor(numbers.integers(1, 5, 64))  # CAUSE
def loss_of(out, goals):
    goals = goals.reshape([-1])
    return F.nll_loss(F.log_softmax(out, -1), goals)
for at in range(4):
    update(loss_of(net(x), y.reshape([64, 1])))
"""
# Of so few labels none may be the first one by chance: the data set has all of them.
FEW = """
data = Rows(60, 1, 4)
for x, y in DataLoader(data, batch_size=4):
    goals = y  # CAUSE
    update(F.cross_entropy(net(x), goals))
"""
AUGMENTED = """
for at in range(4):
    labels = tensor(numbers.integers(0, 4, 40))
    labels += 1  # CAUSE
    update(F.cross_entropy(net(randn(40, 6)), labels))
"""
IGNORED = """
for x, y in DataLoader(Rows(96, 1, 4), batch_size=48):
    y[::5] = -100
    update(F.cross_entropy(net(x), y))  # CAUSE
"""
BUGGY = {"stars": STARS, "handed": HANDED, "few": FEW, "augmented": AUGMENTED, "ignored, a loop's": IGNORED}
# Out of range in other ways: the line of the loss, as with any operand.
OTHERS = {
    "a class too many": """
loader = DataLoader(Rows(90, 0, 4), batch_size=4)
for x, y in loader:
    goals = y
    update(F.cross_entropy(net(x), goals))  # CAUSE
""",
    "by chance": """
goals = tensor([4, 1, 2])
for at in range(2):
    update(F.cross_entropy(net(randn(3, 6)), goals))  # CAUSE
""",
    "0 is left out": """
for x, y in DataLoader(Rows(96, 1, 4), batch_size=48):
    goals = y
    update(F.cross_entropy(net(x), goals, ignore_index=0))  # CAUSE
""",
    "far out": """
for x, y in DataLoader(Rows(96, 1, 9), batch_size=48):
    goals = y
    update(F.cross_entropy(net(x), goals))  # CAUSE
""",
}
HEALTHY = {
    "from 0": """
for x, stars in DataLoader(Rows(96, 1, 4), batch_size=48):
    target = stars - 1
    update(F.cross_entropy(net(x), target))
""",
    "one class more": """
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5))
optimizer, clear = sgd(net)
for x, stars in DataLoader(Rows(96, 1, 4), batch_size=48):
    update(F.cross_entropy(net(x), stars))
""",
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    head = HEAD[request.param] + NET.replace("CLASSES", "4")
    texts = {name: head + text for name, text in (BUGGY | OTHERS | HEALTHY).items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"label-range-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_labels_count_from_one(runs: dict[str, Run], name: str) -> None:
    message = runs[name].check_first("operator-error")["message"]
    assert "labels from 1 to 4, of 4 classes: labels count from 1" in message, message


@each
@pytest.mark.parametrize("name", OTHERS)
def test_otherwise_out_of_range(runs: dict[str, Run], name: str) -> None:
    message = runs[name].check_first("operator-error")["message"]
    assert "count from 1" not in message, message


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()

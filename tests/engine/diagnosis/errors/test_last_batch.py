"""A last batch of one sample, which BatchNorm refuses on torch: the line that makes the loader is named. Paddle gives
such a batch back as it is."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import case

HEAD = """
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, TensorDataset, random_split
torch.manual_seed(0)
def rows(n):
    return TensorDataset(torch.randn(n, 6), torch.randint(0, 3, (n,)))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.bn, self.out = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
    def forward(self, x):
        return self.out(self.bn(self.fc(x)).relu())
net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.05)
def step(x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
"""
ARGUMENT = """
def train(batches):
    net.train()
    for x, y in batches:
        step(x, y)
def main():
    data, held = random_split(rows(50), [33, 17])
    test_loader = DataLoader(held, batch_size=8)
    train_loader = DataLoader(data, batch_size=8, shuffle=True)  # CAUSE
    for epoch in range(2):
        train(train_loader)
main()
"""
# The loop goes through one of several, by a name that it has; the other one leaves one sample, too.
TRAINER = """
class Trainer:
    def __init__(self, data, held):
        self.held = DataLoader(held, batch_size=4)
        self.data = DataLoader(
            data,
            batch_size=8,
            shuffle=True,
            drop_last=False,  # CAUSE
        )
        self.epochs = 2
    def fit(self):
        for epoch in range(self.epochs):
            for number, batch in enumerate(self.data):
                self.one({"x": batch[0], "y": batch[1]})
    def one(self, batch):
        x, y = batch["x"], batch["y"]
        step(x, y)
Trainer(rows(25), rows(9)).fit()
"""
RETURNED = """
class Rows(Dataset):
    def __len__(self):
        return 41
    def __getitem__(self, at):
        return torch.full((6,), float(at)), at % 3
def loaders(size):
    data = DataLoader(Rows(), batch_size=size)  # CAUSE
    held = DataLoader(rows(20), batch_size=size)
    return {"train": data, "held": held}
made = loaders(10)
train, held = made["train"], made["held"]
for epoch in range(2):
    for x, y in train:
        step(x, y)
"""
PHASES = """
loaders = {
    "train": DataLoader(rows(21), batch_size=5, shuffle=True),  # CAUSE
    "held": DataLoader(rows(20), batch_size=5),
}
for epoch in range(2):
    for phase in ("train", "held"):
        net.train(phase == "train")
        for x, y in loaders[phase]:
            step(x, y)
"""
BY_HAND = """
loader = DataLoader(rows(13), 4, True)  # CAUSE
held = DataLoader(rows(12), 4)
def endless():
    while True:
        yield from loader
batches = endless()
for number in range(20):
    x, y = next(batches)
    step(x, y)
"""
SAMPLER = """
data = rows(13)
batches = BatchSampler(RandomSampler(data), 4, False)  # CAUSE
loader = DataLoader(data, batch_sampler=batches)
for epoch in range(2):
    for x, y in loader:
        step(x, y)
"""
INLINE = """
data = rows(13)
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=4):  # CAUSE
        step(x, y)
"""
# Each batch has one sample, whatever the loader of the held-out data leaves; and samples are taken one by one.
SINGLE = """
def forward(self, x):
    h = self.fc(x)
    return self.out(self.bn(h).relu())  # CAUSE
Net.forward = forward
held = DataLoader(rows(9), batch_size=4)
for x, y in DataLoader(rows(12), batch_size=1):
    step(x, y)
"""
BY_ONE = """
def forward(self, x):
    parts = []
    for row in x:
        h = self.fc(row[None])
        parts.append(self.bn(h))  # CAUSE
    return self.out(torch.cat(parts).relu())
Net.forward = forward
loader = DataLoader(rows(13), batch_size=4)
for x, y in loader:
    step(x, y)
"""
BUGGY = {
    "argument": ARGUMENT, "trainer": TRAINER, "returned": RETURNED, "phases": PHASES, "by hand": BY_HAND,
    "sampler": SAMPLER, "inline": INLINE,
}  # fmt: skip
OTHERS = {"single": SINGLE, "by one": BY_ONE}
HEALTHY = {
    "dropped": """
loader = DataLoader(rows(33), batch_size=8, shuffle=True, drop_last=True)
for epoch in range(3):
    for x, y in loader:
        step(x, y)
""",
    "while it is tested": """
loader, held = DataLoader(rows(32), batch_size=8, shuffle=True), DataLoader(rows(33), batch_size=8)
for epoch in range(3):
    net.train()
    for x, y in loader:
        step(x, y)
    net.eval()
    with torch.no_grad():
        print(sum(float((net(x).argmax(1) == y).sum()) for x, y in held) / 33)
""",
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: HEAD + text.replace("\n\n", "\n") for name, text in (BUGGY | OTHERS | HEALTHY).items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


on_torch = pytest.mark.parametrize("runs", [case("torch", "torch", group="last-batch-torch")], indirect=True)


def the_only(run: Run) -> str:
    first = run.check_first("operator-error")
    assert len(run.above_notes()) == 1, f"it is told twice\n{run}"
    return "\n".join([first["message"], *first["evidence"]])


@on_torch
@pytest.mark.parametrize("name", BUGGY)
def test_the_loader_that_leaves_one(runs: dict[str, Run], name: str) -> None:
    told = the_only(runs[name])
    assert "they leave 1 for the last batch" in told and "drop_last=True" in told, told
    assert "Expected more than 1 value per channel" in told, told


@on_torch
@pytest.mark.parametrize("name", OTHERS)
def test_no_loader_leaves_one(runs: dict[str, Run], name: str) -> None:
    told = the_only(runs[name])
    assert "a batch of one sample" in told and "drop_last" not in told, told


@on_torch
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()

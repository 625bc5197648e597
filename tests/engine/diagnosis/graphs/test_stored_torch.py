"""Tensors over one array that is written into again and again, which a program stores one by one. Witness: the values
that the program prints of what it stored."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each

pytest.importorskip("torch")

HEAD = """
import numpy, torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
rule = torch.optim.SGD(net.parameters(), 0.01)
class Sensor:
    def __init__(self):
        self.reading = numpy.zeros(3, dtype="float32")
        self.random = numpy.random.default_rng(0)
    def read(self):
        self.reading *= 0.5
        self.reading += self.random.standard_normal(3).astype("float32")
        return self.reading
sensor = Sensor()
def learn(batch):
    loss = (net(batch) - batch.sum(1, keepdim=True)).square().mean()
    rule.zero_grad()
    loss.backward()
    rule.step()
"""
# The last readings, joined anew at each step.
WINDOW = """
history = []
for step in range(30):
    history.append(torch.from_numpy(sensor.read()))  # CAUSE
    if len(history) >= 12:
        learn(torch.stack(history[-12:]))
print("alike", len({tuple(each.tolist()) for each in history}) == 1)
"""
DRAWN = """
class Memory:
    def __init__(self):
        self.rows = []
    def keep(self, row):
        self.rows.append(row[None])
    def as_tensor(self, row):
        return torch.as_tensor(row)  # CAUSE
    def draw(self, count):
        return torch.cat([self.rows[at] for at in torch.randperm(len(self.rows))[:count].tolist()])
memory = Memory()
for step in range(50):
    memory.keep(memory.as_tensor(sensor.read()))
    if step >= 20:
        learn(memory.draw(10))
print("alike", len({tuple(each[0].tolist()) for each in memory.rows}) == 1)
"""
COPIED = WINDOW.replace("sensor.read()", "sensor.read().copy()")
# A ring of slots, each of which is read before it is written again.
RING = """
ring = numpy.zeros((16, 3), dtype="float32")
slots = [torch.from_numpy(row) for row in ring]
for step in range(40):
    ring[step % 16] = sensor.read()
    learn(torch.stack(slots[:12]))
print("alike", len({tuple(each.tolist()) for each in slots}) == 1)
"""
# Joined once, before anything is learnt.
SET = """
class Windows:
    def __init__(self, size):
        self.ring = numpy.zeros(size, dtype="float32")
    def push(self, value):
        self.ring[:-1] = self.ring[1:]
        self.ring[-1] = value
    def window(self):
        return torch.from_numpy(self.ring)  # CAUSE
windows, rows = Windows(3), []
for value in numpy.sin(numpy.arange(60)):
    windows.push(value)
    rows.append(windows.window())
data = torch.stack(rows)
for step in range(12):
    learn(data[torch.randperm(60)[:16]])
print("alike", len({tuple(each.tolist()) for each in data}) == 1)
"""
# Never joined: each is taken alone.
ALONE = """
rows = []
for at in range(20):
    row = torch.frombuffer(sensor.read(), dtype=torch.float32)  # CAUSE
    rows.append((row.view(1, 3), float(at)))
for _ in range(2):
    for row, at in rows:
        learn(row * 2)
print("alike", len({tuple(row[0].tolist()) for row, _ in rows}) == 1)
"""
# Views of a loader, collated by torch itself.
LOADED = """
from torch.utils.data import DataLoader, Dataset
class Readings(Dataset):
    def __init__(self, count):
        self.rows = [torch.from_numpy(sensor.read()) for _ in range(count)]  # CAUSE
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, at):
        return self.rows[at]
readings = Readings(48)
for batch in DataLoader(readings, batch_size=12):
    learn(batch)
print("alike", len({tuple(each.tolist()) for each in readings.rows}) == 1)
"""
# One array that is filled for each batch, and whose tensors are let go; one that is copied behind the reading.
FILLED = """
staging, kept = numpy.zeros((12, 3), dtype="float32"), []
for step in range(20):
    for row in staging:
        row[:] = sensor.read()
    batch = torch.from_numpy(staging)
    kept.append(torch.from_numpy(staging).clone())
    learn(batch)
learn(torch.cat(kept))
print("alike", len(set(map(str, kept))) == 1)
"""
# Windows of one long array, which nobody writes into.
SLICES = """
series = numpy.sin(numpy.arange(80)).astype("float32")
data = torch.stack([torch.from_numpy(series[at : at + 3]) for at in range(60)])
rows = [torch.from_numpy(series) for _ in range(12)]
for step in range(12):
    learn(data[torch.randperm(60)[:16]] + torch.stack(rows)[:, :3].mean(0))
print("alike", False)
"""
# What is read once, for each of several actions; one tensor over the array, many times.
ACTIONS = """
view = torch.from_numpy(sensor.reading)
for step in range(20):
    reading = sensor.read()
    learn(torch.stack([torch.from_numpy(reading) for _ in range(12)]) + torch.eye(3).repeat(4, 1))
    learn(torch.stack([view] * 12) + torch.eye(3).repeat(4, 1))
print("alike", True)
"""
BUGGY = {"window": WINDOW, "drawn": DRAWN, "set": SET, "alone": ALONE, "loaded": LOADED}
HEALTHY = {"copied": COPIED, "ring": RING, "actions": ACTIONS, "filled": FILLED, "slices": SLICES}
PROGRAMS = BUGGY | HEALTHY


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: HEAD + text for name, text in PROGRAMS.items()}
    return diagnose_each("torch", tmp_path_factory.mktemp("programs"), texts)


@pytest.mark.parametrize("name", BUGGY)
def test_all_that_is_stored_is_one(runs: dict[str, Run], name: str) -> None:
    assert "alike True" in runs[name].plain, "it is as the program says"
    assert "share the memory of one array" in runs[name].check_first("silent-overwrite")["message"]


@pytest.mark.parametrize("name", HEALTHY)
def test_memory_of_their_own_or_not_stored(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()

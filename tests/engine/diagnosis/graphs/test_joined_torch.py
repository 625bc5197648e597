"""Graphs that reach into earlier iterations, and variables that keep them."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, kind_of, numbered

HEAD = """
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(3)
"""
HIDDEN = """
class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.ih, self.hh = nn.Linear(3, 4), nn.Linear(4, 4)
    def forward(self, x, h):
        return torch.tanh(self.ih(x) + self.hh(h))
def main():
    cell = Cell(); opt = torch.optim.SGD(cell.parameters(), 0.1)
    h = torch.zeros(2, 4)
    for _ in range(4):
        h = cell(torch.randn(2, 3), h)  # CAUSE
        loss = (h ** 2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
main()
"""
STORED = """
class Memory:
    value = None
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 1)
    def forward(self, x, memory):
        y, state = self.rnn(x, memory.value)
        scores = self.out(y)
        memory.value = state  # CAUSE
        return scores
reader, memory = Reader(), Memory()
for _ in range(4):
    loss = reader(torch.randn(2, 5, 3), memory).pow(2).mean()
    reader.zero_grad(); loss.backward()
"""
# Made by one line at first, of itself by another one from then on: the first is detached in vain.
MOVED = """
class Bank(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = None
    def update(self, rows):
        if self.mean is None:
            self.mean = rows.mean(0)
        else:
            self.mean = 0.9 * self.mean + 0.1 * rows.mean(0)  # CAUSE
net, bank = nn.Linear(3, 4), Bank()
for _ in range(4):
    bank.update(net(torch.randn(2, 3)))
    loss = (net(torch.randn(2, 3)) - bank.mean).pow(2).mean()
    loss.backward()
    net.zero_grad()
"""
# Made before the loop; the function that it is handed to calls something of its own by the same name.
NAMESAKE = """
class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.begin, self.turn = nn.Linear(3, 4), nn.Linear(4, 4)
    def forward(self, h):
        h = torch.tanh(self.turn(h))
        return h
cell = Cell()
h = torch.tanh(cell.begin(torch.randn(2, 3)))  # CAUSE
for _ in range(4):
    cell(h).pow(2).mean().backward()
    cell.zero_grad()
"""
SUMMED = """
net = nn.Linear(3, 4); opt = torch.optim.SGD(net.parameters(), 0.1)
total = 0
for _ in range(4):
    loss = net(torch.randn(2, 3)).pow(2).mean()
    total = total + loss  # CAUSE
    opt.zero_grad()
    total.backward()
    opt.step()
"""
ONCE = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Parameter(torch.randn(6, 3)), nn.Linear(3, 1)
model = Model(); opt = torch.optim.SGD(model.parameters(), 0.1)
def fit():
    positions = torch.tanh(model.table) * 2  # CAUSE
    for step in range(4):
        loss = model.out(positions[step]).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
fit()
"""
# Kept by a decorator: computed in the first iteration only.
PROPERTY = """
from functools import cached_property
class Bank(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(3, 4)
    @cached_property  # CAUSE
    def anchors(self):
        return self.project(torch.ones(5, 3)).tanh()
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bank, self.tower = Bank(), nn.Linear(2, 4)
    def forward(self, x):
        return self.tower(x) @ self.bank.anchors.t()
model = Model(); opt = torch.optim.SGD(model.parameters(), 0.1)
def main():
    for _ in range(3):
        loss = model(torch.randn(6, 2)).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        print(loss.item())
main()
"""
# A function whose results are kept by their arguments: a dictionary of tensors.
ARGUMENTS = """
import functools
weight = nn.Parameter(torch.randn(4))
@functools.lru_cache(maxsize=None)  # CAUSE
def tables(rows):
    scaled = weight.exp() * torch.ones(rows, 1)
    return {"row": scaled, "all": scaled.sum(0)}
def main():
    for step in range(3):
        own = tables(2)
        loss = (torch.randn(2, 4) * own["row"] + own["all"]).pow(2).mean()
        loss.backward()
        print(loss.item())
main()
"""
# No cache, whatever its name begins with: the state is what joins the iterations.
SAVING = """
def memory_saving(function):
    return lambda *given: function(*given)
cell = nn.GRUCell(3, 4)
@memory_saving
def advance(x, state):
    return cell(x, state).tanh()
def main():
    state = torch.zeros(2, 4)
    for _ in range(3):
        state = advance(torch.randn(2, 3), state)  # CAUSE
        loss = state.pow(2).mean()
        loss.backward()
        print(loss.item())
main()
"""
# Kept in a dictionary, below the line that both iterations run.
TABLE = """
class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.known = nn.Parameter(torch.zeros(4)), {}
    def weights(self, kind):
        if kind not in self.known:
            w = self.weight.exp()
            self.known[kind] = w / w.sum()  # CAUSE
        return self.known[kind]
    def forward(self, x):
        return x * self.weights("row")
net, head = Graph(), nn.Linear(4, 1)
for _ in range(3):
    out = net(torch.randn(2, 4))
    loss = head(out).pow(2).mean()
    loss.backward()
    print(out.shape, loss.item())
"""
# Put into a list, which is kept below.
POWERS = """
class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.known = nn.Parameter(torch.zeros(4)), None
    def powers(self):
        if self.known is None:
            powers = [self.weight.exp()]
            for _ in range(2):
                powers.append(powers[-1] * powers[0])
            self.known = powers  # CAUSE
        return self.known
    def forward(self, x):
        powers = self.powers()
        return sum(x * each for each in powers)
net, head = Graph(), nn.Linear(4, 1)
for _ in range(3):
    out = net(torch.randn(2, 4))
    loss = head(out).pow(2).mean()
    loss.backward()
    print(out.shape, loss.item())
"""
# Given to a method that keeps it.
HANDED = """
class Memory:
    def __init__(self):
        self.cells = {}
    def store(self, name, state):
        if torch.is_tensor(state):
            state = state.detach()
        self.cells[name] = state  # CAUSE
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out, self.memory = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 1), Memory()
    def forward(self, x):
        y, state = self.rnn(x, self.memory.cells.get("rnn"))
        self.memory.store("rnn", state)
        return self.out(y)
def main():
    model = Model()
    for _ in range(3):
        loss = model(torch.randn(2, 5, 3)).pow(2).mean()
        loss.backward()
        print(loss.item())
main()
"""
ADVERSARIAL = """
g, d = nn.Linear(3, 4), nn.Linear(4, 1)
og, od = torch.optim.SGD(g.parameters(), 0.1), torch.optim.SGD(d.parameters(), 0.1)
def step():
    fake = g(torch.randn(2, 3)).tanh()
    d_loss = d(fake).exp().mean()  # CAUSE
    od.zero_grad(); d_loss.backward(); od.step()
    g_loss = -d(fake).exp().mean()
    og.zero_grad(); g_loss.backward(); og.step()
for _ in range(3):
    step()
"""
SHARED = """
trunk, one, two = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(4, 2)
def losses(x):
    z = trunk(x).tanh()
    return one(z).pow(2).mean(), two(z).pow(2).mean()
for _ in range(2):
    first, second = losses(torch.randn(5, 3))
    first.backward()  # CAUSE
    second.backward()
"""
# Several losses of one iteration: the first call of backward frees what they share.
HEADS = """
trunk, heads = nn.Linear(3, 4), nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 2)])
opt = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], 0.1)
def fit():
    for _ in range(3):
        opt.zero_grad()
        z = trunk(torch.randn(5, 3)).tanh()
        for head in heads:
            loss = head(z).pow(2).mean()
            loss.backward()  # CAUSE
        opt.step()
fit()
"""
RUN_BY = """
def run(loss, scale):
    (loss * scale).backward()
trunk, one, two = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(4, 2)
opt = torch.optim.SGD(trunk.parameters(), 0.1)
for _ in range(3):
    opt.zero_grad()
    z = trunk(torch.randn(5, 3)).tanh()
    run(one(z).mean(), 2.0)  # CAUSE
    run(two(z).pow(2).mean(), 1.0)
    opt.step()
"""
# And what looks like it: gradients that are accumulated over iterations which something joins.
ACCUMULATED = """
class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.ih, self.hh = nn.Linear(3, 4), nn.Linear(4, 4)
    def forward(self, x, h):
        return (self.ih(x) + self.hh(h)).tanh()
def main():
    cell = Cell(); opt = torch.optim.SGD(cell.parameters(), 0.1)
    for batch in range(3):
        h = torch.zeros(2, 4)
        for part in range(4):
            h = cell(torch.randn(2, 3), h)  # CAUSE
            loss = (h ** 2).mean()
            loss.backward()
        opt.step(); opt.zero_grad()
main()
"""
ONCE_FOR_ALL = """
table, out = nn.Linear(3, 4), nn.Linear(4, 1)
opt = torch.optim.SGD(out.parameters(), 0.1)
def fit():
    anchors = table(torch.randn(6, 3)).tanh()  # CAUSE
    for batch in range(3):
        for part in range(4):
            loss = out(anchors[part]).pow(2).mean()
            loss.backward()
        opt.step(); opt.zero_grad()
fit()
"""
GROWS = """
class Trainer:
    def __init__(self):
        self.cell, self.h = nn.GRUCell(3, 4), torch.zeros(2, 4)
    def step(self, x):
        self.h = self.cell(x, self.h)  # CAUSE
        loss = (self.h ** 2).mean()
        loss.backward(retain_graph=True)
        self.cell.zero_grad()
trainer = Trainer()
for _ in range(10):
    trainer.step(torch.randn(2, 3))
"""
GROWS_AVERAGE = """
net = nn.Linear(3, 3)
average = torch.zeros(3)
for _ in range(8):
    y = net(torch.randn(5, 3)).mean(0)
    average = 0.9 * average + 0.1 * y  # CAUSE
    (y - average).pow(2).sum().backward(retain_graph=True)
    net.zero_grad()
"""
GROWS_QUEUE = """
class Memory(nn.Module):
    def __init__(self, slots):
        super().__init__()
        self.write, self.bank = nn.Linear(3, 4), [torch.zeros(2, 4)] * slots
    def forward(self, x):
        seen = torch.stack(self.bank).mean(0)
        self.bank = [*self.bank[1:], torch.tanh(self.write(x) + seen)]  # CAUSE
        return self.bank[-1]
memory = Memory(3)
for _ in range(10):
    loss = memory(torch.randn(2, 3)).pow(2).mean()
    memory.zero_grad()
    loss.backward(retain_graph=True)
"""
APPENDED = """
def main():
    net = nn.Linear(3, 4); opt = torch.optim.SGD(net.parameters(), 0.1)
    losses = []
    for _ in range(16):
        loss = net(torch.randn(2, 3)).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        losses.append(loss)  # CAUSE
    print(sum(each.item() for each in losses))
main()
"""
ADDED = """
net = nn.Linear(3, 4); opt = torch.optim.SGD(net.parameters(), 0.1)
running = 0.0
for step in range(16):
    loss = F.mse_loss(net(torch.randn(2, 3)), torch.zeros(2, 4))
    opt.zero_grad()
    loss.backward()
    opt.step()
    running += loss  # CAUSE
"""
CACHED = """
class Recorder:
    def __init__(self):
        self.outputs = {}
    def note(self, step, value):
        self.outputs[step] = value  # CAUSE
recorder = Recorder()
net = nn.Linear(3, 4); opt = torch.optim.SGD(net.parameters(), 0.1)
for step in range(16):
    out = net(torch.randn(2, 3))
    recorder.note(step, out)
    loss = out.pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
"""


# Emptied at the end of an epoch; what it held was of no more use.
EMPTIED = """
class Meter:
    def __init__(self):
        self.rows = []
    def note(self, **values):
        self.rows.append(values)  # CAUSE
net = nn.Linear(3, 4); opt = torch.optim.SGD(net.parameters(), 0.1)
meter = Meter()
for epoch in range(2):
    for _ in range(40):
        out = net(torch.randn(2, 3))
        loss = out.pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        meter.note(out=out)
    print(torch.concat([row["out"] for row in meter.rows]).mean().item())
    meter.rows = []
"""
# What it holds is run back at the end of the epoch, and the results of a replay have no graph.
USED_LATER = """
net = nn.Linear(3, 4); opt = torch.optim.SGD(net.parameters(), 0.1)
extra, later, replay = nn.Linear(3, 1), [], []
for epoch in range(2):
    for _ in range(40):
        x = torch.randn(2, 3)
        loss = net(x).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        later.append(extra(x).pow(2).mean())
        replay.append(loss.detach())
    sum(later).backward()
    print(sum(replay).item())
    later, replay = [], []
"""


CASES: list[tuple[str, str]] = [
    ("second-backward", HIDDEN), ("second-backward", STORED), ("second-backward", SUMMED),
    ("second-backward", MOVED), ("second-backward", NAMESAKE), ("second-backward", ONCE),
    ("second-backward", PROPERTY), ("second-backward", TABLE), ("second-backward", POWERS), ("second-backward", HANDED),
    ("second-backward", ARGUMENTS), ("second-backward", SAVING), ("second-backward", ADVERSARIAL),
    ("second-backward", SHARED), ("second-backward", HEADS), ("second-backward", RUN_BY),
    ("second-backward", ACCUMULATED), ("second-backward", ONCE_FOR_ALL), ("graph-grows", GROWS),
    ("graph-grows", GROWS_AVERAGE), ("graph-grows", GROWS_QUEUE), ("graph-kept", APPENDED), ("graph-kept", ADDED),
    ("graph-kept", CACHED), ("graph-kept", EMPTIED),
]  # fmt: skip

PROGRAMS = numbered(CASES) | {"used later": USED_LATER}


@pytest.mark.parametrize("name", numbered(CASES))
def test_the_line_that_joins_or_keeps_is_named(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first(kind_of(name))


@pytest.mark.parametrize("program", [HEADS, RUN_BY])
def test_backwards_of_one_iteration_are_not_taken_for_two(runs: dict[str, Run], program: str) -> None:
    (run,) = [each for each in runs.values() if each.program == HEAD + program]
    (message,) = [each["message"] for each in run.told if each["kind"] == "second-backward"]
    assert "earlier iteration" not in message and "add the losses up" in message


def test_graphs_that_backward_goes_through_later_are_not_of_no_use(runs: dict[str, Run]) -> None:
    assert not [each for each in runs["used later"].above_notes() if each["kind"] == "graph-kept"]
    (found,) = [run.check_first("graph-kept") for run in runs.values() if run.program == HEAD + EMPTIED]
    assert found["severity"] == "warning" and "until it is emptied" in found["message"]

"""Graphs that reach into earlier iterations, and variables that keep them, on Paddle."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, kind_of, numbered

HEAD = """
import collections, paddle, paddle.nn as nn, paddle.nn.functional as F
paddle.seed(3)
net = nn.Linear(3, 4)
opt = paddle.optimizer.SGD(0.1, parameters=net.parameters())
"""
HIDDEN = """
class Cell(nn.Layer):
    def __init__(self):
        super().__init__()
        self.ih, self.hh = nn.Linear(3, 4), nn.Linear(4, 4)
    def forward(self, x, h):
        return paddle.tanh(self.ih(x) + self.hh(h))
def main():
    cell = Cell()
    h = paddle.zeros([2, 4])
    for _ in range(4):
        h = cell(paddle.randn([2, 3]), h)  # CAUSE
        (h ** 2).mean().backward()
        cell.clear_gradients()
main()
"""
# Made by one line at first, of itself by another one from then on: the first is detached in vain.
MOVED = """
class Bank(nn.Layer):
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
    bank.update(net(paddle.randn([2, 3])))
    loss = (net(paddle.randn([2, 3])) - bank.mean).pow(2).mean()
    loss.backward()
    net.clear_gradients()
"""
# Made before the loop; the function that it is handed to calls something of its own by the same name.
NAMESAKE = """
class Cell(nn.Layer):
    def __init__(self):
        super().__init__()
        self.begin, self.turn = nn.Linear(3, 4), nn.Linear(4, 4)
    def forward(self, h):
        h = paddle.tanh(self.turn(h))
        return h
cell = Cell()
h = paddle.tanh(cell.begin(paddle.randn([2, 3])))  # CAUSE
for _ in range(4):
    cell(h).pow(2).mean().backward()
    cell.clear_gradients()
"""
SUMMED = """
total = 0
for _ in range(4):
    loss = net(paddle.randn([2, 3])).pow(2).mean()
    total = total + loss  # CAUSE
    opt.clear_grad()
    total.backward()
    opt.step()
"""
# Put into a list, which is kept below.
POWERS = """
class Graph(nn.Layer):
    def __init__(self):
        super().__init__()
        self.weight, self.known = self.create_parameter([4]), None
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
    out = net(paddle.randn([2, 4]))
    loss = head(out).pow(2).mean()
    loss.backward()
    print(out.shape, loss.item())
"""
# Kept in a dictionary, below the line that both iterations run.
TABLE = """
class Graph(nn.Layer):
    def __init__(self):
        super().__init__()
        self.weight, self.known = self.create_parameter([4]), {}
    def weights(self, kind):
        if kind not in self.known:
            w = self.weight.exp()
            self.known[kind] = w / w.sum()  # CAUSE
        return self.known[kind]
    def forward(self, x):
        return x * self.weights("row")
graph, head = Graph(), nn.Linear(4, 1)
for _ in range(3):
    out = graph(paddle.randn([2, 4]))
    loss = head(out).pow(2).mean()
    loss.backward()
    print(out.shape, loss.item())
"""
ADVERSARIAL = """
d = nn.Linear(4, 1)
od = paddle.optimizer.SGD(0.1, parameters=d.parameters())
def step():
    fake = net(paddle.randn([2, 3])).tanh()
    d_loss = d(fake).exp().mean()  # CAUSE
    od.clear_grad(); d_loss.backward(); od.step()
    g_loss = -d(fake).exp().mean()
    opt.clear_grad(); g_loss.backward(); opt.step()
for _ in range(3):
    step()
"""
# Several losses of one iteration: the first call of backward frees what they share.
HEADS = """
trunk, heads = nn.Linear(3, 4), nn.LayerList([nn.Linear(4, 1), nn.Linear(4, 2)])
opt = paddle.optimizer.SGD(0.1, parameters=[*trunk.parameters(), *heads.parameters()])
def fit():
    for _ in range(3):
        opt.clear_grad()
        z = trunk(paddle.randn([5, 3])).tanh()
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
opt = paddle.optimizer.SGD(0.1, parameters=trunk.parameters())
for _ in range(3):
    opt.clear_grad()
    z = trunk(paddle.randn([5, 3])).tanh()
    run(one(z).mean(), 2.0)  # CAUSE
    run(two(z).pow(2).mean(), 1.0)
    opt.step()
"""
# And what looks like it: gradients that are accumulated over iterations which something joins.
ACCUMULATED = """
class Cell(nn.Layer):
    def __init__(self):
        super().__init__()
        self.ih, self.hh = nn.Linear(3, 4), nn.Linear(4, 4)
    def forward(self, x, h):
        return (self.ih(x) + self.hh(h)).tanh()
def main():
    cell = Cell(); opt = paddle.optimizer.SGD(0.1, parameters=cell.parameters())
    for batch in range(3):
        h = paddle.zeros([2, 4])
        for part in range(4):
            h = cell(paddle.randn([2, 3]), h)  # CAUSE
            loss = (h ** 2).mean()
            loss.backward()
        opt.step(); opt.clear_grad()
main()
"""
ONCE_FOR_ALL = """
table, out = nn.Linear(3, 4), nn.Linear(4, 1)
opt = paddle.optimizer.SGD(0.1, parameters=out.parameters())
def fit():
    anchors = table(paddle.randn([6, 3])).tanh()  # CAUSE
    for batch in range(3):
        for part in range(4):
            loss = out(anchors[part]).pow(2).mean()
            loss.backward()
        opt.step(); opt.clear_grad()
fit()
"""
GROWS = """
class Trainer:
    def __init__(self):
        self.cell, self.h = nn.GRUCell(3, 4), paddle.zeros([2, 4])
    def step(self, x):
        _, self.h = self.cell(x, self.h)  # CAUSE
        (self.h ** 2).mean().backward(retain_graph=True)
        self.cell.clear_gradients()
trainer = Trainer()
for _ in range(8):
    trainer.step(paddle.randn([2, 3]))
"""
GROWS_AVERAGE = """
other, average = nn.Linear(3, 4), paddle.zeros([4])
for _ in range(8):
    y = other(paddle.randn([5, 3])).mean(0)
    average = 0.9 * average + 0.1 * y  # CAUSE
    (y - average).pow(2).sum().backward(retain_graph=True)
    other.clear_gradients()
"""
GROWS_QUEUE = """
class Memory(nn.Layer):
    def __init__(self, slots):
        super().__init__()
        self.write, self.bank = nn.Linear(3, 4), [paddle.zeros([2, 4])] * slots
    def forward(self, x):
        seen = paddle.stack(self.bank).mean(0)
        self.bank = [*self.bank[1:], paddle.tanh(self.write(x) + seen)]  # CAUSE
        return self.bank[-1]
memory = Memory(3)
for _ in range(10):
    loss = memory(paddle.randn([2, 3])).pow(2).mean()
    memory.clear_gradients()
    loss.backward(retain_graph=True)
"""
ADDED = """
running = 0.0
for step in range(16):
    loss = F.mse_loss(net(paddle.randn([2, 3])), paddle.zeros([2, 4]))
    opt.clear_grad()
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
for step in range(16):
    out = net(paddle.randn([2, 3]))
    recorder.note(step, out)
    loss = out.pow(2).mean()
    opt.clear_grad(); loss.backward(); opt.step()
"""
APPENDED = """
losses = []
for _ in range(14):
    loss = net(paddle.randn([2, 3])).pow(2).mean()
    opt.clear_grad(); loss.backward(); opt.step()
    losses.append(loss)  # CAUSE
"""
# A function whose results are kept by their arguments: a dictionary of tensors.
ARGUMENTS = """
import functools
weight = paddle.create_parameter([4], "float32")
@functools.lru_cache(maxsize=None)  # CAUSE
def tables(rows):
    scaled = weight.exp() * paddle.ones([rows, 1])
    return {"row": scaled, "all": scaled.sum(0)}
def main():
    for step in range(3):
        own = tables(2)
        loss = (paddle.randn([2, 4]) * own["row"] + own["all"]).pow(2).mean()
        loss.backward()
        print(loss.item())
main()
"""
# No cache, whatever its name begins with: the state is what joins the iterations.
SAVING = """
def memory_saving(function):
    return lambda *given: function(*given)
rnn = nn.GRUCell(3, 4)
def cell(x, state):
    return rnn(x, state)[1]
@memory_saving
def advance(x, state):
    return cell(x, state).tanh()
def main():
    state = paddle.zeros([2, 4])
    for _ in range(3):
        state = advance(paddle.randn([2, 3]), state)  # CAUSE
        loss = state.pow(2).mean()
        loss.backward()
        print(loss.item())
main()
"""
# Kept by a property that is made of a method: a list.
PROPERTY = """
import functools
class Bank(nn.Layer):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(3, 4)
    def _levels(self):
        first = self.project(paddle.ones([4, 3])).tanh()
        return [first, first @ first]
    levels = functools.cached_property(_levels)  # CAUSE
class Model(nn.Layer):
    def __init__(self):
        super().__init__()
        self.bank, self.tower = Bank(), nn.Linear(2, 4)
    def forward(self, x):
        return sum(self.tower(x) @ level for level in self.bank.levels)
model = Model()
def main():
    for _ in range(3):
        loss = model(paddle.randn([6, 2])).pow(2).mean()
        loss.backward()
        model.clear_gradients()
        print(loss.item())
main()
"""
HEALTHY = """
def truncated():
    cell, h = nn.GRUCell(3, 4), paddle.zeros([2, 4])
    for _ in range(6):
        h = h.detach()
        for _ in range(2):
            _, h = cell(paddle.randn([2, 3]), h)
        (h ** 2).mean().backward()
        cell.clear_gradients()
    print(float(h.sum()))
def kept():
    losses, window, epoch, total = [], collections.deque(maxlen=3), [], 0.0
    for step in range(14):
        loss = net(paddle.randn([2, 3])).pow(2).mean()
        opt.clear_grad(); loss.backward(); opt.step()
        losses.append(float(loss)); window.append(loss); epoch.append(loss); total += loss.item()
        if step % 3 == 2:
            epoch.clear()
    print(total)
def accumulate():
    for step in range(4):
        loss = net(paddle.randn([2, 3])).pow(2).mean() / 2
        loss.backward(retain_graph=True)
        loss.backward()
        if step % 2:
            opt.step(); opt.clear_grad()
    print(float(loss))
def adversarial():
    d = nn.Linear(4, 1)
    od = paddle.optimizer.SGD(0.1, parameters=d.parameters())
    for _ in range(4):
        fake = net(paddle.randn([2, 3])).tanh()
        d_loss = d(fake.detach()).exp().mean()
        od.clear_grad(); d_loss.backward(); od.step()
        g_loss = -d(fake).exp().mean()
        opt.clear_grad(); g_loss.backward(); opt.step()
    print(float(g_loss))
for each in (truncated, kept, accumulate, adversarial):
    each()
"""


# Emptied at the end of an epoch; what it held was of no more use.
EMPTIED = """
class Meter:
    def __init__(self):
        self.rows = []
    def note(self, **values):
        self.rows.append(values)  # CAUSE
meter = Meter()
for epoch in range(2):
    for _ in range(40):
        out = net(paddle.randn([2, 3]))
        loss = out.pow(2).mean()
        opt.clear_grad(); loss.backward(); opt.step()
        meter.note(out=out)
    print(paddle.concat([row["out"] for row in meter.rows]).mean().item())
    meter.rows = []
"""
# What it holds is run back at the end of the epoch, and the results of a replay have no graph.
USED_LATER = """
extra, later, replay = nn.Linear(3, 1), [], []
for epoch in range(2):
    for _ in range(40):
        x = paddle.randn([2, 3])
        loss = net(x).pow(2).mean()
        opt.clear_grad(); loss.backward(); opt.step()
        later.append(extra(x).pow(2).mean())
        replay.append(loss.detach())
    sum(later).backward()
    print(sum(replay).item())
    later, replay = [], []
"""


CASES: list[tuple[str, str]] = [
    ("second-backward", HIDDEN), ("second-backward", SUMMED), ("second-backward", MOVED), ("second-backward", NAMESAKE),
    ("second-backward", ADVERSARIAL),
    ("second-backward", TABLE), ("second-backward", POWERS), ("second-backward", ARGUMENTS),
    ("second-backward", SAVING),
    ("second-backward", PROPERTY), ("second-backward", HEADS), ("second-backward", RUN_BY),
    ("second-backward", ACCUMULATED), ("second-backward", ONCE_FOR_ALL),
    ("graph-grows", GROWS), ("graph-kept", APPENDED), ("graph-grows", GROWS_AVERAGE),
    ("graph-grows", GROWS_QUEUE), ("graph-kept", ADDED), ("graph-kept", CACHED),
    ("graph-kept", EMPTIED),
]  # fmt: skip

PROGRAMS = numbered(CASES) | {"healthy": HEALTHY, "used later": USED_LATER}


@pytest.mark.parametrize("name", numbered(CASES))
def test_the_line_that_joins_or_keeps_is_named(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first(kind_of(name))


def test_what_is_carried_on_as_it_should_be(runs: dict[str, Run]) -> None:
    runs["healthy"].check_healthy()


@pytest.mark.parametrize("program", [HEADS, RUN_BY])
def test_backwards_of_one_iteration_are_not_taken_for_two(runs: dict[str, Run], program: str) -> None:
    (run,) = [each for each in runs.values() if each.program == HEAD + program]
    (message,) = [each["message"] for each in run.told if each["kind"] == "second-backward"]
    assert "earlier iteration" not in message and "add the losses up" in message


def test_graphs_that_backward_goes_through_later_are_not_of_no_use(runs: dict[str, Run]) -> None:
    assert not [each for each in runs["used later"].above_notes() if each["kind"] == "graph-kept"]
    (found,) = [run.check_first("graph-kept") for run in runs.values() if run.program == HEAD + EMPTIED]
    assert found["severity"] == "warning" and "until it is emptied" in found["message"]

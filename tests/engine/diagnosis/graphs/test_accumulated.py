"""Augmentations in place on views of stored data. Witness: whether the data is what it was in the beginning."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import numpy as np
import torch as framework
from torch import nn
from torch.utils.data import DataLoader, Dataset
framework.manual_seed(0)
def noise(*shape):
    return framework.randn(*shape)
net = nn.Linear(4, 1)
optimizer = framework.optim.SGD(net.parameters(), 0.01)
tensor, clear = framework.from_numpy, optimizer.zero_grad
""",
    "paddle": """
import numpy as np
import paddle as framework
from paddle import nn
from paddle.io import DataLoader, Dataset
framework.seed(0)
def noise(*shape):
    return framework.randn(shape)
net = nn.Linear(4, 1)
optimizer = framework.optimizer.SGD(0.01, parameters=net.parameters())
tensor, clear = framework.to_tensor, optimizer.clear_grad
""",
}
FIT = """
def fit(x):
    loss = net(x).square().mean()
    clear()
    loss.backward()
    optimizer.step()
"""
# An array of the data set, an element of which is jittered.
ARRAY = (
    FIT
    + """
class Rows(Dataset):
    def __init__(self, train):
        self.rows, self.train = np.random.default_rng(0).normal(size=(24, 4)).astype("float32"), train
        self.source = np.random.default_rng(1)
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, at):
        row = self.rows[at]
        if self.train:
            row += 0.1 * self.source.normal(size=4)  # CAUSE
        return row, np.float32(at)
rows = Rows(True)
before = rows.rows.copy()
loader = DataLoader(rows, batch_size=6, shuffle=True)
for epoch in range(5):
    for x, y in loader:
        fit(x)
print("same", bool((before == rows.rows).all()))
"""
)
# A method of the data set's own cuts the part out.
PARTED = ARRAY.replace("row = self.rows[at]", "row = self.cut(at)").replace(
    "    def __len__(self):", "    def cut(self, at):\n        return self.rows[at]\n    def __len__(self):"
)
PARTED_COPY = PARTED.replace("return self.rows[at]", "return self.rows[at].copy()").replace("  # CAUSE", "")
# A scratch buffer that a method fills anew, and gives.
FILLED = (
    PARTED.replace(
        "        return self.rows[at]\n    def __len__",
        "        self.scratch[0] = self.rows[at]\n        return self.scratch[0]\n    def __len__",
    )
    .replace("self.rows, self.train", "self.scratch, self.rows, self.train")
    .replace("= np.random.default_rng(0)", '= np.zeros((1, 4), "float32"), np.random.default_rng(0)')
    .replace("  # CAUSE", "")
)
# Normalised in place at each visit, by an object that several data sets share; what is stored is a list.
TRANSFORM = (
    FIT
    + """
class Normalise:
    def __init__(self, mean):
        self.mean = mean
    def __call__(self, row):
        row -= self.mean  # CAUSE
        return row
class Compose:
    def __init__(self, *transforms):
        self.transforms = list(transforms)
    def __call__(self, row):
        for each in self.transforms:
            row = each(row)
        return row
class Items(Dataset):
    def __init__(self, transform):
        rows = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
        self.items, self.transform = [(row, float(at)) for at, row in enumerate(rows)], transform
    def __len__(self):
        return len(self.items)
    def __getitem__(self, at):
        row, goal = self.items[at]
        row = self.transform(row)
        return row, goal
items = Items(Compose(Normalise(0.5)))
for epoch in range(5):
    for x, y in DataLoader(items, batch_size=6):
        fit(x)
"""
)
# Batches that are made once, and a loop that adds noise to each of them in each epoch.
BATCHES = (
    FIT
    + """
def train(batches):
    for epoch in range(5):
        for step, (x, y) in enumerate(batches):
            x.add_(0.1 * noise(6, 4))  # CAUSE
            fit(x)
train([(noise(6, 4), noise(6)) for _ in range(4)])
"""
)
# A module that normalises what it is handed in place, by a method of its own.
MODULE = (
    FIT
    + """
class Shift(nn.Layer if hasattr(nn, "Layer") else nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = noise(4)
    def normalise(self, given):
        return given.subtract_(self.mean)  # CAUSE
    def forward(self, given):
        given = self.normalise(given)
        return given * 2
def train(parts):
    shift = Shift()
    for epoch in range(5):
        for part in parts:
            fit(shift(part))
train([noise(6, 4) for _ in range(4)])
"""
)
# An object that a trainer hands slices of its table to, which hands them to a function.
OBJECT = (
    FIT
    + """
def scaled(rows):
    rows /= 2.0  # CAUSE
    return rows
class Prepare:
    def __call__(self, rows, extra=0):
        return tensor(scaled(rows)) + extra
class Trainer:
    def __init__(self, table):
        self.table, self.prepare = table, Prepare()
    def run(self):
        for epoch in range(5):
            for at in range(0, 24, 6):
                fit(self.prepare(self.table[at:at + 6]))
Trainer(np.random.default_rng(0).normal(size=(24, 4)).astype("float32")).run()
"""
)
# The function of one step is handed the module and the view.
STEP = MODULE.replace("fit(shift(part))", "print(step(shift, part))").replace(
    "def train(", "def step(module, rows):\n    return fit(module(rows))\ndef train("
)
# A part is blanked, another one at each visit: by an object that is called, and in the data set itself.
MASKS = (
    FIT
    + """
source = np.random.default_rng(1)
class Mask:
    def __call__(self, row):
        wide = int(source.integers(1, 3))
        first = int(source.integers(0, 4 - wide))
        row[first:first + wide] = 0.0  # CAUSE
        return row
class Rows(Dataset):
    def __init__(self):
        self.rows, self.change = [noise(4) for _ in range(24)], None
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, at):
        row = self.rows[at]
        if self.change is not None:
            row = self.change(row)
        return row.unsqueeze(0)
rows = Rows()
rows.change = Mask()
for epoch in range(6):
    for at in range(0, 24, 6):
        fit(framework.concat([rows[each] for each in range(at, at + 6)]))
"""
)
CUT = (
    FIT
    + """
source = np.random.default_rng(1)
class Rows(Dataset):
    def __init__(self):
        self.rows = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, at):
        row = self.rows[at]
        begin = int(source.integers(0, 3))
        row[begin:begin + 2] = -1  # CAUSE
        return row
rows = Rows()
for epoch in range(6):
    for x in DataLoader(rows, batch_size=6):
        fit(x[0] if isinstance(x, (list, tuple)) else x)
"""
)
# What it is handed is asked for its shape as well.
SHAPED = MODULE.replace("given.subtract_(self.mean)", "given.add_(0.1 * noise(*given.shape))")
# A generator cuts batches of a table that each epoch cuts anew; what a normalisation takes off is put back later.
UNDONE = (
    FIT
    + """
class Scaled(nn.Layer if hasattr(nn, "Layer") else nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Tanh()
    def normalise(self, x):
        self.mean = x.mean(1, keepdim=True).detach()
        self.wide = 1 + x.abs().max().detach()
        x.subtract_(self.mean)  # CAUSE
        return x / self.wide
    def restore(self, y):
        return y * self.wide + self.mean
    def forward(self, x):
        return self.restore(self.inner(self.normalise(x)))
def batches(past, goal, size):
    for at in range(0, past.shape[0], size):
        yield past[at:at + size], goal[at:at + size]
def run_epoch(module, past, goal):
    for x, y in batches(past, goal, 6):
        fit(module(x) - y)
def main():
    module, past, goal = Scaled(), noise(30, 4) + 2, noise(30, 4)
    for epoch in range(6):
        run_epoch(module, past[:24], goal[:24])
main()
"""
)
# What a batch is noised with is drawn by the loop, and handed to a method that works in place.
NOISED = (
    FIT
    + """
class Schedule:
    def corrupt(self, clean, size, extra):
        return clean.multiply_(size).add_(0.5 * extra)  # CAUSE
    def mixed(self, clean, size, extra):
        return clean * size + 0.5 * extra
def batches(table, size):
    for at in range(0, len(table), size):
        yield table[at : at + size]
def main():
    schedule, table = Schedule(), noise(24, 4)
    before = table.clone()
    for epoch in range(6):
        for x in batches(table, 6):
            size, extra = noise(6, 1).abs(), noise(6, 4)
            fit(schedule.corrupt(x, size, extra))
    print("same", bool((before == table).all()))
main()
"""
)
MIXED = NOISED.replace("schedule.corrupt(", "schedule.mixed(").replace("  # CAUSE", "")
BUGS = {
    "cut out": PARTED,
    "undone": UNDONE,
    "masks": MASKS, "shaped": SHAPED, "cut": CUT,
    "array": ARRAY, "transform": TRANSFORM, "batches": BATCHES, "module": MODULE, "object": OBJECT, "step": STEP,
}  # fmt: skip
# On copies.
COPY = ARRAY.replace("row = self.rows[at]", "row = self.rows[at].copy()").replace("  # CAUSE", "")
COPIED = BATCHES.replace("x.add_(0.1 * noise(6, 4))  # CAUSE", "x = x.clone()\n            x.add_(0.1 * noise(6, 4))")
# Each row is normalised as it is first visited.
ONCE = (
    FIT
    + """
class Rows(Dataset):
    def __init__(self):
        self.rows = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
        self.done, self.visits, self.hard = set(), np.zeros(24, dtype="float32"), np.ones(24, dtype="float32")
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, at):
        row = self.rows[at]
        if at not in self.done:
            row -= row.mean()
            self.done.add(at)
        self.visits[at] += 1
        self.hard[at] *= self.hard.mean()
        return row, self.visits[at]
rows = Rows()
for epoch in range(5):
    for x, y in DataLoader(rows, batch_size=6):
        fit(x)
"""
)
# A memory whose slots are written anew, and the mean of each class, which moves.
RING = (
    FIT
    + """
class Memory:
    def __init__(self):
        self.slots, self.means, self.at = noise(6, 4), noise(3, 4), 0
    def keep(self, row):
        slot = self.slots[self.at % 6]
        slot.set_value(row) if hasattr(slot, "set_value") else slot.copy_(row)
        mean = self.means[self.at % 3]
        mean *= 0.9
        mean += 0.1 * row
        self.at += 1
        return slot
memory = Memory()
for step in range(30):
    memory.keep(noise(4))
    fit(memory.slots.clone())
"""
)
CLONES = MODULE.replace("  # CAUSE", "").replace(
    "given = self.normalise(given)", "given = self.normalise(given.clone())"
)
PICKED = OBJECT.replace("  # CAUSE", "").replace("self.table[at:at + 6]", "self.table[np.arange(at, at + 6)]")
# Each sample is made to have the mean 0: the second time it has it.
CENTRED = MODULE.replace("self.mean)  # CAUSE", "given.mean(-1, keepdim=True))")
# Negative numbers are cut off: there are none behind the first visit.
RECTIFIED = MODULE.replace("given.subtract_(self.mean)  # CAUSE", "given.clip_(min=0.0)")
# Bodies that move at each step, and centres that an update moves to what is seen.
MOVED = (
    FIT
    + """
class World:
    def __init__(self):
        self.wind = noise(4)
    def __call__(self, body):
        return body.add_(self.wind)
def closer(centre, seen):
    centre.add_(0.1 * (seen - centre))
    return centre
def play():
    simulate, agents, middles = World(), [noise(4) for _ in range(3)], [noise(4) for _ in range(3)]
    for step in range(20):
        fit(simulate(agents[step % 3]) + closer(middles[step % 3], noise(4)))
play()
"""
)
# What is left of a row that is put together anew is blanked.
SCRATCH = (
    FIT
    + """
source = np.random.default_rng(1)
class Rows(Dataset):
    def __init__(self):
        self.rows, self.scratch = [noise(3) for _ in range(24)], [noise(4)]
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, at):
        row = self.scratch[0]
        many = int(source.integers(1, 4))
        row[:many] = self.rows[at][:many]
        row[many:] = 0.0
        return row
rows = Rows()
for epoch in range(6):
    for at in range(24):
        fit(rows[at].clone())
"""
)
ALWAYS = CUT.replace("row[begin:begin + 2] = -1  # CAUSE", "row[1:3] = -1")
# New data in each epoch, perhaps where that of the last one lay; statistics that nobody puts back.
FRESH = UNDONE.replace("past[:24], goal", "noise(24, 4) + 2, goal").replace("  # CAUSE", "")
KEPT = UNDONE.replace("y * self.wide + self.mean", "y").replace("  # CAUSE", "")
CLONED = UNDONE.replace("self.normalise(x)", "self.normalise(x.clone())").replace("  # CAUSE", "")
# What it took off is put back in place, once the batch is done.
BACK = (
    UNDONE.replace(
        "return y * self.wide + self.mean", "return y\n    def put_back(self, x):\n        x.add_(self.mean)"
    )
    .replace("fit(module(x) - y)", "fit(module(x) - y)\n        module.put_back(x)")
    .replace("  # CAUSE", "")
)
HEALTHY = {
    "mixed": MIXED,
    "filled": FILLED, "cut out, a copy": PARTED_COPY, "back": BACK, "fresh": FRESH, "kept": KEPT, "cloned": CLONED,
    "scratch": SCRATCH, "always the same part": ALWAYS,
    "copy": COPY, "copied": COPIED, "once": ONCE, "ring": RING, "clones": CLONES, "picked": PICKED, "centred": CENTRED,
    "rectified": RECTIFIED, "moved": MOVED,
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    programs = {name: HEAD[request.param] + text for name, text in {**BUGS, **HEALTHY, "noised": NOISED}.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), programs)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"graphs-accumulated-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGS)
def test_the_line_that_changes_what_is_stored(runs: dict[str, Run], name: str) -> None:
    found = runs[name].check_first("silent-overwrite")
    assert "has changed 2 times" in found["evidence"][0] and "view" in found["message"], found


@each
def test_that_the_data_is_changed(runs: dict[str, Run]) -> None:
    assert "same False" in runs["array"].output
    assert "same True" in runs["copy"].output


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_copies_and_what_is_meant(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()


@each
def test_what_drawn_numbers_are_mixed_in_may_be_a_process(runs: dict[str, Run]) -> None:
    assert "same False" in runs["noised"].output
    assert runs["noised"].check_first("silent-overwrite")["severity"] == "note"

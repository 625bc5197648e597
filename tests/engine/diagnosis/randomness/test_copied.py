"""Generators of a data set that its loader copies to each worker. Witness: what the workers drew, which the program
compares from pass to pass."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import random
import numpy as np
import torch as fw
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info
fw.manual_seed(0)
def sgd(net):
    optimizer = fw.optim.SGD(net.parameters(), 0.01)
    return optimizer, optimizer.zero_grad
def tensor(values):
    return fw.tensor(values, dtype=fw.float32)
""",
    "paddle": """
import random
import numpy as np
import paddle as fw
from paddle import nn
from paddle.io import DataLoader, Dataset, get_worker_info
fw.seed(0)
def sgd(net):
    optimizer = fw.optimizer.SGD(0.01, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
def tensor(values):
    return np.array(values, dtype="float32")
""",
}
START = """
def fresh():
    return np.random.default_rng(int(np.random.randint(1 << 30)))  # frameworks seed NumPy in each worker
class Noisy(Dataset):
    def __init__(self):
        super().__init__()
        INIT
    def __len__(self):
        return 8
    def __getitem__(self, at):
        DRAW
        return tensor([drawn, float(at), 1.0])
    MORE
"""
FIT = """
net = nn.Linear(3, 1)
optimizer, clear = sgd(net)
passes = []
for epoch in range(2):
    BEFORE
    drawn = {}
    for batch in loader:
        batch = batch[0] if isinstance(batch, (list, tuple)) else batch
        drawn.update({int(at): value for value, at, _ in batch.tolist()})
        loss = net(batch).square().mean()
        clear()
        loss.backward()
        optimizer.step()
    passes.append([drawn[at] for at in range(8)])
print("repeated" if passes[0] == passes[-1] else "new", "in each pass")
"""


def program(init: str, draw: str, *, more: str = "", between: str = "", data: str = "Noisy()", before: str = "pass",
            options: str = "num_workers=2") -> str:  # fmt: skip
    made = START.replace("INIT", init.replace("\n", "\n        ")).replace("DRAW", draw.replace("\n", "\n        "))
    loader = f"data = {data}\nloader = DataLoader(data, batch_size=4, shuffle=False, {options})\n"
    return made.replace("MORE", more.replace("\n", "\n    ")) + between + loader + FIT.replace("BEFORE", before)


NUMPY = "self.rng = np.random.default_rng(0)  # CAUSE"
DRAWN = "drawn = float(self.rng.normal())"
JITTER = """
class Jitter:
    def __init__(self):
        self.rng = random.Random(3)  # CAUSE
    def __call__(self, at):
        return self.rng.random() + at
"""
BUGGY = {
    "NumPy": program(NUMPY, DRAWN),
    "an older one of NumPy": program("self.state = np.random.RandomState(7)  # CAUSE",
                                     "drawn = float(self.state.rand())"),
    "Python": program("self.random = random.Random(1)  # CAUSE", "drawn = self.random.random()"),
    "one worker": program(NUMPY, DRAWN, options="num_workers=1"),
    "by a method": program(NUMPY, "drawn = self.noise()", more="def noise(self):\n    return float(self.rng.normal())"),
    "of a transform": program("self.transform = Jitter()", "drawn = self.transform(at)", between="").replace(
        "class Noisy", JITTER + "class Noisy"),
    "within another": program(NUMPY, DRAWN, data="fw.io.Subset(Noisy(), list(range(8)))"),
    "a torch.Generator": program("self.made = fw.Generator().manual_seed(2)  # CAUSE",
                                 "drawn = fw.rand(1, generator=self.made).item()"),
}  # fmt: skip
MISSED = {
    # FAULT, or meant: since f645cd3b any function for workers is taken for one that seeds the generator
    "workers that seed something else": program(
        NUMPY, DRAWN, between="def begin(number):\n    np.random.seed(number)\n",
        options="num_workers=2, worker_init_fn=begin"),
}  # fmt: skip
PLAIN = NUMPY.removesuffix("  # CAUSE")
SEEDED = """
def begin(number):
    get_worker_info().dataset.rng = fresh()
"""
HEALTHY = {  # and what they draw
    "this process": (program(PLAIN, DRAWN, options="num_workers=0"), "new"),
    "seeded in each worker": (program(PLAIN, DRAWN, between=SEEDED,
                                      options="num_workers=2, worker_init_fn=begin"), "new"),
    "workers that stay": (program(PLAIN, DRAWN, options="num_workers=2, persistent_workers=True"), "new"),
    "made in each worker": (program("self.rng = None", "if self.rng is None:\n    self.rng = fresh()\n"
                                    + DRAWN), "new"),
    "asks which worker it is in": (program(
        PLAIN, "info = get_worker_info()\nrng = self.rng if info is None else fresh()\n"
               "drawn = float(rng.normal())"), "new"),
    "drawn as it is made": (program(PLAIN + "\nself.noise = self.rng.normal(size=8)", "drawn = float(self.noise[at])"),
                            "repeated"),
    "moved on here": (program(PLAIN, DRAWN, before="data.rng.normal()"), "new"),
    "set for each pass": (program(PLAIN, DRAWN, before="data.set_epoch(epoch)",
                                  more="def set_epoch(self, epoch):\n    self.rng = np.random.default_rng(epoch)"),
                          "new"),
    "by the number of the sample": (program("self.epoch = 0", "drawn = random.Random(f'{self.epoch} {at}').random()",
                                            before="data.epoch = epoch"), "new"),
    "one pass": (program(PLAIN, DRAWN).replace("range(2)", "range(1)"), "repeated"),
    "seeded by a method": (program(
        PLAIN, DRAWN, more="def seed(self):\n    self.rng = fresh()",
        between="def begin(number):\n    get_worker_info().dataset.seed()\n",
        options="num_workers=2, worker_init_fn=begin"), "new"),
}  # fmt: skip


def text(framework: str, part: str) -> str:
    if framework == "torch":
        part = part.replace("fw.io.Subset", "fw.utils.data.Subset")
    return HEAD[framework] + part


def parts_of(framework: str) -> dict[str, str]:
    buggy = {name: part for name, part in BUGGY.items() if framework == "torch" or name != "a torch.Generator"}
    return buggy | MISSED | {name: part for name, (part, _) in HEALTHY.items()}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: text(request.param, part) for name, part in parts_of(request.param).items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"copied-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)
torch = pytest.mark.parametrize("runs", [cases["torch"]], indirect=True)


def check_copied(run: Run) -> None:
    assert "repeated in each pass" in run.plain, run
    first = run.check_first("repeated-random")
    assert first["severity"] == "warning" and "as each pass begins" in first["message"], first


@each
@pytest.mark.parametrize("name", [name for name in BUGGY if name != "a torch.Generator"])
def test_generators_that_are_copied(runs: dict[str, Run], name: str) -> None:
    check_copied(runs[name])


@each
@pytest.mark.parametrize("name", MISSED)
@pytest.mark.xfail(reason="see MISSED")
def test_generators_that_workers_do_not_seed(runs: dict[str, Run], name: str) -> None:
    check_copied(runs[name])


@torch
def test_a_generator_of_torch(runs: dict[str, Run]) -> None:
    check_copied(runs["a torch.Generator"])


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_numbers_of_their_own(runs: dict[str, Run], name: str) -> None:
    assert f"{HEALTHY[name][1]} in each pass" in runs[name].plain, runs[name]
    runs[name].check_healthy()

"""Checkpointed regions that come to something else the second time: the line that draws, or that changes what the next
pass finds, wherever in the region that is; the call of the checkpoint where it may be several."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import random
import numpy as np
import torch
from torch import nn
from torch.utils import checkpoint as checkpoints
torch.manual_seed(0)
random.seed(0)
np.random.seed(0)
Module, tanh, noise = nn.Module, torch.tanh, torch.randn
def again(block, x):
    return checkpoints.checkpoint(block, x.requires_grad_(), use_reentrant=True)  # CALL
def made(net):
    return torch.optim.SGD(net.parameters(), 0.05), "zero_grad"
LIST = nn.ModuleList
""",
    "paddle": """
import random
import numpy as np
import paddle
from paddle import nn
from paddle.distributed.fleet import utils as fleet
paddle.seed(0)
random.seed(0)
np.random.seed(0)
Module, tanh, noise = nn.Layer, paddle.tanh, lambda *shape: paddle.randn(shape)
def again(block, x):
    if x.is_leaf:
        x.stop_gradient = False
    return fleet.recompute(block, x)  # CALL
def made(net):
    return paddle.optimizer.SGD(0.05, parameters=net.parameters()), "clear_grad"
LIST = nn.LayerList
""",
}
COMMON = """
OWN = random.Random(3)
class Part(Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
    def forward(self, x):
        return x + tanh(self.inner(x))
"""
TRAIN = """
class Net(Module):
    def __init__(self):
        super().__init__()
        self.parts = LIST([Block() for _ in range(2)])
        self.head = nn.Linear(4, 1)
    def forward(self, x):
        for part in self.parts:
            x = again(RUN, x)
        return self.head(x)
net = Net()
optimizer, clear = made(net)
try:
    for _ in range(12):
        loss = net(noise(8, 4)).square().mean()
        getattr(optimizer, clear)()
        loss.backward()
        optimizer.step()
except Exception as error:
    print("ended", type(error).__name__)
"""
# A part is left out now and then: what differs first is an operator of a part that comes next.
DEPTH = """
class Block(Module):
    def __init__(self):
        super().__init__()
        self.parts = LIST([Part() for _ in range(3)])
        self.dropped = 0
    def forward(self, x):
        for part in self.parts:
            if self.training and OWN.random() < 0.5:  # CAUSE
                self.dropped += 1
                continue
            x = part(x)
        return x
"""
# By a helper that a method calls, which a closure calls.
HELPER = """
gains = np.random.default_rng(0)
def pick(parts):
    return parts[int(gains.integers(len(parts)))]  # CAUSE
class Block(Module):
    def __init__(self):
        super().__init__()
        self.parts = LIST([Part() for _ in range(3)])
    def one(self, x):
        return pick(self.parts)(x) + x
    def forward(self, x):
        return self.one(x)
"""
COUNT = """
class Block(Module):
    def __init__(self):
        super().__init__()
        self.parts = LIST([Part() for _ in range(3)])
        self.turn = 0
    def forward(self, x):
        part = self.parts[self.turn]
        self.turn = (self.turn + 1) % 3  # CAUSE
        return part(x) + self.parts[0](x)
"""
QUEUE = """
class Block(Module):
    def __init__(self):
        super().__init__()
        self.parts = LIST([Part() for _ in range(3)])
        self.queue = [number % 3 for number in range(400)]
    def forward(self, x):
        number = self.queue.pop()  # CAUSE
        return self.parts[number](x) + x
"""
TWO = DEPTH.replace("  # CAUSE", "").replace(
    "            x = part(x)", "            x = part(x) if OWN.random() < 0.7 else -x"
)
# Random numbers that are restored, or are drawn in front of the region; counts that nothing is computed of.
HEALTHY = """
class Block(Module):
    def __init__(self):
        super().__init__()
        self.parts = LIST([Part() for _ in range(3)])
        self.drop = nn.Dropout(0.3)
        self.calls, self.seen = 0, []
    def forward(self, x):
        self.calls += 1
        self.seen.append(int(x.shape[0]))
        chosen = random.Random(5).sample(range(3), 3)
        for number in chosen:
            x = self.drop(self.parts[number](x))
        return x
"""
AHEAD = """
class Block(Module):
    def __init__(self):
        super().__init__()
        self.parts = LIST([Part() for _ in range(3)])
    def forward(self, x):
        return self.parts[self.number](x) + x
    def ahead(self):
        self.number = OWN.randrange(3)
        return self
"""
WRONG = {"depth": (DEPTH, "part"), "helper": (HELPER, "lambda h, part=part: part.one(h)"), "count": (COUNT, "part"),
         "queue": (QUEUE, "part.forward")}  # fmt: skip
RIGHT = {"healthy": (HEALTHY, "part"), "ahead": (AHEAD, "part.ahead()")}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {}
    for name, (text, run) in {**WRONG, **RIGHT, "two": (TWO, "part")}.items():
        whole = HEAD[request.param] + COMMON + text + TRAIN.replace("RUN", run)
        texts[name] = whole.replace("# CALL", "# CAUSE") if name == "two" else whole
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"functions-regions-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", WRONG)
def test_the_line_that_differs(runs: dict[str, Run], name: str) -> None:
    assert runs[name].check_first("recompute-differs")["severity"] == "error"
    assert len(runs[name].above_notes()) == 1, str(runs[name])


@each
def test_several_that_may_differ(runs: dict[str, Run]) -> None:
    runs["two"].check_first("recompute-differs")


@each
@pytest.mark.parametrize("name", RIGHT)
def test_what_is_the_same_twice(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()

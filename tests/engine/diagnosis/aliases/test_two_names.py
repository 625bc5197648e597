"""Tensors that are overwritten in place under one name and read under another."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

TORCH = """
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(5)
data, y = torch.randn(32, 8), torch.randn(32, 1)
changed = []
def witness(before, now):
    with torch.no_grad():
        changed.append(not torch.equal(before, now))
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.act, self.a, self.b = nn.ReLU(inplace=True), nn.Linear(8, 8), nn.Linear(8, 8)
        self.body = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8), nn.Tanh())
        self.both = nn.Linear(16, 8)
    def forward(self, x):
        before = x.detach().clone()
        BLOCK
def corrupt(batch):
    batch += 0.5 * torch.randn_like(batch)IN_CORRUPT
    return batch
def center_(batch):
    return batch.sub_(batch.mean())
net = nn.Sequential(nn.Linear(8, 8), Block(), Block(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), 1e-2)
for step in range(6):
    x = data[:16].clone()
    before = x.clone()
    LOSS
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("changed", any(changed))
"""
PADDLE = """
import paddle
import paddle.nn.functional as F
from paddle import nn
paddle.seed(5)
data, y = paddle.randn([32, 8]), paddle.randn([32, 1])
changed = []
def witness(before, now):
    with paddle.no_grad():
        changed.append(not bool(paddle.equal_all(before, now)))
class Block(nn.Layer):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.both = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(16, 8)
    def forward(self, x):
        before = x.detach().clone()
        BLOCK
def corrupt(batch):
    batch.add_(0.5 * paddle.randn(batch.shape))IN_CORRUPT
    return batch
net = nn.Sequential(nn.Linear(8, 8), Block(), Block(), nn.Linear(8, 1))
optimizer = paddle.optimizer.SGD(1e-2, parameters=net.parameters())
for step in range(6):
    x = data[:16].clone()
    before = x.clone()
    LOSS
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
print("changed", any(changed))
"""
PLAIN = "return x + self.b(F.relu(self.a(x)))"


def _program(base: str, block: str = PLAIN, loss: str = "loss = F.mse_loss(net(x), y[:16])", corrupt: str = "") -> str:
    blocks, losses = block.replace("\n", "\n        "), loss.replace("\n", "\n    ")
    return base.replace("BLOCK", blocks).replace("LOSS", losses).replace("IN_CORRUPT", corrupt)


SKIPS = """kept = []
for layer in (self.a, self.b):
    x = layer(x)
    kept.append(x)
    before = x.detach().clone()
    ACT
for layer in (self.a, self.b):
    skip = kept.pop()
    if not kept:
        witness(first, skip)
    first = before
    x = torch.tanh(self.both(torch.cat([x, skip], 1)))
return x"""
ADDED = """noisy = corrupt(x)
witness(before, x)
loss = F.mse_loss(net(noisy), y[:16]) + (net[0](noisy) - x).square().mean()"""
MASKED = """def masked(given):
    target = given  # CAUSE
    given[:, 2:] = 0
    return given, target
given, target = masked(x)
witness(before, target)
loss = F.mse_loss(net(given), y[:16]) + (net[0](given) - target).square().mean()"""
BROKEN = {
    "torch": {
        "first layer of a branch": _program(
            TORCH, "out = x + self.body(x)  # CAUSE\nwitness(before, x)\nreturn out"
        ),
        "by name": _program(
            TORCH, "out = self.act(x)  # CAUSE\nout = self.b(self.act(self.a(out)))\nwitness(before, x)\nreturn out + x"
        ),
        "list": _program(TORCH, SKIPS.replace("ACT", "x = F.relu(x, inplace=True)  # CAUSE")),
        "argument": _program(TORCH, loss=ADDED, corrupt="  # CAUSE"),
        "two names in one operator": _program(
            TORCH, "out = self.act(x)  # CAUSE\nwitness(before, x)\nreturn self.b(out + x)"
        ),
        "both are returned": _program(TORCH, loss=MASKED),
    },
    "paddle": {
        "by name": _program(
            PADDLE, "out = F.relu_(x)  # CAUSE\nout = self.b(F.relu(self.a(out)))\nwitness(before, x)\nreturn out + x"
        ),
        "list": _program(PADDLE, SKIPS.replace("ACT", "x = F.relu_(x)  # CAUSE").replace("torch", "paddle")),
        "argument": _program(PADDLE, loss=ADDED, corrupt="  # CAUSE"),
    },
}  # fmt: skip
KEPT = "identity = x.clone()\nout = self.b(self.a(ACT))\nwitness(before, identity)\nreturn out + identity"
HEALTHY = {
    "torch": {
        "the name itself": _program(TORCH, "x = self.act(x)\nreturn x + self.b(self.act(self.a(x)))"),
        "a copy": _program(TORCH, KEPT.replace("ACT", "self.act(x)")),
        "nothing but overwriting": _program(
            TORCH, loss="x.clamp_(-1, 1)\nloss = F.mse_loss(net(x), y[:16]) + x.mean()"
        ),
        "a name that says so": _program(
            TORCH, loss="centered = center_(x)\nloss = F.mse_loss(net(centered), y[:16]) + x.mean()"
        ),
        "the function is called again": _program(TORCH, "x = self.a(x)\nreturn self.act(x)"),
        "the name is given again": _program(
            TORCH, "for layer in (self.a, self.act, self.b):\n    out = layer(x)\n    x = out\nreturn self.a(x)"
        ),
        "it is positive already": _program(
            TORCH, "x = F.max_pool1d(F.relu(x), 1)\nbefore = x.detach().clone()\nout = x + self.body(x)\n"
            "witness(before, x)\nreturn out",
        ),
        "a state that is advanced": _program(
            TORCH, loss="def advance(state):\n    state.tanh_()\n    return state.norm().item()\n"
            "energy = advance(x)\nloss = F.mse_loss(net(x), y[:16])",
        ),
        "a buffer that is filled": _program(
            TORCH, loss="rows = torch.zeros(16, 8)\nall_rows = rows\nrows.add_(x)\n"
            "loss = F.mse_loss(net(all_rows), y[:16])",
        ),
        "a list whose tensors are activated": _program(
            TORCH, "maps = [self.a(x), self.b(x)]\nfor one in maps:\n    one = self.act(one)\n"
            "return torch.stack(maps).sum(0)",
        ),
        "its sizes alone": _program(
            TORCH, "out = self.act(x)\nout = self.b(out)\nreturn out + 0.1 * torch.randn_like(x)"
        ),
        "nothing is changed": _program(
            TORCH, "x = x.sigmoid()\nbefore = x.detach().clone()\nout = self.act(x)\nout = self.b(out)\n"
            "witness(before, x)\nreturn out + x",
        ),
    },
    "paddle": {
        "the name itself": _program(PADDLE, "x = F.relu_(x)\nreturn x + self.b(F.relu(self.a(x)))"),
        "a copy": _program(PADDLE, KEPT.replace("ACT", "F.relu_(x)")),
        "the function is called again": _program(PADDLE, "x = self.a(x)\nreturn F.relu_(x)"),
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    name = request.param
    texts = {f"broken {key}": text for key, text in BROKEN[name].items()}
    texts |= {f"healthy {key}": text for key, text in HEALTHY[name].items()}
    return {"": name, **diagnose_each(name, tmp_path_factory.mktemp("programs"), texts)}  # type: ignore[dict-item]


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"two-names-{name}") for name in FRAMEWORKS], indirect=True
)


def _changed(run: Run) -> bool:
    """What the program found of the tensor that is read, compared with a copy of before."""
    return "changed True" in run.output


@each
def test_the_overwriting_line_is_the_cause(runs: dict[str, Run]) -> None:
    for key in BROKEN[str(runs[""])]:
        run = runs[f"broken {key}"]
        found = run.check_first("silent-overwrite")
        assert "overwrites a tensor in place that" in found["message"] or "is no copy" in found["message"], (key, found)
        assert _changed(run), (key, run.output)


@each
def test_what_is_meant_is_not_told(runs: dict[str, Run]) -> None:
    for key in HEALTHY[str(runs[""])]:
        run = runs[f"healthy {key}"]
        assert not any(found["kind"] == "silent-overwrite" for found in run.every), (key, run)
        assert not _changed(run), (key, run.output)

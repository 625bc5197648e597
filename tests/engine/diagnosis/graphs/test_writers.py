"""A bank that another method writes in place before the backward of what was read from it, first in an iteration that
nobody watches: the only line that writes it. Witness: the framework raises."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as fw
from torch import nn
fw.manual_seed(0)
randn, no_grad = fw.randn, fw.no_grad
def sgd(net):
    optimizer = fw.optim.SGD(net.parameters(), 0.01)
    return optimizer, optimizer.zero_grad
""",
    "paddle": """
import paddle as fw
from paddle import nn
fw.seed(0)
def randn(*shape):
    return fw.randn(shape)
no_grad = fw.no_grad
def sgd(net):
    optimizer = fw.optimizer.SGD(0.01, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
""",
}
START = """
class Memory:
    def __init__(self):
        self.bank, self.at = randn(4, 16), 0
    def scores(self, feats):
        TAKEN
    def enqueue(self, rows):
        WRITE
net, memory = nn.Linear(6, 4), Memory()
optimizer, clear = sgd(net)
for at in range(26):
    feats = net(randn(8, 6))
    loss = feats.square().mean()
    if at >= 21:
        loss = loss + 0.01 * fw.exp(memory.scores(feats)).mean()
        BEFORE
    clear()
    loss.backward()
    optimizer.step()
    BEHIND
print("done")
"""
MATMUL = "return feats @ self.bank"


def program(write: str, taken: str = MATMUL, before: str = "memory.enqueue(feats.detach())",
            behind: str = "pass") -> str:  # fmt: skip
    parts = {"TAKEN": taken, "WRITE": write, "BEFORE": before, "BEHIND": behind}
    text = START
    for name, part in parts.items():
        text = text.replace(name, part.replace("\n", "\n        "))
    return text


SLICE = "self.bank[:, :8] = rows.transpose(0, 1) if fw.__name__ == 'torch' else rows.transpose([1, 0])"
BUGGY = {
    "a slice": program(f"{SLICE}  # CAUSE"),
    "an index": program("self.bank[0] = rows[0, 0]  # CAUSE"),
    "without gradients": program("with no_grad():\n    self.bank[0] = rows[0, 0]  # CAUSE"),
    "a product": {  # Paddle's sign makes a tensor of its own
        "torch": program("self.bank *= 0.99  # CAUSE"),
        "paddle": program("self.bank.scale_(0.99)  # CAUSE"),
    },
    "by a method": program("self.bank.add_(rows.mean())  # CAUSE"),
    "copied": {
        "torch": program("self.bank.copy_(self.bank * 0.9)  # CAUSE"),
        "paddle": program("self.bank.multiply_(self.bank)  # CAUSE"),
    },
    "by a name of its own": program(
        "self.bank[1] = rows[0, 0]  # CAUSE", taken="bank = self.bank\nreturn feats @ self.bank"),
    "taken as an argument": program("self.bank[1] = rows[0, 0]  # CAUSE", taken="return fw.matmul(feats, self.bank)"),
}  # fmt: skip
HEALTHY = {
    "written behind the backward": program(SLICE, before="pass", behind="memory.enqueue(feats.detach())"),
    "a copy is taken": program(SLICE, taken="return feats @ self.bank.clone()"),
    "made anew": program("self.bank = fw.concat([self.bank[:, 1:], self.bank[:, :1]], 1)"),
    "only added": program(SLICE, taken="return feats.mean() + self.bank.sum()"),
}  # fmt: skip
TWICE = program("self.bank[0] = rows[0, 0]\nself.bank[1] = rows[0, 0]")


def text(framework: str, part: str | dict[str, str]) -> str:
    return HEAD[framework] + (part if isinstance(part, str) else part[framework])


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: text(request.param, part) for name, part in (BUGGY | HEALTHY | {"twice": TWICE}).items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"writers-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_the_only_line_that_writes(runs: dict[str, Run], name: str) -> None:
    assert not runs[name].plain.startswith("done\n"), runs[name]
    first = runs[name].check_first("in-place")
    assert "self.bank" in first["message"] and first["severity"] == "error", first


@each
def test_of_two_lines_none_is_named(runs: dict[str, Run]) -> None:
    assert not runs["twice"].plain.startswith("done\n")
    found = [each for each in runs["twice"].told if each["kind"] == "in-place"]
    assert found and found[0]["cause"] is None, runs["twice"]


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_banks_that_may_be_written(runs: dict[str, Run], name: str) -> None:
    assert runs[name].plain.startswith("done\n"), runs[name]
    runs[name].check_healthy()

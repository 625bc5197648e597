"""Rows that are written to places of a tensor which come several times. Witness: how many of the rows what comes
out depends on, by changing one after the other."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as fw
from torch import nn
fw.manual_seed(0)
randn, zeros, long, no_grad = fw.randn, fw.zeros, fw.tensor, fw.no_grad
def wanted(value):
    return value.requires_grad_()
def sgd(net):
    optimizer = fw.optim.SGD(net.parameters(), 0.1)
    return optimizer, optimizer.zero_grad
""",
    "paddle": """
import paddle as fw
from paddle import nn
fw.seed(0)
def randn(*shape):
    return fw.randn(shape)
def zeros(*shape):
    return fw.zeros(shape)
long, no_grad = fw.to_tensor, fw.no_grad
def wanted(value):
    value.stop_gradient = False
    return value
def sgd(net):
    optimizer = fw.optimizer.SGD(0.1, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
""",
}
NET = """
net, head = nn.Linear(4, 5), nn.Linear(5, 1)
dst = long([0, 1, 1, 2, 2, 2, 3, 0])
only = long([3, 0, 7, 1, 6, 2, 5, 4])
x = randn(8, 4)
"""
FIT = """
optimizer, clear = sgd(nn.Sequential(net, head))
for at in range(6):
    loss = (head(pooled_of(fw.tanh(net(x)))) - 1).square().mean()
    loss.backward()
    optimizer.step()
    clear()
rows, counted = randn(8, 5), 0
with no_grad():
    for row in range(8):
        other = rows + long([[float(at == row)] for at in range(8)])
        counted += abs((pooled_of(other) - pooled_of(rows)).sum().item()) > 1e-3
print("rows that count:", counted)
"""


def pooled(*lines: str, size: int = 8) -> str:
    body = "".join(f"\n    {line}" for line in (f"pooled = zeros({size}, 5)", *lines, "return pooled"))
    return f"def pooled_of(messages):{body}\n"


COUNTS = (
    pooled("return fw.zeros_like(messages) + messages")
    + """
count = zeros(4)
for each in range(3):
    with no_grad():
        count[dst] += 1  # CAUSE
print("counted", count.tolist())
loss = wanted(randn(3)).sum()
"""
)
BUGGY = {
    "set": pooled("pooled[dst] = messages  # CAUSE"),
    "of an expression": pooled("pooled[dst] = 2 * messages + 1  # CAUSE"),
    "index_put_": pooled("pooled.index_put_((dst,), messages)  # CAUSE"),
    "index_put": pooled("return pooled.index_put((dst,), messages)  # CAUSE"),
    "places of two axes": pooled("pooled[dst, dst % 2] = messages  # CAUSE", "return pooled.sum(1)").replace(
        "zeros(8, 5)", "zeros(8, 2, 5)"),
    "along rows of an expanded index": {
        "torch": pooled("return pooled.scatter(0, dst[:, None].expand(-1, 5), messages)  # CAUSE"),
        "paddle": pooled("return fw.put_along_axis(pooled, dst[:, None].expand([8, 5]), messages, 0)  # CAUSE"),
    },
    "by the method": {
        "torch": pooled("return pooled.index_copy(0, dst, messages)  # CAUSE"),
        "paddle": pooled("return pooled.put_along_axis(dst[:, None].expand([8, 5]), messages, 0)  # CAUSE"),
    },
    "in place": {
        "torch": pooled("pooled.scatter_(0, dst[:, None].expand(-1, 5), messages)  # CAUSE"),
        "paddle": pooled("return fw.scatter(pooled, dst, messages)  # CAUSE"),
    },
    "with a word for it": {
        "torch": pooled("pooled.index_copy_(dim=0, index=dst, source=messages)  # CAUSE"),
        "paddle": pooled("return fw.scatter(pooled, dst, messages, overwrite=True)  # CAUSE"),
    },
}  # fmt: skip
ADDS = {
    "torch": pooled("return pooled.index_add(0, dst, messages)"),
    "paddle": pooled("return fw.index_add(pooled, dst, 0, messages)"),
}
# What each row gets, by ``grad`` of the framework.
GRADIENTS = (
    pooled("pooled[dst] = messages  # CAUSE")
    + """
rows = wanted(randn(8, 5))
given = (fw.grad if fw.__name__ == "paddle" else fw.autograd.grad)([pooled_of(rows).square().sum()], [rows])[0]
print("rows with a gradient:", sum(any(row) for row in given.tolist()))
"""
)
HEALTHY = {
    "places of their own": pooled("pooled[only] = messages"),
    "added": ADDS,
    "added by scatter": {
        "torch": pooled("return pooled.scatter_add(0, dst[:, None].expand(-1, 5), messages)"),
        "paddle": pooled("return fw.scatter(pooled, dst, messages, overwrite=False)"),
    },
    "accumulated": {
        "torch": pooled("pooled.index_put_((dst,), messages, accumulate=True)"),
        "paddle": pooled("return pooled.index_put((dst,), messages, accumulate=True)"),
    },
    "a mask": pooled("pooled[only >= 0] = messages"),
    "a slice": pooled("pooled[:8] = messages"),
    "one of each row": pooled("pooled[only, dst] = messages.sum(1)", "return pooled"),
    "twice the same": pooled("pooled[dst] = messages.mean(0, keepdim=True).expand([8, 5])"),
    "a bank that nobody trains": pooled(
        "with no_grad():", "    bank = zeros(4, 5)", "    bank[dst] = messages.detach()",
        "return messages + 0 * bank.sum()"),
    "counted by adding": {
        "torch": pooled("count = zeros(8).index_add(0, dst, fw.ones(8))",
                        "return pooled.index_add(0, dst, messages) / count.clamp(min=1)[:, None]"),
        "paddle": pooled("count = fw.index_add(zeros(8), dst, 0, fw.ones([8]))",
                         "return fw.index_add(pooled, dst, 0, messages) / count.clip(min=1)[:, None]"),
    },
    "a number of each class": {
        "torch": pooled("hot = zeros(8, 5).scatter(1, dst[:, None], 1.0)", "return messages + hot"),
        "paddle": pooled("hot = fw.put_along_axis(zeros(8, 5), dst[:, None], 1.0, 1)", "return messages + hot"),
    },
    "all but one": pooled("pooled[long([*range(7), 6])] = messages"),
    "the best of each row": {
        "torch": pooled("best, at = messages.topk(1, 1)", "return messages + zeros(8, 5).scatter(1, at, best)"),
        "paddle": pooled("best, at = messages.topk(1, 1)",
                         "return messages + fw.put_along_axis(zeros(8, 5), at, best, 1)"),
    },
    "two of each row": {
        "torch": pooled("best, at = messages.topk(2, 1)", "return messages + zeros(8, 5).scatter(1, at, best)"),
        "paddle": pooled("best, at = messages.topk(2, 1)",
                         "return messages + fw.put_along_axis(zeros(8, 5), at, best, 1)"),
    },
}  # fmt: skip
OF_TORCH = {
    "reduced": pooled("return pooled.scatter_reduce(0, dst[:, None].expand(-1, 5), messages, 'sum')"),
}  # fmt: skip
OF_PADDLE = {
    "reduced": pooled("return fw.put_along_axis(pooled, dst[:, None].expand([8, 5]), messages, 0, reduce='add')"),
    "reduced, at its place": pooled("return pooled.put_along_axis(dst[:, None].expand([8, 5]), messages, 0, 'add')"),
}  # fmt: skip


def text(framework: str, part: str | dict[str, str]) -> str:
    return HEAD[framework] + NET + (part if isinstance(part, str) else part[framework]) + FIT


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    own = OF_TORCH if request.param == "torch" else OF_PADDLE
    parts = {**BUGGY, **HEALTHY, **own, "counts": COUNTS, "gradients": GRADIENTS}
    texts = {name: text(request.param, part) for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"duplicates-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)
torch = pytest.mark.parametrize("runs", [cases["torch"]], indirect=True)
paddle = pytest.mark.parametrize("runs", [cases["paddle"]], indirect=True)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_rows_of_which_the_last_stays(runs: dict[str, Run], name: str) -> None:
    assert "rows that count: 4\n" in runs[name].plain, runs[name]
    first = runs[name].check_first("silent-overwrite")
    assert first["severity"] == "warning" and "8 values to 4 places" in first["message"], first


@each
def test_a_count_that_adds_once_for_each_place(runs: dict[str, Run]) -> None:
    assert "counted [3.0, 3.0, 3.0, 3.0]" in runs["counts"].plain  # of 6, 6, 9 and 3
    assert "once for each place" in runs["counts"].check_first("silent-overwrite")["message"]


@each
def test_what_it_says_of_their_gradients(runs: dict[str, Run]) -> None:
    assert "rows with a gradient: 8\n" in runs["gradients"].plain, runs["gradients"]
    assert "get no gradient" not in runs["gradients"].check_first("silent-overwrite")["message"]


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_rows_that_are_all_there(runs: dict[str, Run], name: str) -> None:
    assert f"rows that count: {7 if name == 'all but one' else 8}\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()


@torch
@pytest.mark.parametrize("name", OF_TORCH)
def test_rows_that_are_reduced(runs: dict[str, Run], name: str) -> None:
    assert "rows that count: 8\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()


@paddle
@pytest.mark.parametrize("name", OF_PADDLE)
def test_rows_that_paddle_reduces(runs: dict[str, Run], name: str) -> None:
    assert "rows that count: 8\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()

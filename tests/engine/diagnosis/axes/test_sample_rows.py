"""Numbers that are picked for each sample of a batch of two axes, and lined up with its columns. Witness: whether each
row of what comes out is its row of the batch by one number, by Python's quotients."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as fw
from torch import nn
from torch.utils.data import DataLoader
fw.manual_seed(0)
randn, linspace, stack = fw.randn, fw.linspace, fw.stack
def integers(n, count):
    return fw.randint(0, n, (count,))
def sgd(net):
    optimizer = fw.optim.SGD(net.parameters(), 0.01)
    return optimizer, optimizer.zero_grad
""",
    "paddle": """
import paddle as fw
from paddle import nn
from paddle.io import DataLoader
fw.seed(0)
linspace, stack = fw.linspace, fw.stack
def randn(*shape):
    return fw.randn(shape)
def integers(n, count):
    return fw.randint(0, n, [count])
def sgd(net):
    optimizer = fw.optimizer.SGD(0.01, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
""",
}
START = """
table = linspace(0.1, 0.9, 20)
net = nn.Linear(8, 8)
optimizer, clear = sgd(net)
columns = integers(20, 8)
for at in range(8):
    x = BATCH
    BODY
    loss = (net(mixed) - x).square().mean()
    loss.backward()
    optimizer.step()
    clear()
rows = [[a / b for a, b in zip(one, other)] for one, other in zip(mixed.tolist(), x.tolist())]
print("one of each row" if all(max(row) - min(row) < 1e-3 for row in rows) else "one of each column")
"""


def program(*lines: str, batch: str = "randn(8, 8)") -> str:
    return START.replace("BODY", "\n    ".join(lines)).replace("BATCH", batch)


BUGGY = {
    "a product": program("level = table[integers(20, x.shape[0])]", "mixed = level * x  # CAUSE"),
    "its root": program("at = integers(20, len(x))", "mixed = x * table[at].sqrt()  # CAUSE"),
    "a quotient": program("level = 1.0 + table[integers(20, x.shape[0])]", "mixed = x / level  # CAUSE"),
    "put together": program("level = table[integers(20, x.shape[0])]", "mixed = x * level  # CAUSE",
                            batch="stack([randn(8) for _ in range(8)])"),
}  # fmt: skip
HEALTHY = {
    "a column": program("level = table[integers(20, x.shape[0])][:, None]", "mixed = level * x"),
    "a column, unsqueezed": program("level = table[integers(20, x.shape[0])]", "mixed = x * level.unsqueeze(1)"),
    "a column, reshaped": program("level = table[integers(20, x.shape[0])].sqrt()",
                                  "mixed = x * level.reshape([-1, 1])"),
    "by a product of tables": program("level = table[integers(20, x.shape[0])]", "mixed = fw.diag(level) @ x"),
    "one for all": program("mixed = x * table[3]"),
}  # fmt: skip
COLUMNS = {
    "numbers of the columns": program("mixed = table[columns] * x"),
    "learnt ones": program("mixed = net.bias * x"),
    "a statistic": program("mixed = x / (x.square().mean(0) + 1.0)"),
    "all pairs": program("level = table[integers(20, x.shape[0])]", "near = x @ x.t()", "mixed = near * level"),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: HEAD[request.param] + part for name, part in {**BUGGY, **HEALTHY, **COLUMNS}.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"sample-rows-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_numbers_of_samples_along_columns(runs: dict[str, Run], name: str) -> None:
    assert "one of each column\n" in runs[name].plain, runs[name]
    first = runs[name].check_first("wrong-axis")
    assert first["severity"] == "warning" and "one of each of the 8 samples" in first["message"], first


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_numbers_of_rows(runs: dict[str, Run], name: str) -> None:
    assert "one of each row\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()


@each
@pytest.mark.parametrize("name", COLUMNS)
def test_numbers_that_columns_are_meant_to_have(runs: dict[str, Run], name: str) -> None:
    assert "one of each column\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()

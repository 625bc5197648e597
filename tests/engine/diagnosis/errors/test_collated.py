"""A batch of another type than the weights: the line of ``collate_fn``, or of the data set, that chose it is named."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as framework
from torch import nn
from torch.utils.data import DataLoader, Dataset
tensor = framework.tensor
""",
    "paddle": """
import paddle as framework
from paddle import nn
from paddle.io import DataLoader, Dataset
tensor = framework.to_tensor
""",
}
SET = """
import numpy as np
from functools import partial
class Rows(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, at):
        row = np.full(4, at, "TYPE")
        return row, np.float32(at)
"""
FIT = """
def main():
    net = nn.Linear(4, 1)
    loader = DataLoader(Rows(), batch_size=6, collate_fn=join)
    for goals, x in loader:
        loss = (net(x)[:, 0] - goals).square().mean()
        loss.backward()
main()
"""
# An object that is called; the tensor is filled after it is made.
OBJECT = """
class Join:
    def __call__(self, items):
        x = np.zeros((len(items), 4), dtype="float64")  # CAUSE
        for at, (row, _) in enumerate(items):
            x[at] = row
        goals = np.array([goal for _, goal in items])
        return tensor(goals), tensor(x)
join = Join()
"""
RETURNED = """
def together(items, kind):
    rows, goals = zip(*items)
    goals = tensor(np.stack(goals))
    x = tensor(np.stack(rows).astype(kind))  # CAUSE
    return goals, x
join = partial(together, kind="float64")
"""
# It only puts together what the data set gives.
STACKED = """
def join(items):
    goals, rows = zip(*items)
    goals = framework.stack(list(map(framework.as_tensor, goals)))
    x = framework.stack(list(map(framework.as_tensor, rows)))
    return goals, x
"""
OF_THE_SET = SET.replace('"TYPE")', '"float64")  # CAUSE').replace(
    "return row, np.float32(at)", "return np.float32(at), row"
)
# ``tensor`` keeps the type of an array.
KEPT = """
def join(items):
    goals, rows = zip(*items)
    return tensor(np.stack(goals)), tensor(np.stack(rows))
"""
PROGRAMS = {
    "kept": OF_THE_SET + KEPT,
    "object": SET.replace("TYPE", "float32") + OBJECT,
    "returned": SET.replace("TYPE", "float32") + RETURNED,
    "of the set": OF_THE_SET + STACKED,
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: HEAD[request.param] + text + FIT for name, text in PROGRAMS.items()}
    if request.param == "paddle":
        texts = {name: text.replace("framework.as_tensor", "tensor") for name, text in texts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("runs", [case(name, name, group=f"collated-{name}") for name in FRAMEWORKS], indirect=True)
def test_the_line_that_chose_the_type(runs: dict[str, Run], name: str) -> None:
    assert "f64" in runs[name].check_first("operator-error")["message"]

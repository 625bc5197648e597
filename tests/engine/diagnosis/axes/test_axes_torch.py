"""Broadcasts along another axis than was meant, and silent promotions, on torch; and others that are meant."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from support.diagnosing_many import Run, kind_of, numbered

# Rows of a square matrix are meant to have norm 1: without keepdim the norms are lined up with the columns.
NORMS = """
    import torch
    import torch.nn as nn

    class Cosine(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(width, width))

        def forward(self, x):
            length = self.weight.norm(dim=1)  # CAUSE
            unit = self.weight / length
            return x @ unit.t()

    torch.manual_seed(0)
    net = Cosine(5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        loss = (net(torch.randn(7, 5)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

# As many tokens as sequences: the sums of the rows of each sequence meet those of other sequences.
SHARES = """
    import torch
    import torch.nn as nn

    torch.manual_seed(0)
    query, key = nn.Linear(6, 6), nn.Linear(6, 6)
    optimizer = torch.optim.Adam([*query.parameters(), *key.parameters()])

    def attend(x):
        scores = torch.einsum("btd,bsd->bts", query(x), key(x))
        scores = scores - scores.amax(dim=-1, keepdim=True)
        weights = scores.exp()
        total = torch.sum(weights, dim=-1)  # CAUSE
        return (weights / total) @ x

    for _ in range(3):
        loss = attend(torch.randn(4, 4, 6)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

# A class weight that numpy made is float64, and so is all that it touches.
CLASS_WEIGHTS = """
    import numpy as np
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    torch.manual_seed(0)
    counts = np.array([10, 20, 70])
    weights = torch.from_numpy(counts.sum() / counts)
    net = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(3):
        y = torch.tensor([0, 1, 2, 2])
        each = F.cross_entropy(net(torch.randn(4, 4)), y, reduction="none")
        loss = (each * weights[y]).mean()  # CAUSE
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

TARGETS = """
    import numpy as np
    import torch
    import torch.nn as nn

    class Regression(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))

        def error(self, x, y):
            difference = self.body(x).squeeze(1) - y  # CAUSE
            return difference.abs().mean()

    torch.manual_seed(0)
    np.random.seed(0)
    model = Regression()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        loss = model.error(torch.randn(8, 3), torch.tensor(np.random.rand(8)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

HEALTHY = """
    import numpy as np
    import torch
    import torch.nn as nn

    torch.manual_seed(0)
    # Rows that are centred and scaled with keepdim, columns without; a graph that is divided by the degrees of both.
    net = nn.Linear(6, 6)
    doubles = nn.Linear(6, 1).double()
    optimizer = torch.optim.SGD([*net.parameters(), *doubles.parameters()], lr=0.01)
    table = torch.from_numpy(np.linspace(0, 1, 6))
    for _ in range(3):
        h = net(torch.randn(6, 6))
        rows = (h - h.mean(1, keepdim=True)) / (h.std(dim=1, keepdim=True) + 1)
        columns = (h - h.mean(0)) / (h.std(0) + 1)
        best, _ = h.max(dim=1)
        near = torch.exp(-(h - h.t()).square())
        degree = near.sum(0)
        graph = near / degree.sqrt()[:, None] / degree.sqrt()[None, :]
        soft = h - torch.logsumexp(h, dim=1)[:, None]
        exact = doubles(h.double() + table).float()
        scaled = h * np.float64(0.5) + float(table[3]) * 2.0
        loss = rows.square().mean() + columns.square().mean() + best.mean() + graph.mean() + soft.mean()
        loss = loss + exact.mean() + scaled.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item(), loss.dtype)
"""

SYMMETRIC = """
    import torch
    import torch.nn as nn
    torch.manual_seed(0)
    net = nn.Linear(6, 6)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(3):
        h = net(torch.randn(6, 6))
        near = torch.exp(-(h - h.t()).square())
        degree = near.sum(dim=1)  # CAUSE
        loss = (near / degree).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

CASES = [("wrong-axis", NORMS), ("wrong-axis", SHARES), ("promoted", CLASS_WEIGHTS), ("promoted", TARGETS)]

PROGRAMS = numbered(CASES) | {"healthy": HEALTHY, "symmetric": SYMMETRIC}


@pytest.mark.parametrize("name", numbered(CASES))
def test_the_line_is_noted(runs: dict[str, Run], name: str) -> None:
    """A note, but for a matrix that is not symmetric: of no other may it be meant."""
    found = runs[name].check_first(kind_of(name))
    assert found["severity"] == ("warning" if name.startswith("wrong-axis") else "note"), found


def test_of_a_symmetric_matrix_it_may_be_meant(runs: dict[str, Run]) -> None:
    found = runs["symmetric"].check_first("wrong-axis")
    assert found["severity"] == "note" and "symmetric matrix" in found["evidence"][-1], found


def test_axes_and_types_that_are_meant(runs: dict[str, Run]) -> None:
    runs["healthy"].check_healthy()

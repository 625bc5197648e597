"""Broadcasts along another axis than was meant, silent promotions, on Paddle; and others that are meant."""

from __future__ import annotations

import pytest

pytest.importorskip("paddle")

from support.diagnosing_many import Run, kind_of, numbered

NORMS = """
    import paddle
    import paddle.nn as nn

    class Cosine(nn.Layer):
        def __init__(self, width):
            super().__init__()
            self.weight = self.create_parameter([width, width])

        def forward(self, x):
            length = self.weight.norm(axis=1)  # CAUSE
            unit = self.weight / length
            return x @ unit.t()

    paddle.seed(0)
    net = Cosine(5)
    optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
    for _ in range(3):
        loss = (net(paddle.randn([7, 5])) - 1).square().mean()
        optimizer.clear_grad()
        loss.backward()
        optimizer.step()
"""

SHARES = """
    import paddle
    import paddle.nn as nn

    paddle.seed(0)
    query, key = nn.Linear(6, 6), nn.Linear(6, 6)
    optimizer = paddle.optimizer.Adam(parameters=[*query.parameters(), *key.parameters()])

    def attend(x):
        scores = paddle.matmul(query(x), key(x), transpose_y=True)
        scores = scores - scores.max(axis=-1, keepdim=True)
        weights = scores.exp()
        total = paddle.sum(weights, axis=-1)  # CAUSE
        return (weights / total) @ x

    for _ in range(3):
        loss = attend(paddle.randn([4, 4, 6])).square().mean()
        optimizer.clear_grad()
        loss.backward()
        optimizer.step()
"""

CLASS_WEIGHTS = """
    import numpy as np
    import paddle
    import paddle.nn as nn
    import paddle.nn.functional as F

    paddle.seed(0)
    counts = np.array([10, 20, 70])
    weights = paddle.to_tensor(counts.sum() / counts)
    net = nn.Linear(4, 3)
    optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
    for _ in range(3):
        y = paddle.to_tensor([0, 1, 2, 2])
        each = F.cross_entropy(net(paddle.randn([4, 4])), y, reduction="none")
        loss = (each * weights[y]).mean()  # CAUSE
        optimizer.clear_grad()
        loss.backward()
        optimizer.step()
"""

TARGETS = """
    import numpy as np
    import paddle
    import paddle.nn as nn

    class Regression(nn.Layer):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))

        def error(self, x, y):
            difference = self.body(x).squeeze(1) - y  # CAUSE
            return difference.abs().mean()

    paddle.seed(0)
    np.random.seed(0)
    model = Regression()
    optimizer = paddle.optimizer.Adam(parameters=model.parameters())
    for _ in range(3):
        loss = model.error(paddle.randn([8, 3]), paddle.to_tensor(np.random.rand(8)))
        optimizer.clear_grad()
        loss.backward()
        optimizer.step()
"""

TABLE = """
    import numpy as np
    import paddle

    weight = paddle.create_parameter([3], "float32")
    data = paddle.to_tensor(np.arange(3.0))
    for _ in range(3):
        loss = (weight * data).sum()  # CAUSE
        loss.backward()
        weight.clear_gradient()
"""

HEALTHY = """
    import numpy as np
    import paddle
    import paddle.nn as nn

    paddle.seed(0)
    # Rows that are centred and scaled with keepdim, columns without; a graph that is divided by the degrees of both.
    net = nn.Linear(6, 6)
    optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
    table = paddle.to_tensor(np.linspace(0, 1, 6))
    for _ in range(3):
        h = net(paddle.randn([6, 6]))
        rows = (h - h.mean(1, keepdim=True)) / (h.std(1, keepdim=True) + 1)
        columns = (h - h.mean(0)) / (h.std(0) + 1)
        best = h.max(axis=1)
        near = paddle.exp(-(h - h.t()).square())
        degree = near.sum(0)
        graph = near / degree.sqrt()[:, None] / degree.sqrt()[None, :]
        soft = h - paddle.logsumexp(h, axis=1)[:, None]
        exact = (h.astype("float64") + table).astype("float32")
        scaled = h * np.float64(0.5) + float(table[3]) * 2.0
        loss = rows.square().mean() + columns.square().mean() + best.mean() + graph.mean() + soft.mean()
        loss = loss + exact.mean() + scaled.mean()
        optimizer.clear_grad()
        loss.backward()
        optimizer.step()
        print(loss.item(), loss.dtype)
"""

SYMMETRIC = """
    import paddle
    import paddle.nn as nn
    paddle.seed(0)
    net = nn.Linear(6, 6)
    optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
    for _ in range(3):
        h = net(paddle.randn([6, 6]))
        near = paddle.exp(-(h - h.t()).square())
        degree = near.sum(axis=1)  # CAUSE
        loss = (near / degree).square().mean()
        optimizer.clear_grad()
        loss.backward()
        optimizer.step()
"""

CASES = [
    ("wrong-axis", NORMS), ("wrong-axis", SHARES), ("promoted", CLASS_WEIGHTS), ("promoted", TARGETS),
    ("promoted", TABLE),
]  # fmt: skip
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

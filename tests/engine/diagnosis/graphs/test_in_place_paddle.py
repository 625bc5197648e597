"""Programs on Paddle that overwrite what a node saved, and others that write in place as they may."""

from __future__ import annotations

import pytest

pytest.importorskip("paddle")

from support.diagnosing import line_of
from support.diagnosing_many import Run

ACTIVATION = """
    import paddle
    import paddle.nn as nn
    import paddle.nn.functional as F

    class Block(nn.Layer):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 6)

        def forward(self, x):
            gate = F.sigmoid(self.fc(x))  # SAVED
            gate.scale_(0.5)  # CAUSE
            return x * gate

    paddle.seed(0)
    net = nn.Sequential(Block(), Block())
    optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
    for _ in range(2):
        loss = net(paddle.randn([4, 6])).square().mean()
        optimizer.clear_grad()
        loss.backward()
        optimizer.step()
"""

VIEW = """
    import paddle

    def normalise(table):
        row = table.reshape([6])
        row[3:] = 1.0  # CAUSE

    weight = paddle.create_parameter([2, 3], "float32")
    for step in range(3):
        table = weight * 2
        scores = table.exp()
        out = scores * table
        if step == 1:
            normalise(table)
        out.sum().backward()
        weight.clear_gradient()
"""

NO_GRAD = """
    import paddle

    class Scaler:
        def __init__(self):
            self.scale = paddle.ones([4])

        def __call__(self, x):
            y = paddle.tanh(x)
            with paddle.no_grad():
                y.multiply_(self.scale * 3)  # CAUSE
            return y.sum()

    weight = paddle.create_parameter([4], "float32")
    Scaler()(weight * 2).backward()
"""

RETURNED = """
    import paddle
    from paddle import nn
    from paddle.autograd import PyLayer

    class Halve(PyLayer):
        @staticmethod
        def forward(ctx, x):
            return x  # CAUSE

        @staticmethod
        def backward(ctx, dy):
            return dy * 0.5

    body, head, other = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 2), nn.Linear(4, 1)
    for step in range(3):
        h = body(paddle.ones([8, 4]))
        loss = other(h).mean() + head(Halve.apply(h)).mean()  # SAVED
        loss.backward()
"""

HEALTHY = """
    import paddle
    import paddle.nn as nn
    import paddle.nn.functional as F

    paddle.seed(0)

    class Net(nn.Layer):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1D(8), nn.Dropout(0.2))
            self.head = nn.Linear(8, 2)

        def forward(self, x):
            h = F.relu_(self.body(x))
            h += paddle.ones_like(h)
            return self.head(h)

    net, twin = Net(), Net()
    twin.set_state_dict(net.state_dict())
    optimizer = paddle.optimizer.Adam(0.01, parameters=net.parameters(), grad_clip=nn.ClipGradByGlobalNorm(1.0))
    state = paddle.zeros([6, 4])
    for step in range(5):
        x = paddle.randn([6, 4])
        x[0] = 0.0
        x.clip_(-3, 3)
        state = (state * 0.5 + x).detach()
        out = net(state)
        with paddle.no_grad():
            wanted = twin(state)
        loss = F.mse_loss(out, wanted) + out.square().mean()
        optimizer.clear_grad()
        loss.backward()
        optimizer.step()
        with paddle.no_grad():
            for mine, theirs in zip(twin.parameters(), net.parameters()):
                mine.set_value(mine * 0.9 + theirs * 0.1)
            net.head.weight.clip_(-1, 1)
        print(step, loss.item())
    w = paddle.create_parameter([3], "float32")
    (first,) = paddle.grad(w.pow(3).sum(), w, create_graph=True)
    first.square().sum().backward()
    print(w.grad.numpy())
"""

PROGRAMS = {
    "activation": ACTIVATION, "view": VIEW, "no grad": NO_GRAD, "returned": RETURNED, "healthy": HEALTHY,
}  # fmt: skip


def test_an_activation_is_changed_behind_the_operator_that_made_it(runs: dict[str, Run]) -> None:
    found = runs["activation"].check_first("in-place")
    assert found["severity"] == "error"
    assert found["forward"]["line"] == line_of(ACTIVATION, "# SAVED")
    assert found["node"]["name"] == "SigmoidGradNode"


def test_a_view_in_another_function(runs: dict[str, Run]) -> None:
    runs["view"].check_first("in-place")


def test_where_nothing_is_recorded(runs: dict[str, Run]) -> None:
    runs["no grad"].check_first("in-place")


def test_a_pylayer_that_returns_what_it_was_given_counts_as_a_write(runs: dict[str, Run]) -> None:
    found = runs["returned"].check_first("in-place")
    assert "Halve (its forward returns x itself)" in found["message"], found
    assert found["forward"]["line"] == line_of(RETURNED, "# SAVED"), found


def test_what_writes_in_place_as_it_may(runs: dict[str, Run]) -> None:
    runs["healthy"].check_healthy("frozen-in-optimizer")

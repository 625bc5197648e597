"""Gradients that rounding makes zero, and gradients of what is no leaf, on Paddle; and look-alikes of both."""

from __future__ import annotations

import pytest

pytest.importorskip("paddle")

from support.diagnosing_many import Run, kind_of, numbered

SIGNS = """
    import paddle
    import paddle.nn as nn
    import paddle.nn.functional as F

    class Binary(nn.Linear):
        def forward(self, x):
            return F.linear(x, self.weight.sign(), self.bias)  # CAUSE

    paddle.seed(0)
    net = nn.Sequential(Binary(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = paddle.optimizer.Adam(0.01, parameters=net.parameters())
    for step in range(5):
        x = paddle.randn([16, 6])
        loss = F.mse_loss(net(x), x.sum(1, keepdim=True))
        optimizer.clear_grad()
        loss.backward()
        optimizer.step()
"""

BINS = """
    import paddle

    def histogram(values, bins):
        place = paddle.floor(values * bins).clip(0, bins - 1)  # CAUSE
        return paddle.stack([(1 - (place - at).abs()).clip(min=0).mean() for at in range(bins)])

    paddle.seed(0)
    gamma = paddle.create_parameter([1], "float32", default_initializer=paddle.nn.initializer.Constant(1.0))
    image = paddle.rand([64])
    optimizer = paddle.optimizer.SGD(0.1, parameters=[gamma])
    for _ in range(4):
        loss = (histogram(image * gamma, 8) - 1 / 8).square().sum()
        optimizer.clear_grad()
        loss.backward()
        optimizer.step()
"""

# Paddle's optimizers take it without a word, and its gradient stays None.
MOVED = """
    import paddle

    class Prompt:
        def __init__(self, size, scale):
            table = paddle.randn([size])
            table.stop_gradient = False
            self.table = table.scale(scale)  # CAUSE

        def parameters(self):
            return [self.table]

    paddle.seed(0)
    prompt = Prompt(8, 0.02)
    optimizer = paddle.optimizer.AdamW(1e-3, parameters=prompt.parameters())
    for _ in range(3):
        loss = (prompt.table * paddle.ones([8])).square().sum()
        loss.backward(retain_graph=True)
        optimizer.step()
        optimizer.clear_grad()
"""

CAST = """
    import paddle
    import paddle.nn as nn

    paddle.seed(0)
    net = nn.Linear(3, 2)

    def trainable(layer):
        return [each.astype("float64") for each in layer.parameters()]  # CAUSE

    weight, bias = trainable(net)
    optimizer = paddle.optimizer.SGD(0.1, parameters=[weight, bias])
    for _ in range(3):
        loss = (paddle.ones([4, 3], dtype="float64") @ weight + bias).square().mean()
        loss.backward(retain_graph=True)
        optimizer.step()
"""

CODES = """
    import paddle

    paddle.seed(0)
    decoder = paddle.nn.Linear(3, 5)

    class Codes:
        def __init__(self, count):
            self.each = [paddle.create_parameter([3], "float32") for _ in range(count)]
            self.table = paddle.stack(self.each)  # CAUSE

    codes = Codes(4)
    given = [*decoder.parameters(), codes.table]
    optimizer = paddle.optimizer.Adam(0.01, parameters=given)
    for _ in range(4):
        loss = (decoder(codes.table) - 1).square().mean()
        optimizer.clear_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
"""

# The reentrant recompute runs its region under no_grad: where no input needs a gradient, nothing comes back.
REENTRANT = """
    import paddle
    import paddle.nn as nn
    from paddle.distributed.fleet.utils import recompute

    paddle.seed(0)
    body, head = nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Linear(8, 1)
    optimizer = paddle.optimizer.SGD(0.1, parameters=[*body.parameters(), *head.parameters()])

    def block(x):
        return body(x) * 2

    def forward(x):
        h = recompute(block, x)  # CAUSE
        return head(h)

    for _ in range(5):
        loss = forward(paddle.randn([6, 4])).square().mean()
        optimizer.clear_grad()
        loss.backward()
        optimizer.step()
"""

HEALTHY = """
    import paddle
    import paddle.nn as nn

    paddle.seed(0)

    class Quantised(nn.Layer):
        # rounds to use the value, and passes the gradient past it
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(4, 6), nn.Linear(6, 1)

        def forward(self, x):
            h = self.inner(x)
            h = h + (paddle.round(h * 8) / 8 - h).detach()
            return self.outer(h)

    net = Quantised()
    optimizer = paddle.optimizer.Adam(parameters=net.parameters())
    for _ in range(5):
        x = paddle.randn([8, 4])
        out = net(x)
        part = out - paddle.floor(out.detach())
        right = (out.round() == 1).astype("float32").mean()
        loss = (out - 1).square().mean() + 0.1 * part.mean() + (out.sign() * out).mean()
        optimizer.clear_grad()
        loss.backward()
        optimizer.step()
        print(loss.item(), right.item())
    # .grad of what is no leaf: kept on request, or asked for by paddle.grad; an adversarial input is a leaf.
    w = paddle.create_parameter([3], "float32")
    h = w * 2
    h.retain_grads()
    h.square().sum().backward()
    print(h.grad.norm().item(), w.grad.norm().item())
    x = paddle.randn([4, 4]) * 0.1
    x.stop_gradient = False
    net(x).sum().backward()
    with paddle.no_grad():
        moved = x + 0.1 * x.grad.sign()
    y = net.inner(moved)
    (slope,) = paddle.grad(net.outer(y).sum(), y)
    print(slope.norm().item())
"""


CASES: list[tuple[str, str]] = [
    ("rounded-gradient", SIGNS), ("rounded-gradient", BINS), ("non-leaf-gradient", MOVED),
    ("no-gradient", REENTRANT), ("non-leaf-gradient", CAST), ("non-leaf-gradient", CODES),
]  # fmt: skip

PROGRAMS = numbered(CASES) | {"healthy": HEALTHY}


@pytest.mark.parametrize("name", numbered(CASES))
def test_the_line_is_named(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first(kind_of(name))


def test_rounding_and_gradients_that_are_meant(runs: dict[str, Run]) -> None:
    runs["healthy"].check_healthy()

"""Layers of which most units are dead or saturated, on Paddle, and others that look alike."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run

pytest.importorskip("paddle")

BIASES = """
import paddle, paddle.nn as nn, paddle.nn.functional as F
class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 64), nn.Linear(64, 1)
        self.inner.bias.set_value(paddle.concat([paddle.full([4], 0.5), paddle.full([60], -4.0)]))
    def forward(self, x):
        hidden = F.relu(self.inner(x))  # CAUSE
        return self.outer(hidden)
paddle.seed(0)
net = Net()
optimizer = paddle.optimizer.Adam(parameters=net.parameters())
dead = paddle.ones([64], dtype="bool")
for _ in range(5):
    x = paddle.randn([32, 8])
    dead = paddle.logical_and(dead, (net.inner(x).detach() <= 0).all(0))
    loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.clear_grad()
    loss.backward()
    optimizer.step()
print(int(dead.astype("int32").sum()))
"""

# The rate throws the units there: alive in the first iterations, dead from then on.
THROWN = """
import paddle, paddle.nn as nn
paddle.seed(1)
layers = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
layers[2].weight.set_value(layers[2].weight.abs())
optimizer = paddle.optimizer.SGD(0.3, parameters=layers.parameters(), grad_clip=nn.ClipGradByGlobalNorm(20.0))
def forward(x):
    h = layers[0](x)
    h = layers[1](h)  # CAUSE
    return layers[2](h)
for step in range(33):
    x = paddle.rand([16, 4]) + 1
    loss = (forward(x) - (0 if step < 3 else -40)).pow(2).mean()
    optimizer.clear_grad()
    loss.backward()
    optimizer.step()
"""

CHANNELS = """
import paddle, paddle.nn as nn
paddle.seed(0)
def block(a, b):
    conv = nn.Conv2D(a, b, 3, padding=1)
    conv.bias.set_value(paddle.where(paddle.arange(b) % 8 == 0, paddle.full([b], 0.1), paddle.full([b], -6.0)))
    return conv
stem, body, head = block(3, 16), block(16, 32), nn.Linear(32, 5)
activation = nn.ReLU6()
optimizer = paddle.optimizer.SGD(0.01, parameters=[*stem.parameters(), *body.parameters(), *head.parameters()])
for _ in range(4):
    h = nn.functional.sigmoid(stem(paddle.randn([4, 3, 8, 8])))
    h = activation(body(h))  # CAUSE
    loss = nn.functional.cross_entropy(head(h.mean([2, 3])), paddle.to_tensor([0, 1, 2, 3]))
    optimizer.clear_grad()
    loss.backward()
    optimizer.step()
"""

PIXELS = """
import paddle, paddle.nn as nn
paddle.seed(0)
class Encoder(nn.Layer):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 32), nn.Linear(32, 4)
    def forward(self, x):
        h = paddle.tanh(self.inner(x))  # CAUSE
        return self.outer(h)
net = Encoder()
optimizer = paddle.optimizer.Adam(parameters=net.parameters())
for _ in range(4):
    x = paddle.randint(0, 255, [16, 16]).astype("float32") * 10
    loss = net(x).pow(2).mean()
    optimizer.clear_grad()
    loss.backward()
    optimizer.step()
"""

GATES = """
import paddle, paddle.nn as nn, paddle.nn.functional as F
paddle.seed(0)
closed = paddle.ParamAttr(initializer=nn.initializer.Constant(-12.0))
gate, value, out = nn.Linear(12, 24, bias_attr=closed), nn.Linear(12, 24), nn.Linear(24, 1)
optimizer = paddle.optimizer.SGD(0.01, parameters=[*gate.parameters(), *value.parameters(), *out.parameters()])
for _ in range(4):
    x = paddle.randn([16, 12]) * 0.3
    opened = F.sigmoid(gate(x))  # CAUSE
    loss = (out(opened * value(x)) - 1).pow(2).mean()
    optimizer.clear_grad()
    loss.backward()
    optimizer.step()
"""

WEIGHTS = """
import paddle, paddle.nn as nn
paddle.seed(0)
class Cell(nn.Layer):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(4, width, weight_attr=paddle.ParamAttr(initializer=nn.initializer.Normal(std=500.0)))
    def forward(self, x):
        return self.inner(x).tanh()  # CAUSE
cell, head = Cell(16), nn.Linear(16, 2)
optimizer = paddle.optimizer.Adam(parameters=[*cell.parameters(), *head.parameters()])
for _ in range(4):
    loss = head(cell(paddle.randn([12, 4]))).pow(2).mean()
    optimizer.clear_grad()
    loss.backward()
    optimizer.step()
"""

# Dead from the start, in a model that is gone as the program ends; the line that runs it does not say what it is.
LOCAL = """
import paddle, paddle.nn as nn
def train(seed):
    paddle.seed(seed)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    for at in (0, 2, 4):
        net[at].bias.set_value(paddle.full(net[at].bias.shape, -50.0))  # CAUSE
    optimizer = paddle.optimizer.Adam(parameters=net.parameters())
    for _ in range(3):
        loss = (net(paddle.randn([16, 6])) - 1).square().mean()
        optimizer.clear_grad()
        loss.backward()
        optimizer.step()
    return sum(int(net[at].weight.grad.count_nonzero()) for at in (0, 2))
print(train(0))
"""

# Leaves that no module and no optimizer has: nobody knows a name of them.
NAMELESS = """
import paddle
import paddle.nn.functional as F
def leaf(value):
    value.stop_gradient = False
    return value
def main():
    paddle.seed(0)
    inner, bias, outer = leaf(paddle.randn([6, 16])), leaf(paddle.full([16], -50.0)), leaf(paddle.randn([16, 1]))
    for _ in range(3):
        hidden = F.relu(paddle.randn([16, 6]) @ inner + bias)  # CAUSE
        (hidden @ outer - 1).square().mean().backward()
        with paddle.no_grad():
            outer.set_value(outer - 0.01 * outer.grad)
        outer.clear_grad()
    print(int(inner.grad.count_nonzero()))
main()
"""

HEALTHY = """
import paddle, paddle.nn as nn, paddle.nn.functional as F
paddle.seed(0)
def fit(net, batches, loss_of):
    optimizer = paddle.optimizer.Adam(1e-3, parameters=net.parameters())
    for batch in batches:
        optimizer.clear_grad()
        loss = loss_of(net, batch)
        loss.backward()
        optimizer.step()
    print(loss.item())
# A deep network with normalisation and one without, small batches, and one row at a time.
plain = nn.Sequential(*[each for _ in range(5) for each in (nn.Linear(32, 32), nn.ReLU())], nn.Linear(32, 1))
fit(plain, paddle.randn([9, 4, 32]), lambda net, x: (net(x) - 1).pow(2).mean())
normed = nn.Sequential(nn.Conv2D(3, 16, 3), nn.BatchNorm2D(16), nn.ReLU(), nn.Flatten(), nn.Linear(576, 16), nn.ReLU6(),
                       nn.Linear(16, 3))
fit(normed, paddle.randn([8, 6, 3, 8, 8]), lambda net, x: F.cross_entropy(net(x), paddle.arange(6) % 3))
single = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
fit(single, paddle.randn([40, 1, 8]), lambda net, x: net(x).pow(2).mean())
# A hinge loss that is nearly always 0, experts of which most get no row.
def hinge(net, x):
    h = net(x)
    far = (h.unsqueeze(0) - h.unsqueeze(1)).square().sum(-1)
    return F.relu(0.05 - far + 2 * paddle.eye(12)).mean() + h.pow(2).mean()
fit(nn.Linear(6, 12), paddle.randn([8, 12, 6]) * 9, hinge)
class Experts(nn.Layer):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 64), nn.Linear(64, 8)
    def forward(self, x):
        chosen = F.one_hot(paddle.arange(x.shape[0]) % 3, 4)
        return self.down(F.relu(self.up(x)) * chosen.repeat_interleave(16, 1))
fit(Experts(), paddle.randn([8, 9, 8]), lambda net, x: (net(x) - x).pow(2).mean())
# A classifier that is sure, and gates that are open for some rows only.
sure = nn.Sequential(nn.Linear(2, 1), nn.Sigmoid())
sure[0].weight.set_value(paddle.full([2, 1], 40.0))
def right(net, x):
    return F.binary_cross_entropy(net(x), (x.sum(1, keepdim=True) > 0).astype("float32"))
fit(sure, paddle.randn([8, 32, 2]), right)
class Gated(nn.Layer):
    def __init__(self):
        super().__init__()
        self.gate, self.value = nn.Linear(8, 16), nn.Linear(8, 16)
    def forward(self, x):
        return F.sigmoid(3 * self.gate(x)) * self.value(x).tanh()
fit(Gated(), paddle.randn([8, 32, 8]), lambda net, x: net(x).pow(2).mean())
"""

# A gate that is saturated for all of the data, beside a way that passes gradients on.
BESIDE = """
import paddle, paddle.nn as nn, paddle.nn.functional as F
class Beside(nn.Layer):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, 1)
    def forward(self, x):
        h = self.inner(x)
        return self.outer(h + F.sigmoid(200 * (h.abs() + 1)))
paddle.seed(0)
net = Beside()
optimizer = paddle.optimizer.Adam(parameters=net.parameters())
for _ in range(3):
    loss = net(paddle.randn([16, 6])).square().mean()
    optimizer.clear_grad()
    loss.backward()
    optimizer.step()
"""

CASES = [
    (BIASES, "dead-units", "every iteration"), (THROWN, "dead-units", "since iteration"),
    (CHANNELS, "dead-units", "conv2d"), (PIXELS, "saturated-units", "too large"),
    (GATES, "saturated-units", "derivative"), (WEIGHTS, "saturated-units", "derivative"),
]  # fmt: skip

PROGRAMS = {str(number): each[0] for number, each in enumerate(CASES)} | {
    "local": LOCAL, "nameless": NAMELESS, "beside": BESIDE, "healthy": HEALTHY
}  # fmt: skip


@pytest.mark.parametrize("number", range(len(CASES)))
def test_names_the_layer(runs: dict[str, Run], number: int) -> None:
    _, kind, why = CASES[number]
    first = runs[str(number)].check_first(kind)
    assert why in (first["message"] + " ".join(first["evidence"])).lower(), first


def test_as_many_are_dead_as_the_activations_say(runs: dict[str, Run]) -> None:
    """The program's own count of units that were never above 0, without adbg."""
    said = int(runs["0"].plain.splitlines()[0])
    told = runs["0"].check_first("dead-units")
    assert f"{said} of 64 units" in " ".join(told["evidence"]), told


def test_a_network_that_begins_dead_is_named_by_where_it_was_initialised(runs: dict[str, Run]) -> None:
    """Once, though its units are dead and its parameters get zeros. The program's own word: none of them got another
    gradient."""
    run = runs["local"]
    told = run.check_first("zero-gradient")
    assert "dead" in told["message"] and len(run.above_notes()) == 1, str(run)
    assert run.plain.splitlines()[0] == "0"


def test_a_layer_without_names_is_found_dead(runs: dict[str, Run]) -> None:
    told = runs["nameless"].check_first("dead-units")
    assert "100%" in told["message"] and runs["nameless"].plain.splitlines()[0] == "0", told


def test_layers_that_work(runs: dict[str, Run]) -> None:
    runs["healthy"].check_healthy()


def test_a_parameter_with_another_way_than_a_saturated_gate(runs: dict[str, Run]) -> None:
    runs["beside"].check_healthy()

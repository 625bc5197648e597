"""Gradients that are zero, vanish, explode or underflow, in programs as users have them, on Paddle."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run

pytest.importorskip("paddle")

DEAD = """
import paddle
import paddle.nn as nn
class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 16, bias_attr=paddle.ParamAttr(initializer=nn.initializer.Constant(-30.0)))  # CAUSE
        self.outer = nn.Linear(16, 1)
    def forward(self, x):
        hidden = nn.functional.relu(self.inner(x))
        return self.outer(hidden)
paddle.seed(0)
net = Net()
optimizer = paddle.optimizer.Adam(parameters=net.parameters())
for step in range(5):
    loss = (net(paddle.randn([16, 8])) - 1).pow(2).mean()
    loss.backward()
    optimizer.step()
    if step == 4:
        print(sum(p.grad.abs().sum().item() == 0 for p in net.inner.parameters()))
    optimizer.clear_grad()
"""

# The bias is below 0 too, and is not what makes it dead.
SUNK = """
import paddle
import paddle.nn as nn
paddle.seed(0)
net = nn.Linear(8, 16)
net.weight.set_value(-net.weight.abs() - 1.0)
net.bias.set_value(paddle.full([16], -0.1))
optimizer = paddle.optimizer.Adam(parameters=net.parameters())
for _ in range(5):
    out = net(paddle.rand([16, 8]) + 0.5)
    hidden = nn.functional.relu(out)  # CAUSE
    loss = (hidden.sum(1) - 1).pow(2).mean()
    optimizer.clear_grad()
    loss.backward()
    optimizer.step()
"""

SATURATED = """
import paddle
import paddle.nn as nn
paddle.seed(0)
encoder, gate = nn.Linear(8, 8), nn.Linear(8, 4)
optimizer = paddle.optimizer.SGD(0.1, parameters=[*encoder.parameters(), *gate.parameters()])
def forward(x):
    logits = gate(encoder(x * 1000) * 1000)
    return paddle.tanh(logits)  # CAUSE
for _ in range(4):
    loss = (forward(paddle.randn([16, 8])) - 0.5).pow(2).sum()
    optimizer.clear_grad()
    loss.backward()
    optimizer.step()
"""

ROUNDED = """
import paddle
import paddle.nn as nn
class Quantised(nn.Layer):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)
    def forward(self, x):
        return paddle.round(self.layer(x) * 8) / 8  # CAUSE
paddle.seed(0)
net = Quantised()
net(paddle.randn([16, 8])).pow(2).mean().backward()
"""

SIGMOIDS = """
import paddle
import paddle.nn as nn
class Deep(nn.Layer):
    def __init__(self, depth):
        super().__init__()
        self.layers = nn.LayerList([nn.Linear(16, 16) for _ in range(depth)])
        self.head = nn.Linear(16, 1)
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            x = nn.functional.sigmoid(x)  # CAUSE
        return self.head(x)
paddle.seed(0)
net = Deep(14)
optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
for _ in range(4):
    loss = net(paddle.randn([16, 16])).pow(2).mean()
    optimizer.clear_grad()
    loss.backward()
    optimizer.step()
"""

IN_A_ROW = """
import paddle
from paddle import nn
def make(depth):
    layers = []
    for _ in range(depth):
        layers.append(nn.Linear(16, 16))
        layers.append(nn.Sigmoid())  # CAUSE
    return nn.Sequential(*layers, nn.Linear(16, 1))
paddle.seed(0)
net = make(16)
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
for _ in range(10):
    loss = net(paddle.randn([4, 16])).pow(2).mean()
    optimizer.clear_grad()
    loss.backward()
    optimizer.step()
"""

RECURRENT = """
import paddle
class Cell(paddle.nn.Layer):
    def __init__(self, width):
        super().__init__()
        self.recurrent = self.create_parameter([width, width])
        self.recurrent.set_value(0.2 * paddle.eye(width))
        self.inner = paddle.nn.Linear(4, width)
    def forward(self, h, x):
        return paddle.tanh(paddle.matmul(h, self.recurrent) + self.inner(x))  # CAUSE
paddle.seed(0)
cell = Cell(8)
optimizer = paddle.optimizer.Adam(parameters=cell.parameters())
for _ in range(3):
    h = paddle.zeros([4, 8])
    for x in paddle.randn([20, 4, 4]):
        h = cell(h, x)
    optimizer.clear_grad()
    h.pow(2).mean().backward()
    optimizer.step()
"""

EXPLODING = """
import paddle
import paddle.nn as nn
def block(width):
    large = paddle.ParamAttr(initializer=nn.initializer.Normal(std=1.0))
    return nn.Linear(width, width, weight_attr=large, bias_attr=False)
paddle.seed(0)
blocks = nn.LayerList([block(64) for _ in range(8)])
def run(x):
    for each in blocks:
        x = each(x)  # CAUSE
    return x
for _ in range(3):
    loss = run(paddle.randn([4, 64])).mean()
    loss.backward()
    for each in blocks:
        each.clear_gradients()
"""

LOOP = """
import paddle, paddle.nn as nn
class Linear(nn.Layer):
    def __init__(self, width):
        super().__init__()
        self.recurrent = self.create_parameter([width, width], default_initializer=nn.initializer.Normal(std=1.0))
        self.inner, self.head = nn.Linear(3, width), nn.Linear(width, 1)
    def forward(self, xs):
        h = paddle.zeros([xs.shape[1], 16])
        for x in xs:
            h = paddle.matmul(h, self.recurrent) + self.inner(x)  # CAUSE
        return self.head(h)
paddle.seed(0)
net = Linear(16)
optimizer = paddle.optimizer.SGD(1e-20, parameters=net.parameters())
for _ in range(3):
    loss = net(paddle.randn([20, 4, 3])).abs().mean()
    optimizer.clear_grad()
    loss.backward()
    optimizer.step()
"""

# Each block adds what it makes to what it gets, and makes too much.
BLOCKS = """
import paddle, paddle.nn as nn, paddle.nn.functional as F
class Block(nn.Layer):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv1D(width, width, 3, padding=1, weight_attr=nn.initializer.Normal(std=1.0))
    def forward(self, x):
        return x + F.leaky_relu(self.conv(x))  # CAUSE
paddle.seed(0)
body = nn.LayerList([Block(24) for _ in range(10)])
head = nn.Linear(24, 2)
for _ in range(3):
    x = paddle.randn([4, 24, 12])
    for block in body:
        x = block(x)
    loss = F.cross_entropy(head(x.mean(-1)) * 1e-9, paddle.to_tensor([0, 1, 0, 1]))
    loss.backward()
    body.clear_gradients()
"""

# The weights are kept in float16.
FACTOR = """
import paddle
class Model(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.weight = self.create_parameter([64], dtype="float16")
    def forward(self, x):
        scaled = paddle.scale(self.weight, 2e-8)  # CAUSE
        return scaled.astype("float32") + x
paddle.seed(0)
model = Model()
for _ in range(3):
    model(paddle.ones([64])).sum().backward()
    print(model.weight.grad.astype("float32").abs().sum().item())
"""

# Only the head is computed in float16, and its loss is weighted down.
PART = """
import paddle, paddle.nn as nn
paddle.seed(0)
body, head = nn.Linear(8, 16), nn.Linear(16, 4)
optimizer = paddle.optimizer.SGD(0.1, parameters=[*body.parameters(), *head.parameters()])
def embed(x):
    h = paddle.tanh(body(x))
    return h.cast("float16")
for _ in range(4):
    h = embed(paddle.randn([64, 8]))
    out = head(h.cast("float32"))  # CAUSE
    loss = 1e-6 * out.square().mean()
    optimizer.clear_grad()
    loss.backward()
    optimizer.step()
"""

CAST = """
import paddle
weight = paddle.create_parameter([64], "float32", default_initializer=paddle.nn.initializer.Constant(1.0))
for _ in range(3):
    x = (weight * 2).astype("float16").astype("float32")  # CAUSE
    (x * 1e-9).sum().backward()
print(weight.grad.abs().sum().item())
"""

# What shrinks at every layer of a tower, until no step changes what is below it.
TOWER = """
import paddle
import paddle.nn as nn
class Tower(nn.Layer):
    def __init__(self, width, height):
        super().__init__()
        self.layers = nn.LayerList([nn.Linear(width, width) for _ in range(height)])
        for layer in self.layers:
            nn.initializer.Uniform(-0.01, 0.01)(layer.weight)
        self.read = nn.Linear(width, 2)
    def forward(self, x):
        for layer in self.layers:
            x = nn.functional.sigmoid(layer(x)) - 0.5  # CAUSE
        return self.read(x)
paddle.seed(0)
tower = Tower(12, 8)
learner = paddle.optimizer.SGD(0.01, parameters=tower.parameters())
for _ in range(6):
    learner.clear_grad()
    nn.functional.cross_entropy(tower(paddle.randn([8, 12])), paddle.randint(0, 2, [8])).backward()
    learner.step()
"""

# The first layers got nothing only until they were begun anew: no step changed a bit by then, and depth is not why.
ANEW = """
import paddle
import paddle.nn as nn
paddle.seed(0)
net = nn.Sequential(*[nn.Linear(16, 16) for _ in range(12)])
for layer in net:
    nn.initializer.Normal(0.0, 0.01)(layer.weight)
sgd = paddle.optimizer.SGD(1e-3, parameters=net.parameters())  # CAUSE
for turn in range(9):
    if turn == 4:
        for layer in net:
            nn.initializer.Orthogonal()(layer.weight)
    sgd.clear_grad()
    ((net(paddle.randn([8, 16])) - 1) ** 2).mean().backward()
    sgd.step()
"""

HEALTHY = """
import paddle
import paddle.nn as nn
paddle.seed(0)
zero = nn.initializer.Constant(0.0)
class Residual(nn.Layer):
    def __init__(self, width):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.Linear(width, width)
        self.outer = nn.Linear(width, width, paddle.ParamAttr(initializer=zero), paddle.ParamAttr(initializer=zero))
    def forward(self, x):
        return x + self.outer(nn.functional.relu(self.inner(self.norm(x))))
def train(net, batches, loss_of):
    optimizer = paddle.optimizer.AdamW(1e-3, parameters=net.parameters())
    for batch in batches:
        optimizer.clear_grad()
        loss_of(net, batch).backward()
        optimizer.step()
    return float(loss_of(net, batches[-1]))
# Blocks whose last layer begins at zero, a frozen backbone, an embedding, an expert that a batch does not choose.
print(train(nn.Sequential(*[Residual(16) for _ in range(8)], nn.Linear(16, 1)), paddle.randn([5, 8, 16]),
            lambda net, x: (net(x) - 1).pow(2).mean()))
class Experts(nn.Layer):
    def __init__(self):
        super().__init__()
        self.words, self.a, self.b = nn.Embedding(50, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.backbone = nn.Linear(8, 8)
        for each in self.backbone.parameters():
            each.stop_gradient = True
    def forward(self, x):
        h = self.backbone(self.words(x)).mean(1)
        even = (x[:, :1] % 2 == 0).expand([8, 8])
        return paddle.where(even, nn.functional.relu(self.a(h)), nn.functional.relu(self.b(h)))
print(train(Experts(), paddle.randint(0, 50, [5, 8, 3]), lambda net, x: (net(x) - 1).pow(2).mean()))
# Many layers with sane initialisation, a recurrent net with a loss at each step, a straight-through estimator.
deep = []
for _ in range(10):
    deep += [nn.Linear(32, 32, paddle.ParamAttr(initializer=nn.initializer.KaimingNormal())), nn.ReLU()]
print(train(nn.Sequential(*deep, nn.Linear(32, 1)), paddle.randn([4, 16, 32]), lambda net, x: net(x).pow(2).mean()))
print(train(nn.LSTM(4, 8, num_layers=2), paddle.randn([4, 2, 30, 4]), lambda net, x: net(x)[0].pow(2).mean()))
line = nn.Linear(4, 4)
def quantised(net, x):
    y = net(x)
    return (y + (y.round() - y).detach() - 2).pow(2).mean()
print(train(line, paddle.randn([4, 8, 4]), quantised))
# float16 whose gradients are large enough.
weight = paddle.create_parameter([64], "float32", default_initializer=nn.initializer.Constant(1.0))
for _ in range(3):
    (weight * 2).astype("float16").astype("float32").mean().backward()
print(weight.grad.sum().item())
"""

CASES = [
    (DEAD, "zero-gradient", "was set to -30"), (SUNK, "zero-gradient", "is negative"),
    (SATURATED, "zero-gradient", "saturated"),
    (ROUNDED, "rounded-gradient", "everywhere"), (SIGMOIDS, "vanishing", "sigmoid"), (RECURRENT, "vanishing", "tanh"),
    (EXPLODING, "exploding", "mm"), (CAST, "half-underflow", "float16"),
    (LOOP, "exploding", "mm"), (BLOCKS, "exploding", "conv"), (FACTOR, "half-underflow", "float16"),
    (PART, "half-underflow", "float16"),
]  # fmt: skip
PROGRAMS = {str(number): each[0] for number, each in enumerate(CASES)} | {
    "in a row": IN_A_ROW, "tower": TOWER, "anew": ANEW, "healthy": HEALTHY,
}  # fmt: skip


@pytest.mark.parametrize("number", range(len(CASES)))
def test_names_the_line(runs: dict[str, Run], number: int) -> None:
    _, kind, why = CASES[number]
    first = runs[str(number)].check_first(kind)
    assert why in (first["message"] + " ".join(first["evidence"])).lower(), first


@pytest.mark.parametrize("name", ["in a row", "tower"])
def test_what_follows_from_vanishing_gradients_is_told_behind_them(runs: dict[str, Run], name: str) -> None:
    """Steps that change nothing. Where one line runs all layers, the one to change is that which makes them."""
    run = runs[name]
    first = run.check_first("vanishing")
    assert len(run.above_notes()) == 1, str(run)
    told = [(each["kind"], each["victim_of"]) for each in run.every if each["severity"] != "note"]
    assert told == [("vanishing", None), ("lost-update", first["id"])], str(run)


def test_steps_that_change_nothing_are_told_where_depth_is_not_why(runs: dict[str, Run]) -> None:
    """The gradients vanished in the first iterations only."""
    run = runs["anew"]
    assert run.check_first("lost-update")["victim_of"] is None, str(run)
    assert not any(each["kind"] == "vanishing" for each in run.every), str(run)


def test_healthy_programs_get_no_finding(runs: dict[str, Run]) -> None:
    runs["healthy"].check_healthy("frozen-in-optimizer")


def test_what_is_said_to_be_zero_is_zero(runs: dict[str, Run]) -> None:
    """The programs' own word, without adbg: both parameters of the dead layer, and all of the weights."""
    said = {program: runs[str(number)].plain.splitlines()[0] for number, (program, *_) in enumerate(CASES)}
    assert [said[each] for each in (DEAD, CAST)] == ["2", "0.0"]

"""Operators that fail for what an operand is: the line that made it is named, and not the layer, which fits."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as framework
from torch import nn
framework.manual_seed(0)
Module = nn.Module
def noise(*shape):
    return framework.randn(*shape)
def gru(inner, outer):
    return nn.GRU(inner, outer, batch_first=True)
def lstm(inner, outer):
    return nn.LSTM(inner, outer, batch_first=True)
""",
    "paddle": """
import paddle as framework
from paddle import nn
framework.seed(0)
Module = nn.Layer
def noise(*shape):
    return framework.randn(shape)
def gru(inner, outer):
    return nn.GRU(inner, outer)
def lstm(inner, outer):
    return nn.LSTM(inner, outer)
""",
}

# The last batch is smaller, and the state is not.
BATCH = """
class Net(Module):
    def __init__(self):
        super().__init__()
        self.gru = gru(3, 5)
        self.head = nn.Linear(5, 1)
    def forward(self, x, h):
        y, h = self.gru(x, h)
        return self.head(y[:, -1]), h
    def state(self, rows):
        return framework.zeros([1, rows, 5])
def train(net, batches):
    for x in batches:
        h = net.state(8)  # CAUSE
        y, h = net(x, h)
        y.square().mean().backward()
train(Net(), [noise(8, 6, 3), noise(8, 6, 3), noise(4, 6, 3)])
"""
# A state that is carried on: what does not fit is given by the call.
CARRIED = """
class Net(Module):
    def __init__(self):
        super().__init__()
        self.lstm = lstm(3, 5)
        self.head = nn.Linear(5, 1)
        self.state = (framework.zeros([1, 8, 5]), framework.zeros([1, 8, 5]))
    def forward(self, x):
        y, state = self.lstm(x, self.state)  # CAUSE
        self.state = tuple(each.detach() for each in state)
        return self.head(y[:, -1])
net = Net()
for x in [noise(8, 6, 3), noise(8, 6, 3), noise(4, 6, 3)]:
    net(x).square().mean().backward()
"""
# The layer is wrong, though others ran before it.
LATER = """
class Net(Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 5)
        self.head = nn.Linear(5, 1)
        self.other = nn.Linear(4, 1)  # CAUSE
    def forward(self, x, h, other):
        y = self.body(x) + h
        return self.other(y) if other else self.head(y)
def train(net, batches):
    for x, other in batches:
        net(x, noise(8, 5), other).square().mean().backward()
train(Net(), [(noise(8, 3), False), (noise(8, 3), False), (noise(8, 3), True)])
"""

# As many rows as a last index says, where the last ones are named by none.
COUNTED = """
class Net(Module):
    def __init__(self):
        super().__init__()
        self.own, self.sent = nn.Linear(3, 4), nn.Linear(3, 4)
    def forward(self, x, ends):
        rows = int(ends.max()) + 1  # CAUSE
        sent = framework.zeros([rows, 4])
        sent = sent + self.sent(x)[ends]
        sent = sent.tanh()
        return self.own(x) + sent
def train(net, batches):
    for x, ends in batches:
        net(x, framework.arange(ends)).square().mean().backward()
train(Net(), [(noise(8, 3), 8), (noise(9, 3), 9), (noise(8, 3), 7)])
"""
# A number of the source is no count: what is made of it is named.
FIXED = COUNTED.replace("int(ends.max()) + 1  # CAUSE", "7").replace("[rows, 4])", "[rows, 4])  # CAUSE").replace(
    "[(noise(8, 3), 8), (noise(9, 3), 9)", "[(noise(7, 3), 7), (noise(7, 3), 7)"
).replace("        sent = sent + self.sent(x)[ends]\n        sent = sent.tanh()\n", "")  # fmt: skip

# A table in double precision, as NumPy computed it, makes the results of its module so.
DOUBLE = """
import numpy as np
class Phases(Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("rates", framework.to_tensor(np.linspace(0.1, 1, 4)))  # CAUSE
    def forward(self, t):
        return (t * self.rates).sin()
class Net(Module):
    def __init__(self):
        super().__init__()
        self.phases, self.head = Phases(), nn.Linear(4, 1)
    def forward(self, t):
        embedded = self.phases(t)
        return self.head(embedded)
net = Net()
for _ in range(3):
    net(noise(8, 1)).square().mean().backward()
"""
# The table is right, what is made beside it is not.
GIVEN = DOUBLE.replace("np.linspace(0.1, 1, 4)))  # CAUSE", 'np.linspace(0.1, 1, 4, dtype="float32")))').replace(
    "self.phases(t)", "self.phases(t).astype('float64')  # CAUSE")  # fmt: skip

INFERENCE = """
net = nn.Linear(4, 1)
with framework.inference_mode():  # CAUSE
    table = noise(10, 4)
for _ in range(3):
    net(table).square().mean().backward()
"""
EMBEDDED = """
encoder, head = nn.Linear(4, 8), nn.Linear(8, 1)
@framework.inference_mode()  # CAUSE
def embed(x):
    return encoder(x)
def train():
    for _ in range(3):
        features = embed(noise(8, 4))
        head(features).square().mean().backward()
train()
"""
# The loop only takes what the data set gives.
DATA = """
import numpy as np
class Rows(framework.io.Dataset):
    def __init__(self, n):
        self.n = n
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        y = np.float32(i % 2)
        x = np.linspace(0.0, 1.0, 4) * i  # CAUSE
        return y, x
net = nn.Linear(4, 1)
for epoch in range(2):
    for step, (y, x) in enumerate(framework.io.DataLoader(Rows(8), batch_size=4)):
        net(x).square().mean().backward()
"""
LOADER = DATA.replace("for epoch", "loader = framework.io.DataLoader(Rows(8), batch_size=4)\nfor epoch").replace(
    "step, (y, x) in enumerate(framework.io.DataLoader(Rows(8), batch_size=4))", "y, x in loader"
)

# NumPy computes in double precision; the layer that refuses it is two functions and an operator away.
TABLE = """
import numpy as np
class Net(Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.body = nn.Sequential(nn.Linear(7, 8), nn.ReLU(), nn.Linear(8, 1))
    def forward(self, numbers, kinds):
        joined = framework.concat([numbers, self.embed(kinds)], 1)
        return self.body(joined)
def tables(count):
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(count, 4))
    numbers = numbers / numbers.std(0)
    kinds = framework.to_tensor(rng.integers(0, 5, count))
    rows = framework.to_tensor(numbers)  # CAUSE
    return kinds, rows
net = Net()
kinds, numbers = tables(20)
for at in range(0, 20, 5):
    net(numbers[at : at + 5], kinds[at : at + 5]).square().mean().backward()
"""
# A loader goes through tensors that were made right there, as TensorDataset has them.
TENSORS = """
import numpy as np
rng = np.random.default_rng(0)
inputs, goals = rng.normal(size=(16, 4)), rng.normal(size=(16, 1)).astype("float32")
def loader(rows, goals):
    goals = framework.to_tensor(goals)
    rows = framework.to_tensor(rows)  # CAUSE
    rows = framework.io.TensorDataset([rows, goals])
    return framework.io.DataLoader(rows, batch_size=4)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
def train(net, batches):
    for step, (rows, goals) in enumerate(batches):
        (net(rows) - goals).square().mean().backward()
train(net, loader(inputs, goals))
"""
# An attribute of the object whose method runs.
HELD = """
import numpy as np
class Trainer:
    def __init__(self, rows):
        self.net, self.at = nn.Linear(4, 1), 0
        self.rows = framework.to_tensor(rows)  # CAUSE
    def batch(self):
        self.at += 4
        return self.rows[self.at - 4 : self.at]
    def step(self):
        x = self.batch().reshape([-1, 4])
        return self.net(x).square().mean()
trainer = Trainer(np.linspace(0, 1, 32).reshape(8, 4))
for _ in range(2):
    trainer.step().backward()
"""
# A batch of one: its axis goes, too. The last one is so only in training, where the operand has a graph.
DROPPED = """
class Encoder(Module):
    def __init__(self):
        super().__init__()
        self.body, self.pool = nn.Conv1D(2, 4, 3), nn.AdaptiveAvgPool1D(1)
    def forward(self, x):
        return self.pool(self.body(x)).squeeze()  # CAUSE
class Net(Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = Encoder(), nn.Linear(7, 1)
    def forward(self, x, more):
        z = self.encoder(x)
        return self.head(framework.concat([z, more], 1))
net = Net()
for rows in (6, 6, 1):
    net(noise(rows, 2, 9), noise(rows, 3)).square().mean().backward()
"""
# What squeezes an axis that it added drops nothing of the batch's, and neither does one that finds nothing to drop.
SQUEEZED = """
class Net(Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(3, 10), nn.Linear(10, 1)
        self.other = nn.Linear(12, 1)  # CAUSE
    def forward(self, x, wide):
        h = self.body(x.unsqueeze(1)).squeeze(1).squeeze()
        return self.other(h) if wide else self.head(h)
net = Net()
for wide in (False, False, True):
    net(noise(8, 3), wide).square().mean().backward()
"""
# Paddle is told how many parts to make, torch how large one is: of 24 hours four, or six.
PARTS = """
SIZE, COUNT = 4, 6
class Net(Module):
    def __init__(self):
        super().__init__()
        self.encode, self.head = nn.Linear(GIVES, 5), nn.Linear(5, 1)
        self.slots = nn.Linear(1, COUNT * 5)
    def parts(self, day):
        parts = framework.split(day, MEANT, 1)  # CAUSE
        return framework.stack([self.encode(each) for each in parts], 1)
    def forward(self, day):
        z = self.parts(day)
        slots = self.slots(framework.ones([1, 1])).reshape([1, COUNT, 5])
        z = z + slots
        return self.head(z)
net = Net()
for _ in range(2):
    net(noise(8, 24)).square().mean().backward()
"""
# Of what is computed: the graph has the line.
PARTS_OF_GRAPH = PARTS.replace("self.parts(day)", "self.parts(self.first(day))").replace(
    "self.slots = ", "self.first = nn.Linear(24, 24)\n        self.slots = "
)
# A token for each row of a full batch.
EXPANDED = """
class Net(Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(3, 5)
        self.first = nn.Linear(1, 5)
        self.head = nn.Linear(5, 1)
    def forward(self, image):
        tokens = self.embed(image.transpose(ORDER))
        first = self.first.weight.reshape([1, 1, 5]).expand([8, 1, 5])  # CAUSE
        return self.head(self.joined(first, tokens).mean(1))
    def joined(self, one, more):
        return framework.concat([one, more], 1)
net = Net()
for image in [noise(8, 3, 6), noise(8, 3, 6), noise(4, 3, 6)]:
    net(image).square().mean().backward()
"""
TABLES = {"table": TABLE, "tensors": TENSORS, "held": HELD}

BOTH = {
    "data": DATA,
    "loader": LOADER,
    "batch": BATCH,
    "carried": CARRIED,
    "later": LATER,
    "counted": COUNTED,
    "expanded": EXPANDED,
    "fixed": FIXED,
    "dropped": DROPPED,
    "squeezed": SQUEEZED,
    "parts": PARTS,
    "parts of a graph": PARTS_OF_GRAPH,
    "double": DOUBLE,
    "given": GIVEN,
    **TABLES,
}
TORCH = {"inference": INFERENCE, "embedded": EMBEDDED}  # Paddle has no such tensors


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    programs = BOTH | (TORCH if request.param == "torch" else {})
    meant = "COUNT" if request.param == "torch" else "SIZE"
    programs = {key: text.replace("MEANT", meant).replace("GIVES", "6") for key, text in programs.items()}
    order = ("1, 2", "[0, 2, 1]")[request.param == "paddle"]
    programs = {name: text.replace("ORDER", order) for name, text in programs.items()}
    if request.param == "torch":
        words = (
            ("framework.to_tensor", "framework.from_numpy"),
            ("astype('float64')", "double()"),
            ("TensorDataset([rows, goals])", "TensorDataset(rows, goals)"),
            ("framework.io.", "framework.utils.data."),
            ("Conv1D", "Conv1d"),
            ("Pool1D", "Pool1d"),
        )
        for word, theirs in words:
            programs = {name: text.replace(word, theirs) for name, text in programs.items()}
    texts = {name: HEAD[request.param] + text for name, text in programs.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


def of(*names: str) -> pytest.MarkDecorator:
    cases = [case(name, name, group=f"functions-operands-{name}") for name in names]
    return pytest.mark.parametrize("runs", cases, indirect=True)


@of(*FRAMEWORKS)
@pytest.mark.parametrize("name", BOTH)
def test_the_line_is_that_of_what_does_not_fit(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first("operator-error")


@of(*FRAMEWORKS)
@pytest.mark.parametrize(("name", "called"), [("table", "numbers"), ("tensors", "rows"), ("held", "x")])
def test_a_table_of_numpys_is_told_by_the_users_name(runs: dict[str, Run], name: str, called: str) -> None:
    message = runs[name].check_first("operator-error")["message"]
    assert f"makes {called}, which is f64, " in message and "within" not in message, message


@of("torch")
@pytest.mark.parametrize("name", TORCH)
def test_tensors_of_inference_mode_are_told_by_it(runs: dict[str, Run], name: str) -> None:
    message = runs[name].check_first("operator-error")["message"]
    assert "made under inference_mode" in message and "does not fit" not in message, message

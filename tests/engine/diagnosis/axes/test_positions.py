"""An encoding of places that is added along the batch. Witness: the program asks the framework itself whether the same
row, told one place further down in the batch, gets another result, and whether the order of its steps does not matter.
"""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import math
import torch as fw
from torch import nn
import torch.nn.functional as F
fw.manual_seed(0)
def randint(high, shape):
    return fw.randint(0, high, shape)
def moved(x, *order):
    return x.permute(*order)
def cat(parts):
    return fw.cat(parts)
def flipped(x):
    return x.flip(1)
def numbers(count):
    return fw.arange(count).float()
def table_of(sizes):
    return nn.Parameter(fw.randn(sizes))
def filled(pe, sine, cosine):
    pe[:, 0, 0::2] = sine
    pe[:, 0, 1::2] = cosine
    return pe
def encoder(first):
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=first), 1)
def gru(first):
    return nn.GRU(16, 16, batch_first=first)
Module = nn.Module
def sgd(net):
    optimizer = fw.optim.SGD(net.parameters(), 0.01)
    return optimizer, optimizer.zero_grad
""",
    "paddle": """
import math
import paddle as fw
from paddle import nn
import paddle.nn.functional as F
fw.seed(0)
def randint(high, shape):
    return fw.randint(0, high, shape)
def moved(x, *order):
    return x.transpose(list(order))
def cat(parts):
    return fw.concat(parts)
def flipped(x):
    return x.flip([1])
def numbers(count):
    return fw.arange(count).astype("float32")
def table_of(sizes):
    return fw.create_parameter(sizes, "float32", default_initializer=nn.initializer.Normal())
def filled(pe, sine, cosine):
    return fw.stack([sine, cosine], -1).reshape([sine.shape[0], 1, -1])
class StepsFirst(nn.TransformerEncoder):
    def forward(self, x):
        return super().forward(x.transpose([1, 0, 2])).transpose([1, 0, 2])
def encoder(first):
    return (nn.TransformerEncoder if first else StepsFirst)(nn.TransformerEncoderLayer(16, 2, 32, 0.0), 1)
def gru(first):
    return nn.GRU(16, 16, time_major=not first)
Module = nn.Layer
def sgd(net):
    optimizer = fw.optimizer.SGD(0.01, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
""",
}
START = """
ROWS, STEPS, CLASSES = 8, 5, 3
def waves(count):
    place = numbers(count).unsqueeze(1)
    rates = fw.exp(numbers(16)[::2] * (-math.log(10000.0) / 16))
    return filled(fw.zeros([count, 1, 16]), fw.sin(place * rates), fw.cos(place * rates))
class Net(Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 16), nn.Linear(16, CLASSES)
        MADE
    def forward(self, tokens):
        x = self.embed(tokens)
        BODY
net = Net()
optimizer, clear = sgd(net)
labels = randint(CLASSES, [LABELS])
for at in range(6):
    tokens = randint(20, [ROWS, STEPS])
    out = net(tokens)
    loss = F.cross_entropy(out.reshape([-1, CLASSES]), labels)
    loss.backward()
    optimizer.step()
    clear()
def far(one, other):
    return float((one - other).abs().max()) > 1e-4
with fw.no_grad():
    down = net(cat([tokens[-1:], tokens[:-1]]))
    print("by its place in the batch:", far(down[1:], net(tokens)[:-1]))
    WITNESS
"""
ORDER = 'print("by the order of its steps:", far(net(flipped(tokens)), net(tokens)))'
BUFFER = 'self.register_buffer("pe", waves(50))'


def program(made: str, *lines: str, labels: str = "ROWS", witness: str = "pass") -> str:
    text = START.replace("MADE", made.replace("\n", "\n        ")).replace("BODY", "\n        ".join(lines))
    return text.replace("LABELS", labels).replace("WITNESS", witness)


HAND = (
    "one, two, three = (each(x).reshape([x.shape[0], x.shape[1], 2, 8]) for each in self.layers)",
    "scores = fw.matmul(moved(one, 0, 2, 1, 3), moved(two, 0, 2, 3, 1)) / 8**0.5",
    "x = x + moved(fw.matmul(F.softmax(scores, -1), moved(three, 0, 2, 1, 3)), 0, 2, 1, 3).reshape(x.shape)",
)
LAYERS = 'self.a, self.b, self.c = (nn.Linear(16, 16) for _ in "abc")\nself.layers = [self.a, self.b, self.c]'
BUGGY = {
    "an encoder": program(
        f"{BUFFER}\nself.encoder, self.drop = encoder(True), nn.Dropout(0.0)",
        "x = x + self.pe[: x.shape[0]]  # CAUSE", "x = self.encoder(self.drop(x))", "return self.head(x.mean(1))",
        witness=ORDER,
    ),
    "a learnt table, attention by hand": program(
        f"{LAYERS}\nself.places = table_of([50, 1, 16])",
        "rows, steps, _ = x.shape", "pos = self.places[:rows]  # CAUSE", "x = pos + x", *HAND,
        "return self.head(x.mean(1))", witness=ORDER,
    ),
    "a recurrent layer": program(
        f"{BUFFER}\nself.gru, self.norm = gru(True), nn.LayerNorm(16)",
        "x = x * 4.0", "x = self.norm(x + self.pe[:x.shape[0], :])  # CAUSE", "x, state = self.gru(x)",
        "return self.head(x[:, -1])",
    ),
    "a label for each step": program(
        f"{LAYERS}\nself.pe = waves(50)[:, 0]",
        "n = len(x)", "part = self.pe[:n]  # CAUSE", "x = x + part.unsqueeze(1)", *HAND, *HAND,
        "return self.head(x)", labels="ROWS * STEPS",
    ),
}  # fmt: skip
HEALTHY = {
    "steps first": program(
        f"{BUFFER}\nself.encoder = encoder(False)",
        "x = moved(x, 1, 0, 2)", "x = x + self.pe[: x.shape[0]]", "x = self.encoder(x)",
        "return self.head(x.mean(0))",
    ),
    "steps first, a recurrent layer": program(
        f"{BUFFER}\nself.gru = gru(False)",
        "x = moved(x, 1, 0, 2)", "x = x + self.pe[: x.shape[0]]", "x, state = self.gru(x)", "return self.head(x[-1])",
    ),
    "steps first until they are turned": program(
        f"{LAYERS}\nself.places = table_of([50, 1, 16])",
        "x = moved(x, 1, 0, 2)", "x = x + self.places[: x.shape[0]]", "x = moved(x, 1, 0, 2)", *HAND,
        "return self.head(x.mean(1))",
    ),
    "along axis 1": program(
        "self.register_buffer('pe', waves(50).reshape([1, 50, 16]))\nself.encoder = encoder(True)",
        "x = x + self.pe[:, : x.shape[1]]", "x = self.encoder(x)", "return self.head(x.mean(1))",
    ),
    "an embedding of the sample": program(
        "self.register_buffer('pe', waves(50).reshape([1, 50, 16]))\nself.encoder = encoder(True)\n"
        "self.kinds = nn.Embedding(30, 16)",
        "x = x + self.kinds(tokens[:, 0]).unsqueeze(1)", "x = x + self.pe[:, : x.shape[1]]", "x = self.encoder(x)",
        "return self.head(x.mean(1))",
    ),
    "by the time of a sample": program(
        f"{BUFFER}\nself.encoder = encoder(True)\nself.time = nn.Linear(16, 16)",
        "when = tokens[:, 0]", "x = x + self.time(self.pe[when])", "x = self.encoder(x)", "return self.head(x.mean(1))",
    ),
}  # fmt: skip
BY_ROW = {  # the place in the batch does count
    "frames, of which each looks at the others": program(
        f"{BUFFER}\n{LAYERS}",
        "x = x + self.pe[: x.shape[0]]", *HAND, "x = moved(x, 1, 0, 2)", *HAND, "return self.head(x.mean(0))",
    ),
    "views beside steps": program(
        "self.views, self.encoder = table_of([50, 1, 16]), encoder(True)\nself.steps = table_of([1, 5, 16])",
        "x = x + self.steps", "x = x + self.views[: x.shape[0]]", "x = self.encoder(x)", "return self.head(x.mean(1))",
    ),
    "numbers of each row": program(
        "self.rows, self.encoder = fw.randn([50, 1, 16]), encoder(True)",
        "x = x + self.rows[: x.shape[0]]", "x = self.encoder(x)", "return self.head(x.mean(1))",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {f"buggy, {name}": HEAD[request.param] + part for name, part in BUGGY.items()}
    texts |= {name: HEAD[request.param] + part for name, part in (HEALTHY | BY_ROW).items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"positions-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_places_along_the_batch(runs: dict[str, Run], name: str) -> None:
    run = runs[f"buggy, {name}"]
    assert "by its place in the batch: True\n" in run.plain, run
    assert "by the order of its steps: True" not in run.plain, run
    first = run.check_first("wrong-axis")
    assert "all 5 steps of a row get one encoding" in first["message"], first


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_places_along_the_steps(runs: dict[str, Run], name: str) -> None:
    assert "by its place in the batch: False\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()


@each
@pytest.mark.parametrize("name", BY_ROW)
def test_rows_that_have_places(runs: dict[str, Run], name: str) -> None:
    assert "by its place in the batch: True\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()

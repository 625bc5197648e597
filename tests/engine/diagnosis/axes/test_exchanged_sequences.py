"""A reshape that exchanges rows and steps of sequences in front of what goes along these steps; what looks so."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
noise, stack = torch.randn, torch.stack
def sgd(*modules):
    return torch.optim.SGD([each for module in modules for each in module.parameters()], 0.05)
def integers(most, *shape):
    return torch.randint(0, most, shape)
join = torch.cat
def twice(x):
    return x.repeat_interleave(2, 0)
def clear(opt):
    opt.zero_grad()
""",
    "paddle": """
import paddle
from paddle import nn
from paddle.nn import functional as F
paddle.seed(0)
noise, stack = lambda *shape: paddle.randn(shape), paddle.stack
def sgd(*modules):
    return paddle.optimizer.SGD(0.05, parameters=[each for module in modules for each in module.parameters()])
def integers(most, *shape):
    return paddle.randint(0, most, shape)
join = paddle.concat
def twice(x):
    return paddle.repeat_interleave(x, 2, 0)
def clear(opt):
    opt.clear_grad()
""",
}
# "front" has the steps in front, the others the rows.
LAYERS = {
    "torch": {
        "front": "nn.LSTM(4, 8)", "behind": "nn.GRU(8, 8, batch_first=True)", "rnn": "nn.GRU(4, 8, batch_first=True)",
        "pairs": "nn.LSTM(8, 8, batch_first=True)", "attention": "nn.MultiheadAttention(8, 2)",
    },
    "paddle": {
        "front": "nn.LSTM(4, 8, time_major=True)", "behind": "nn.GRU(8, 8)", "rnn": "nn.GRU(4, 8)",
        "pairs": "nn.LSTM(8, 8)",
    },
}  # fmt: skip
EITHER = {
    "wide": "nn.Linear(4, 8)", "cell": "nn.Linear(12, 8)", "embed": "nn.Embedding(9, 8)", "out": "nn.Linear(8, 4)",
}  # fmt: skip
LOOP = """
LAYERS
for count in (ROWS):
    x = noise(count, STEPS, 4)
    y = x.mean(1).argmax(-1)
BODY
    loss.backward()
    opt.step()
    clear(opt)
"""


def program(body: str, rows: str = "6, 6, 6", steps: str = "5") -> str:
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    return LOOP.replace("BODY", lines).replace("ROWS", rows).replace("STEPS", steps)


# Data, in front of a layer that has the steps first.
DATA = program("""
turned = x.reshape([x.shape[1], x.shape[0], x.shape[2]])  # CAUSE
loss = F.cross_entropy(out(front(turned)[0].mean(0)), y)
""")
# What an embedding gives, in front of one that has the rows first.
EMBEDDED = program("""
tokens = integers(9, 5, 6)
y = tokens.sum(0) % 4
rows = embed(tokens).reshape([6, 5, 8])  # CAUSE
loss = F.cross_entropy(out(behind(rows)[0][:, -1]), y)
""")
# As many rows as twice the steps; a loop over these.
LOOPED = program("""
turned = (x * 2).reshape([4, 8, 4])  # CAUSE
state = noise(8, 8)
for at in range(4):
    state = cell(join([turned[at], state], 1)).tanh()
loss = F.cross_entropy(out(state), y)
""", "8, 8, 8", "4")  # fmt: skip
# The last batch is smaller; nothing tells which rows the targets belong to.
SMALLER = program("""
rows = x.reshape([4, count, 4])  # CAUSE
loss = (front(rows)[0].mean() - x.mean()).square()
""", "8, 6, 8", "4")  # fmt: skip
ATTENTION = program("""
turned = wide(x).reshape([5, 6, 8])  # CAUSE
mixed, _ = attention(turned, turned, turned)
loss = F.cross_entropy(out(mixed.mean(0)), y)
""")
BUGGY = {"data": DATA, "embedded": EMBEDDED, "looped": LOOPED, "smaller": SMALLER}

HEALTHY = {
    # Any order of random numbers is as good as any other.
    "noise": program("""
z = noise(6, 5, 4) * 0.5
loss = (out(front(z.reshape([5, 6, 4]))[0]).mean(0) - x.mean(1)).square().mean()
"""),
    # Each recording is cut in two, with its target for both.
    "windows": program("""
halves = x.reshape([8, 4, 4])
loss = F.cross_entropy(out(rnn(halves)[0][:, -1]), twice(y))
""", "4, 4, 4", "8"),
    # Parts of one long recording are cut at other places; what comes next is to be told.
    "cut anew": program("""
parts = x.reshape([5, 6, 4])
loss = (out(rnn(parts)[0][:, :-1]) - parts[:, 1:]).square().mean()
"""),
    # A dilated layer: every second step is a row of its own.
    "dilated": program("""
rows = front(x.reshape([4, 8, 4]))[0].reshape([8, 4, 8])
loss = (out(rows)[:-1] - x[1:]).square().mean()
""", "8, 8, 8", "4"),
    # The same, with the targets of all rows.
    "dilated with targets": program("""
few = y[:4]
loss = F.cross_entropy(out(front(x.reshape([4, 8, 4]))[0][-1]), join([few, few]))
""", "8, 8, 8", "4"),
    # It came in steps, and was only told other sizes.
    "laid out so": program("""
flat = noise(5 * 6 * 4) + 0.5
late = flat.reshape([5, 6, 4])[-1].argmax(-1)
loss = F.cross_entropy(out(front(flat.reshape([6, 5, 4]).reshape([5, 6, 4]))[0][-1]), late)
"""),
    # Pairs of steps are one: as many steps as numbers, by chance.
    "pyramid": program("""
loss = F.cross_entropy(out(pairs(x.reshape([count, 4, 8]))[0][:, -1]), y)
""", "6, 6, 6", "8"),
    # The targets are cut as the data are.
    "likewise": program("""
tags = x.argmax(-1).reshape([5, 6])
loss = F.cross_entropy(out(rnn(x.reshape([5, 6, 4]))[0][:, -1]), tags[:, -1])
"""),
    # All rows are alike.
    "alike": program("""
start = (x[:1, :1] * 0 + 1).expand([6, 5, 4]) * 1.0
loss = F.cross_entropy(out(front(start.reshape([5, 6, 4]))[0].mean(0)), y)
"""),
    # A transpose.
    "turned": program("""
order = x.permute([1, 0, 2]) if hasattr(x, "permute") else x.transpose([1, 0, 2])
loss = F.cross_entropy(out(front(order.reshape([5, 6, 4]))[0].mean(0)), y)
"""),
}  # fmt: skip


def _with_layers(text: str, framework: str) -> str:
    layers = {name: made for name, made in (LAYERS[framework] | EITHER).items() if f"{name}(" in text}
    lines = [*(f"{name} = {made}" for name, made in layers.items()), f"opt = sgd({', '.join(layers)})"]
    return text.replace("LAYERS", "\n".join(lines))


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    framework = request.param
    every = BUGGY | HEALTHY | ({"attention": ATTENTION} if framework == "torch" else {})
    texts = {name: HEAD[framework] + _with_layers(text, framework) for name, text in every.items()}
    return diagnose_each(framework, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"graphs-exchanged-sequences-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_rows_and_steps_are_mixed(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("wrong-axis")
    assert first["severity"] == "warning" and "use transpose" in first["message"], first


@pytest.mark.parametrize("runs", [case("torch", "torch", group="graphs-exchanged-sequences-torch")], indirect=True)
def test_in_front_of_an_attention(runs: dict[str, Run]) -> None:
    assert runs["attention"].check_first("wrong-axis")["severity"] == "warning"


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_others_explain_it(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()

"""The last batch is smaller, and the state that a recurrent layer is given is not: the line is named that says how many
rows it has. Witness: the exception."""

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
def own(*shape):
    return nn.Parameter(framework.randn(*shape))
def layer(kind, inner, outer, count=1, first=True):
    return getattr(nn, kind)(inner, outer, num_layers=count, batch_first=first)
""",
    "paddle": """
import paddle as framework
from paddle import nn
framework.seed(0)
Module = nn.Layer
def noise(*shape):
    return framework.randn(shape)
def own(*shape):
    return framework.create_parameter(list(shape), "float32")
def layer(kind, inner, outer, count=1, first=True):
    return getattr(nn, kind)(inner, outer, num_layers=count, time_major=not first)
""",
}
BODY = """
import argparse
args = argparse.Namespace(batch=8, hidden=5, layers=2)
class Net(Module):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.rnn = layer("KIND", 3, args.hidden, args.layers)
        self.head = nn.Linear(args.hidden, 1)
INNER
def train(net, args):
    for rows in (8, 8, 4):
        x = noise(rows, 6, 3)
        LOSS.square().mean().backward()
train(Net(args), args)
"""


def program(inner: str, kind: str = "GRU", loss: str = "net(x)") -> str:
    lines = "\n".join("    " + line if line else "" for line in inner.strip("\n").splitlines())
    return BODY.replace("INNER", lines).replace("KIND", kind).replace("LOSS", loss)


METHOD = program("""
def start(self):
    h = framework.zeros([self.args.layers, self.args.batch, self.args.hidden])  # CAUSE
    return h, framework.zeros_like(h)
def forward(self, x):
    y, _ = self.rnn(x, self.start())
    return self.head(y[:, -1])
""", "LSTM")  # fmt: skip
LOCAL = program("""
def forward(self, x):
    h = framework.zeros([self.args.layers, self.args.batch, self.args.hidden])  # CAUSE
    y, h = self.rnn(x, h)
    return self.head(y[:, -1])
""")
# Learnt, and expanded by a list of sizes.
LEARNT = program("""
    self.first = own(args.layers, 1, args.hidden)
def start(self):
    sizes = [self.args.layers, self.args.batch, self.args.hidden]  # CAUSE
    return self.first.expand(sizes)
def forward(self, x):
    y, _ = self.rnn(x, self.start())
    return self.head(y[:, -1])
""")
KEPT = program("""
    self.register_buffer("first", framework.zeros([args.layers, args.batch, args.hidden]))  # CAUSE
def forward(self, x):
    y, _ = self.rnn(x, self.first)
    return self.head(y[:, -1])
""")
BOTH = program("""
    self.states = (framework.zeros([2, args.batch, 5]), framework.zeros([2, args.batch, 5]))  # CAUSE
def forward(self, x):
    y, _ = self.rnn(x, self.states)
    return self.head(y[:, -1])
""", "LSTM")  # fmt: skip
# By the caller, with a number of its own.
TOLD = program("""
def start(self, rows, scale=1):
    return framework.zeros([self.args.layers, rows, self.args.hidden]) * scale
def forward(self, x, rows):
    h = self.start(rows)
    y, h = self.rnn(x, h)
    return self.head(y[:, -1])
""", loss="net(x, args.batch)").replace("        net(x", "        # CAUSE\n        net(x")  # fmt: skip
TOLD = TOLD.replace("        # CAUSE\n", "").replace(
    ".square().mean().backward()", ".square().mean().backward()  # CAUSE"
)
HANDED = program("""
def start(self):
    return framework.zeros([self.args.layers, self.args.batch, self.args.hidden])  # CAUSE
def forward(self, x, h):
    y, h = self.rnn(x, h)
    return self.head(y[:, -1])
""", loss="net(x, h)").replace("        x = noise", "        h = net.start()\n        x = noise")  # fmt: skip
# The layer has the steps first, and the data the rows.
TURNED = program("""
def forward(self, x):
    h = framework.zeros([self.args.layers, x.shape[0], self.args.hidden])
    y, h = self.rnn(x, h)
    return self.head(y[:, -1])
""").replace("args.hidden, args.layers)", "args.hidden, args.layers, False)  # CAUSE")  # fmt: skip
RIGHT = program("""
def start(self, x):
    return framework.zeros([self.args.layers, x.shape[0], self.args.hidden])
def forward(self, x):
    y, _ = self.rnn(x, self.start(x))
    return self.head(y[:, -1])
""")
BUGGY = {
    "method": METHOD, "local": LOCAL, "learnt": LEARNT, "kept": KEPT, "both": BOTH, "told": TOLD, "handed": HANDED,
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    every = {**BUGGY, "turned": TURNED, "right": RIGHT}
    texts = {name: HEAD[request.param] + text for name, text in every.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"errors-states-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_who_says_how_many_rows(runs: dict[str, Run], name: str) -> None:
    assert "Error" in runs[name].plain
    message = runs[name].check_first("operator-error")["message"]
    assert "is for 8 rows" in message and "and the batch has 4" in message, message
    assert "within" not in message and "?" not in message, message


@each
def test_steps_for_rows(runs: dict[str, Run]) -> None:
    assert "does not fit" in runs["turned"].check_first("operator-error")["message"]


@each
def test_as_many_as_the_batch(runs: dict[str, Run]) -> None:
    found = [each["kind"] for each in runs["right"].above_notes()]
    assert "operator-error" not in found, str(runs["right"])

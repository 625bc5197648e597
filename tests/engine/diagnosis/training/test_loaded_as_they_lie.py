"""Weights of another framework that are turned where their shapes differ, and nowhere else. Witness: which linear
weights are what was stored, turned, by the framework's own numbers."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, named

HEAD = {
    "torch": """
import numpy as np
import torch as fw
from torch import nn
import torch.nn.functional as F
fw.manual_seed(0)
np.random.seed(0)
Module, randn, tensor = nn.Module, fw.randn, fw.as_tensor
def adam(net):
    optimizer = fw.optim.Adam(net.parameters(), 0.01)
    return optimizer, optimizer.zero_grad
""",
    "paddle": """
import numpy as np
import paddle as fw
from paddle import nn
import paddle.nn.functional as F
fw.seed(0)
np.random.seed(0)
Module, tensor = nn.Layer, fw.to_tensor
def randn(*shape):
    return fw.randn(shape)
def adam(net):
    optimizer = fw.optimizer.Adam(0.01, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
""",
}
NET = """
class Net(Module):
    def __init__(self, sizes=(6, 6, 6, 3)):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(*sizes[:2]), nn.Linear(*sizes[1:3]), nn.Linear(*sizes[2:])

    def forward(self, x):
        return self.head(F.tanh(self.two(F.tanh(self.one(x)))))

class Table(Module):
    def __init__(self):
        super().__init__()
        self.table, self.one, self.head = nn.Embedding(6, 6), nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(F.tanh(self.one(x @ self.table.weight)))

def stored_for(net):
    given = {}
    for name, each in net.named_parameters():
        shape = list(each.shape) if "table" in name else list(each.shape)[::-1]
        given[name] = (0.3 * np.random.randn(*shape)).astype("float32")
    return given

def shows(net, given):
    turned = {name: each.detach().numpy() for name, each in net.named_parameters() if each.ndim == 2}
    print("as they lie:", [name for name, each in turned.items()
                           if "table" not in name and not np.array_equal(each, given[name].T)])
"""
LOAD = """
def load(net, given):
    for name, target in net.named_parameters():
        value = given[name]
        if list(value.shape) != list(target.shape):  # CAUSE
            value = value.T
        WRITE
"""
FIT = """
net = Net()
given = stored_for(net)
load(net, given)
shows(net, given)
optimizer, clear = adam(net)
x, y = randn(16, 6), fw.arange(16) % 3
for at in range(5):
    loss = F.cross_entropy(net(x), y)
    clear()
    loss.backward()
    optimizer.step()
"""
WRITE = {"torch": "target.data.copy_(fw.as_tensor(value))", "paddle": "target.set_value(value)"}
STATE = {"torch": "load_state_dict", "paddle": "set_state_dict"}
IF = "        if list(value.shape) != list(target.shape):  # CAUSE\n            value = value.T\n"
ASKED = "list(value.shape) != list(target.shape)"


def changed(*parts: tuple[str, str], text: str = LOAD + FIT) -> str:
    for old, new in parts:
        assert old in text, old
        text = text.replace(old, new)
    return text


DICT = """
def load(net, given):
    state = {}
    for name, target in net.state_dict().items():
        value = given[name]
        if list(value.shape) != list(target.shape):  # CAUSE
            value = value.T
        state[name] = tensor(value)
    net.STATE(state)
"""
BUGGY = {
    "a condition": LOAD + FIT,
    "of tuples": changed((ASKED, "tuple(value.shape) != tuple(target.shape)")),
    "beside the axes": changed((ASKED, f"value.ndim == 2 and {ASKED}")),
    "beside their length": changed((ASKED, f"len(value.shape) == 2 and {ASKED}")),
    "an expression": changed((IF, f"        value = value.T if {ASKED} else value  # CAUSE\n")),
    "an expression that is written": changed((IF, ""), ("WRITE", "value = tensor(value.T if value.shape != tuple("
                                             "target.shape) else value)  # CAUSE\n        WRITE")),
    "by transpose": changed(("value.T", "value.transpose()")),
    "by NumPy": changed(("value.T", "np.transpose(value)")),
    "one of two conditions": changed((IF, f"""        if value.ndim == 2:
            if {ASKED}:  # CAUSE
                value = value.T
""")),
    "one size": changed((ASKED, "value.shape[0] != target.shape[0]")),
    "a dict of them": DICT + FIT,
    "no function": changed((LOAD, ""), ("load(net, given)\n", LOAD.replace("\n    ", "\n").replace(
        "\ndef load(net, given):", "").lstrip("\n"))),
    "what is alike first": changed((IF, f"        value = value if {ASKED.replace('!=', '==')} else value.T  # CAUSE\n"
    )),
    "else": changed((IF, f"""        if {ASKED.replace('!=', '==')}:  # CAUSE
            value = value
        else:
            value = value.T
""")),
    "written in both": changed((IF, f"""        if {ASKED}:  # CAUSE
            value = tensor(value.T)
            WRITE
        else:
"""), ("            value = tensor(value.T)\n            WRITE\n        else:\n        WRITE",
        "            value = tensor(value.T)\n            WRITE\n        else:\n            WRITE")),
    "told of": changed(("value = value.T", "print('turned', name)\n            value = value.T")),
    "shapes of their own": changed((IF, """        have, want = list(value.shape), list(target.shape)
        if have != want:  # CAUSE
            value = value.T
""")),
    "of two negations": changed((ASKED, "not list(value.shape) == list(target.shape)")),
    "a function for one": changed(("\ndef load", f"""
def fitted(value, target):
    return value.T if {ASKED} else value  # CAUSE

def load"""), (IF, "        value = fitted(value, target)\n")),
    "loaded elsewhere": changed(("    net.STATE(state)", "    return state"), ("load(net, given)\nshows",
                                "net.STATE(load(net, given))\nshows"), text=DICT + FIT),
}  # fmt: skip
HEALTHY = {
    "by name": changed((IF, "        value = value.T if name.endswith('weight') else value\n")),
    "all of two axes": changed((f"if {ASKED}:  # CAUSE", "if value.ndim == 2:")),
    "a name beside it": changed((f"if {ASKED}:  # CAUSE", f"if name in ('one.weight', 'two.weight') or {ASKED}:")),
    "no square one": changed(("  # CAUSE", ""), ("net = Net()", "net = Net((6, 8, 5, 3))")),
    "looked at behind it": changed((IF, f"        value = value.T if value.ndim == 2 else value\n        if {ASKED}:\n"
                                    "            raise ValueError(name)\n")),
    "other data turned": changed(("\ndef load", f"""
def rows_of(value, target):
    return value.T if {ASKED} else value

def load"""), (IF, "        value = value.T if value.ndim == 2 else value\n"),
        ("shows(net", "rows_of(np.zeros([2, 6]), net.head.bias)\nshows(net")),
    # A table of an embedding lies alike in all frameworks.
    "a square table": changed(("  # CAUSE", ""), ("net = Net()", "net = Table()")),
    "never called": changed(("  # CAUSE", ""), ("load(net, given)\nshows(net, given)", "print('as they lie: []')")),
}  # fmt: skip
FAULTS: dict[str, str] = {}


def texts(framework: str) -> dict[str, str]:
    parts = {f"buggy, {name}": part for name, part in BUGGY.items()} | HEALTHY
    return {name: HEAD[framework] + NET + part.replace("WRITE", WRITE[framework]).replace("STATE", STATE[framework])
            for name, part in parts.items()}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts(request.param))


cases = {name: case(name, name, group=f"training-as-they-lie-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@named(BUGGY, FAULTS)
def test_square_weights_are_not_turned(runs: dict[str, Run], name: str) -> None:
    run = runs[f"buggy, {name}"]
    assert "as they lie: ['one.weight', 'two.weight']\n" in run.plain, run
    first = run.check_first("not-loaded")
    assert first["severity"] == "warning" and len(run.told) == 1, run
    assert "one.weight [6, 6]" in first["message"] and "two.weight [6, 6]" in first["message"], first


@each
@named(HEALTHY, FAULTS)
def test_all_are_turned(runs: dict[str, Run], name: str) -> None:
    assert "as they lie: []\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()

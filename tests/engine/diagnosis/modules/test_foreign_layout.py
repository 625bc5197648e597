"""Weights of another framework that nothing in the program turns. Witness: whether the model's output is what the
original computes, with NumPy, of the same weights."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, named

# ``theirs``: what a linear layer of the other framework does with its weight, [in, out] or [out, in].
HEAD = {
    "torch": """
import numpy as np
import torch as fw
from torch import nn
import torch.nn.functional as F
fw.manual_seed(0)
np.random.seed(0)
Module, Conv, randn, tensor, theirs, ours = nn.Module, nn.Conv1d, fw.randn, fw.as_tensor, np.dot, np.inner
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
Module, Conv, tensor, theirs, ours = nn.Layer, nn.Conv1D, fw.to_tensor, np.inner, np.dot
def randn(*shape):
    return fw.randn(shape)
def adam(net):
    optimizer = fw.optimizer.Adam(0.01, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
""",
}
NET = """
class Net(Module):
    def __init__(self, hidden=6):
        super().__init__()
        self.table, self.one, self.head = nn.Embedding(6, 6), nn.Linear(6, hidden), nn.Linear(hidden, 6)

    def forward(self, x):
        return self.head(F.tanh(self.one(x @ self.table.weight)))

def original(given, x, product=theirs):
    x = np.dot(x, given["table.weight"])
    hidden = np.tanh(product(x, given["one.weight"]) + given["one.bias"])
    return product(hidden, given["head.weight"]) + given["head.bias"]

def drawn(sizes):
    return (0.3 * np.random.randn(*sizes)).astype("float32")

def stored(net):
    linear = ("one.weight", "head.weight")
    return {name: drawn(list(each.shape)[::-1 if name in linear else 1]) for name, each in net.named_parameters()}

def own(net):
    return {name: drawn(list(each.shape)) for name, each in net.named_parameters()}

def now(net):
    return {name: each.detach().numpy().copy() for name, each in net.named_parameters()}
"""
LOAD = """
def load(net, given):
    for name, target in net.named_parameters():
        value = given[name]
        PUT(VALUE)  # CAUSE
"""
FIT = """
net = Net()
given = stored(net)
load(net, given)

def fits(product):
    return np.allclose(net(x).detach().numpy(), original(given, x.numpy(), product), atol=1e-4)

x, y = randn(16, 6), fw.arange(16) % 6
print(f"as the original: {fits(theirs)}, as they lie: {fits(ours)}")
optimizer, clear = adam(net)
for at in range(5):
    loss = F.cross_entropy(net(x), y)
    clear()
    loss.backward()
    optimizer.step()
"""
# OTHER: whose linear weights lie the other way round; so do those of ANOTHER, which has the layout of PORT's
# convolutions as well. ALIKE: whose linear weights lie as here.
WORDS = {
    "torch": {
        "ANOTHER": "flax", "OTHER": "keras", "Other": "Keras", "PORT": "paddle", "ALIKE": "torch",
        "STATE": "load_state_dict", "PUT(": "target.data.copy_(", "SET(": "target.copy_(", "VALUE": "tensor(value)",
    },
    "paddle": {
        "ANOTHER": "pytorch", "OTHER": "torch", "Other": "PyTorch", "PORT": "torch", "ALIKE": "keras",
        "STATE": "set_state_dict", "PUT(": "target.set_value(", "SET(": "target.set_value(", "VALUE": "value",
    },
}  # fmt: skip


def changed(*parts: tuple[str, str], text: str = LOAD + FIT) -> str:
    for old, new in parts:
        assert old in text, old
        text = text.replace(old, new)
    return text


TOLD = '"""Goes on with what Other was trained on."""'  # in front of a program
WRITES = "        PUT(VALUE)  # CAUSE\n"
BY_NAME = changed(("load(", "load_from_OTHER("))
BY_PARAMETER = changed(("net, given):", "net, OTHER_state):"), ("value = given[", "value = OTHER_state["))
LOOP = "    for name, target in net.named_parameters():\n        value = OTHER_state[name]\n"
BUGGY = {
    "the function's name": BY_NAME,
    "another name": changed(("OTHER", "ANOTHER"), text=BY_NAME),
    "a parameter": BY_PARAMETER,
    "a variable": changed(("value = given", "OTHER_value = given"), ("PUT(VALUE)", "PUT(tensor(OTHER_value))")),
    "items of the dictionary": changed((LOOP, """    own = dict(net.named_parameters())
    for name, value in OTHER_state.items():
        target = own[name]
"""), text=BY_PARAMETER),
    "without a graph": changed((LOOP + WRITES, """    with fw.no_grad():
        for name, target in net.named_parameters():
            value = OTHER_state[name]
            SET(VALUE)  # CAUSE
"""), text=BY_PARAMETER),
    "without a graph, a decorator": changed(("def load", "@fw.no_grad()\ndef load"), ("PUT(", "SET("), text=BY_NAME),
    "a state": changed((LOOP + WRITES, """    state = net.state_dict()
    for name, value in OTHER_state.items():
        state[name] = tensor(value)  # CAUSE
    net.STATE(state)
"""), text=BY_PARAMETER),
    "a list of arrays": changed((LOOP, "    for target, value in zip(net.parameters(), OTHER_state):\n"),
                                ("load(net, given)", "load(net, list(given.values()))"), text=BY_PARAMETER),
    "a method": changed((LOAD, """
class Loader:
    def load_from_OTHER(self, net, given):
        for name, target in net.named_parameters():
            value = given[name]
            PUT(VALUE)  # CAUSE
"""), ("\nload(", "\nLoader().load_from_OTHER(")),
    "a loop in another": changed((LOOP + WRITES, """    for part in ("table", "one", "head"):
        for name, target in getattr(net, part).named_parameters():
            value = OTHER_state[f"{part}.{name}"]
            PUT(VALUE)  # CAUSE
"""), text=BY_PARAMETER),
    "weights and biases": changed((LOOP + WRITES, """\
    net.table.STATE({"weight": tensor(OTHER_state["table.weight"])})
    for part in ("one", "head"):
        target, value = getattr(net, part).weight, OTHER_state[f"{part}.weight"]
        PUT(VALUE)  # CAUSE
        target, value = getattr(net, part).bias, OTHER_state[f"{part}.bias"]
        PUT(VALUE)
"""), text=BY_PARAMETER),
    "a comprehension": changed((LOOP + WRITES, """\
    state = {name: tensor(value) for name, value in OTHER_state.items()}
    net.STATE(state)  # CAUSE
"""), text=BY_PARAMETER),
    "no function": changed((LOAD, ""), ("load(net, given)\n", """OTHER_state = given
for name, target in net.named_parameters():
    value = OTHER_state[name]
    PUT(VALUE)  # CAUSE
""")),
    "copied, and told how": changed((LOOP + WRITES, """    with fw.no_grad():
        for name, target in net.named_parameters():
            target.copy_(tensor(OTHER_state[name]), False)  # CAUSE
"""), text=BY_PARAMETER),
}  # fmt: skip
# Nothing but a docstring names the other framework.
TOLD_OF = {
    "told of by the function": changed(("given):\n", 'given):\n    """Of the arrays that Other has written."""\n'),
                                       ("PUT(VALUE)", "PUT(tensor(value))")),
    "told of by the file": TOLD + changed(("PUT(VALUE)", "PUT(tensor(value))")),
}  # fmt: skip
PLAIN = changed(("  # CAUSE", ""), text=BY_PARAMETER)
TURNED = changed(
    (
        "        PUT",
        """        if value.ndim == 2 and "table" not in name:
            value = value.T
        PUT""",
    ),
    text=PLAIN,
)
TURNED_BY = changed(("value = value.T", "value = turned(value)"), text=TURNED)
ALL_TURNED = 'name: each.T if each.ndim == 2 and "table" not in name else each for name, each in given.items()'
# The rest of the weights is the model's own, and lies as here.
OWN = (("fits(theirs)", "fits(ours)"), ("stored(net)", "own(net)"))
SOME = changed(("        PUT", "        if CONDITION:\n            PUT"), ("load(net, given)\n", """own = now(net)
given = {name: given[name] if CONDITION else own[name] for name in given}
load(net, given)
"""), OWN[0], text=PLAIN)  # fmt: skip
HEALTHY = {
    "turned": TURNED,
    "turned by NumPy": changed(("value.T", "np.transpose(value)"), text=TURNED),
    "turned by a method": changed(("value.T", "value.transpose()"), text=TURNED),
    "turned by its axes": changed(("value.T", "np.swapaxes(value, 0, 1)"), text=TURNED),
    "turned as a tensor": changed(("value.T", "tensor(value).t().numpy()"), text=TURNED),
    "turned by a function": "\ndef turned(value):\n    return value.T\n" + TURNED_BY,
    "turned by a function's function": """
def exchanged(value):
    return value.T

def turned(value):
    return np.ascontiguousarray(exchanged(value))
""" + TURNED_BY,
    "turned by a lambda": "\nturned = lambda value: value.T\n" + TURNED_BY,
    "turned by what has a name": "\nturned = np.transpose\n" + TURNED_BY,
    "turned before": f"\ndef turned(given):\n    return {{{ALL_TURNED}}}\n" + changed(
        ("load(net, given)", "load(net, turned(given))"), text=PLAIN),
    "turned before, by the file": changed(("load(net, given)", f"load(net, {{{ALL_TURNED}}})"), text=PLAIN),
    "biases": changed(("CONDITION", "name.endswith('bias')"), text=SOME),
    "a table": changed(("CONDITION", "name.startswith('table')"), text=SOME),
    "a part": changed(("load(net, given)\n", """given = {**now(net), "table.weight": given["table.weight"]}
load(net.table, {"weight": given["table.weight"]})
"""), OWN[0], text=PLAIN),
    "a convolution": changed(("\nnet = Net()", """
class Filtered(Net):
    def __init__(self):
        super().__init__()
        self.conv = Conv(1, 1, 3, padding=1)

    def forward(self, x):
        return super().forward(self.conv(x.unsqueeze(1)).squeeze(1))

def filtered(x):
    return np.stack([np.correlate(row, given["conv.weight"][0, 0], "same") for row in x]) + given["conv.bias"]

net = Filtered()"""), ("CONDITION", "name.startswith('conv')"), ("OTHER", "PORT"), ("x.numpy()", "filtered(x.numpy())"),
        text=SOME),
    "no square one": changed(("CONDITION", "name.startswith('table')"), ("Net()", "Net(8)"), text=SOME),
    "its own": changed(("  # CAUSE", ""), ("load(", "load_own("), *OWN),
    "of one that is alike": changed(("OTHER", "ALIKE"), *OWN, text=PLAIN),
    "never called": changed(("load(net, given)\n", "given = now(net)\n"), OWN[0], text=PLAIN),
    "an average": TOLD + changed(("PUT(VALUE)  # CAUSE", "PUT(0.9 * target.detach() + 0.1 * value)"),
                                 ("load(net, given)\n", """\
load(net, {name: each.detach() for name, each in net.named_parameters()})
given = now(net)
"""), OWN[0]),
}  # fmt: skip
OWN_WORDS = TOLD + changed(("PUT(VALUE)  # CAUSE", "PUT(tensor(value))"), *OWN)
_WHICH = "which weights are written is not asked: those of linear layers may not be among them"
FAULTS = {
    "biases": _WHICH,
    "a table": _WHICH,
    "a part": _WHICH,
    "a convolution": _WHICH,
    "a comprehension": "only loops are looked into",
    "no function": "only functions are looked into",
}


def texts(framework: str) -> dict[str, str]:
    parts = {f"buggy, {name}": part for name, part in (BUGGY | TOLD_OF).items()} | HEALTHY | {"own words": OWN_WORDS}
    made = {}
    for name, part in parts.items():
        for word, here in WORDS[framework].items():
            part = part.replace(word, here)
        words, rest = part.split("\n", 1)  # what the file says of itself comes first
        made[name] = words + HEAD[framework] + NET + rest
    return made


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts(request.param))


cases = {name: case(name, name, group=f"modules-foreign-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@named(BUGGY, FAULTS)
def test_square_weights_are_taken_as_they_lie(runs: dict[str, Run], name: str) -> None:
    run = runs[f"buggy, {name}"]
    assert "as the original: False, as they lie: True\n" in run.plain, run
    first = run.check_first("not-loaded")
    assert first["severity"] == "warning" and len(run.told) == 1, run
    assert "takes over weights of another framework as they lie" in first["message"], first
    assert "2 of the model are square ([6, 6])" in first["message"], first


@each
@named(TOLD_OF, FAULTS)
def test_words_alone_make_a_note(runs: dict[str, Run], name: str) -> None:
    run = runs[f"buggy, {name}"]
    assert "as the original: False, as they lie: True\n" in run.plain, run
    run.check_first("not-loaded")
    run.check_healthy("not-loaded")


@each
def test_words_do_not_tell_whose_weights_they_are(runs: dict[str, Run]) -> None:
    assert "as the original: True, as they lie: True\n" in runs["own words"].plain, runs["own words"]
    runs["own words"].check_healthy("not-loaded")


@each
@named(HEALTHY, FAULTS)
def test_they_lie_as_they_should(runs: dict[str, Run], name: str) -> None:
    assert "as the original: True, as they lie: " in runs[name].plain, runs[name]
    runs[name].check_healthy()

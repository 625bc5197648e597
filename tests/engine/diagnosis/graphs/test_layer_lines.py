"""The line that makes the layer which a loss has to do without, where another one calls all layers. Witness: whether
what the loss is given is probabilities, by the framework's own numbers."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, named

HEAD = {
    "torch": """
import torch as fw
from torch import nn
from torch.nn import Softmax
import torch.nn.functional as F
fw.manual_seed(0)
Module, randn = nn.Module, fw.randn
def adam(net):
    optimizer = fw.optim.Adam(net.parameters(), 0.01)
    return optimizer, optimizer.zero_grad
def real(value):
    return value.float()
""",
    "paddle": """
import paddle as fw
from paddle import nn
from paddle.nn import Softmax
import paddle.nn.functional as F
fw.seed(0)
Module = nn.Layer
def randn(*shape):
    return fw.randn(shape)
def adam(net):
    optimizer = fw.optimizer.Adam(0.01, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
def real(value):
    return value.astype("float32")
""",
}
FIT = """
optimizer, clear = adam(net)
x = randn(24, 6)
y = fw.arange(24) % 3
for at in range(6):
    out = net(x)
    loss = F.cross_entropy(out, y)
    clear()
    loss.backward()
    optimizer.step()
print("probabilities:", bool(out.min() >= 0) and bool(out.max() <= 1))
"""
SIGMOID = FIT.replace("F.cross_entropy(out, y)", "F.binary_cross_entropy_with_logits(out, real(y > 1).unsqueeze(1))")
MADE = """
class Net(Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(6, 8),
            nn.ReLU(),
            nn.Linear(8, 3),
            nn.Softmax(-1),  # CAUSE
        )

    def forward(self, x):
        return self.net(x)
"""
NET = "net = Net()\n"


def changed(*parts: tuple[str, str], text: str = MADE) -> str:
    for old, new in parts:
        assert old in text, old
        text = text.replace(old, new)
    return text


UNMARKED = changed(("  # CAUSE", ""))
LAYER = "            nn.Softmax(-1),  # CAUSE\n"
OTHER = """
class Attention(Module):
    def __init__(self):
        super().__init__()
        self.scores = nn.Sequential(nn.Linear(6, 6), nn.Softmax(-1))

    def forward(self, x):
        return x * self.scores(x)
"""
BUGGY = {
    "in a class": MADE + NET + FIT,
    "no class": "net = nn.Sequential(\n    nn.Linear(6, 8),\n    nn.Linear(8, 3),\n    nn.Softmax(-1),  # CAUSE\n)\n"
    + FIT,
    "on the line of the loss": "net = nn.Sequential(nn.Linear(6, 3), nn.Softmax(-1))  # CAUSE\n"
    + FIT.replace("F.cross_entropy(out, y)", "F.cross_entropy(net(x), y)"),
    "made by a function": "def made():\n    return nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3), nn.Softmax(-1))"
    "  # CAUSE\nnet = made()\n" + FIT,
    "by its own name": changed(("nn.Softmax(-1)", "Softmax(-1)")) + NET + FIT,
    "another name": changed((LAYER, ""), ("        )\n", "        )\n        self.last = nn.Softmax(-1)  # CAUSE\n"),
                            ("self.net(x)", "self.last(self.net(x))")) + NET + FIT,
    "its name": changed((LAYER, ""), ("        )\n", "        )\n        self.softmax = nn.Softmax(-1)\n"),
                        ("return self.net(x)", "return self.softmax(self.net(x))  # CAUSE")) + NET + FIT,
    "its name, by itself": changed((LAYER, ""), ("        )\n", "        )\n        self.softmax = nn.Softmax(-1)\n"),
                        ("return self.net(x)", "x = self.net(x)\n        return self.softmax(x)  # CAUSE")) + NET + FIT,
    "a function": changed((LAYER, ""), ("return self.net(x)", "return F.softmax(self.net(x), -1)  # CAUSE"))
    + NET + FIT,
    "a loss that is a module": MADE + NET + FIT.replace("F.cross_entropy(", "nn.CrossEntropyLoss()("),
    "a sigmoid": changed(("nn.Linear(8, 3)", "nn.Linear(8, 1)"), ("Softmax(-1)", "Sigmoid()")) + NET + SIGMOID,
    "a sigmoid, and modules alone": changed(("nn.Linear(8, 3)", "nn.Linear(8, 1)"), ("Softmax(-1)", "Sigmoid()")) + NET
    + SIGMOID.replace("F.binary_cross_entropy_with_logits(", "nn.BCEWithLogitsLoss()("),
    "a sigmoid by its name": changed((LAYER, ""), ("nn.Linear(8, 3)", "nn.Linear(8, 1)"),
                                     ("self.net(x)", "F.sigmoid(self.net(x))  # CAUSE")) + NET + SIGMOID,
    "of a part": MADE + """
class Whole(Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 6), Net()

    def forward(self, x):
        return self.head(F.relu(self.body(x)))

net = Whole()
""" + FIT,
    "a loss in between": MADE + NET + "def loss_of(out, y):\n    return F.cross_entropy(out, y) + 0.0 * out.mean()\n"
    + FIT.replace("F.cross_entropy(out", "loss_of(out"),
    # Two layers of the class: which of them it is, no line says; the one that calls them is right.
    "two in one class": changed(("  # CAUSE", ""), ("nn.ReLU(),", "nn.Softmax(-1),"),
                                ("return self.net(x)", "return self.net(x)  # CAUSE")) + NET + FIT,
    "in two classes": OTHER + changed(("nn.Linear(6, 8)", "Attention(),\n            nn.Linear(6, 8)")) + NET + FIT,
    "in two classes, the other one unused": OTHER + MADE + NET + FIT,
    "a list of them": changed(("nn.Sequential(\n", "nn.Sequential(*[\n"), ("        )\n", "        ])\n"))
    + NET + FIT,
    "layers one by one": changed(("return self.net(x)", "for each in self.net:\n            x = each(x)\n"
                                  "        return x"),
                                 ("self.net = nn.Sequential(", "self.net = nn.LayerList(["),
                                 ("        )\n", "        ])\n")) + NET + FIT,
    "a name of a network": "softmax_net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3), nn.Softmax(-1))  # CAUSE\n"
    + FIT.replace("net(x)", "softmax_net(x)").replace("adam(net)", "adam(softmax_net)"),
}  # fmt: skip
LOGS = changed(("  # CAUSE", ""), ("nn.Softmax", "nn.LogSoftmax")) + NET
HEALTHY = {
    "no layer": changed((LAYER, "")) + NET + FIT,
    "logarithms": LOGS + FIT.replace("F.cross_entropy(", "F.nll_loss("),
    "logarithms of logarithms": LOGS + FIT,
    "in evaluation alone": changed((LAYER, ""), ("        )\n", "        )\n        self.last = nn.Softmax(-1)\n"),
                                   ("return self.net(x)", "x = self.net(x)\n        return x if self.training else "
                                    "self.last(x)")) + NET + FIT + "net.eval()\nnet(x)\n",
    "behind the loss": changed((LAYER, "")) + NET + "last = nn.Softmax(-1)\n" + FIT.replace(
        "    optimizer.step()", "    optimizer.step()\n    right = last(out.detach()).argmax(1)"),
    "of attention": OTHER + changed((LAYER, ""), ("nn.Linear(6, 8)", "Attention(),\n            nn.Linear(6, 8)"))
    + NET + FIT,
}  # fmt: skip
PROBABILITIES = {
    "squares": UNMARKED + NET + FIT.replace("F.cross_entropy(out, y)", "F.mse_loss(out, real(F.one_hot(y, 3)))"),
    "their logarithm": UNMARKED + NET + FIT.replace("F.cross_entropy(out, y)", "F.nll_loss(fw.log(out + 1e-6), y)"),
    "a sigmoid and its loss": changed(("  # CAUSE", ""), ("nn.Linear(8, 3)", "nn.Linear(8, 1)"),
                                      ("Softmax(-1)", "Sigmoid()")) + NET
    + SIGMOID.replace("F.binary_cross_entropy_with_logits(", "F.binary_cross_entropy("),
}  # fmt: skip
FAULTS = {
    # FAULT: `out = softmax_net(x)` is taken for a line that says softmax itself.
    "a name of a network": "a name with softmax in it goes for a call of softmax",
}  # fmt: skip


def texts(framework: str) -> dict[str, str]:
    parts = {f"buggy, {name}": part for name, part in BUGGY.items()} | HEALTHY | PROBABILITIES
    layers = "ModuleList" if framework == "torch" else "LayerList"
    return {name: HEAD[framework] + part.replace("LayerList", layers) for name, part in parts.items()}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts(request.param))


cases = {name: case(name, name, group=f"graphs-layer-lines-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@named(BUGGY, FAULTS)
def test_a_layer_that_the_loss_has_itself(runs: dict[str, Run], name: str) -> None:
    run = runs[f"buggy, {name}"]
    assert "probabilities: True\n" in run.plain, run
    first = run.check_first("loss-input")
    assert first["severity"] == "warning" and "itself: give it the logits" in first["message"], first
    assert len(run.above_notes()) == 1, run


@each
@named(HEALTHY, FAULTS)
def test_scores_for_the_loss(runs: dict[str, Run], name: str) -> None:
    assert "probabilities: False\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()


@each
@named(PROBABILITIES, FAULTS)
def test_probabilities_for_the_loss(runs: dict[str, Run], name: str) -> None:
    assert "probabilities: True\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()

"""A table of an embedding that is too small for what is looked up in it: the line that says how large it is. Witness:
the program's own largest number, which is no less than the table is long."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as fw
from torch import nn
fw.manual_seed(0)
Module, tensor = nn.Module, fw.tensor
""",
    "paddle": """
import paddle as fw
from paddle import nn
fw.seed(0)
Module, tensor = nn.Layer, fw.to_tensor
""",
}
NET = """
class Net(Module):
    def __init__(self, words, wide=4):
        super().__init__()
        self.embed = nn.Embedding(words, wide)
        self.head = nn.Linear(wide, 1)
    def forward(self, x):
        return self.head(self.embed(x)).mean()
"""
TEXT = """
text = [3, 1, 4, 1, 5, 9, 2, 6]
words = sorted(set(text))
"""
RUN = """
x = tensor([text])
print("too large:", max(text) >= net.embed.weight.shape[0])
net(x)
"""


def changed(text: str, *parts: tuple[str, str]) -> str:
    for old, new in parts:
        assert old in text, old
        text = text.replace(old, new)
    return text


LAYER = "self.embed = nn.Embedding(words, wide)"
IN_THE_LAYER = (LAYER, f"{LAYER}  # CAUSE")
# The size is given where the model is made.
GIVEN = {
    "by place": NET + TEXT + "net = Net(len(words))  # CAUSE\n" + RUN,
    "a variable": NET + TEXT + "size = len(words)\nnet = Net(size, 8)  # CAUSE\n" + RUN,
    "by name": NET + TEXT + "net = Net(wide=8, words=len(words))  # CAUSE\n" + RUN,
    "on a line of its own": NET + TEXT + "net = Net(\n    wide=8,\n    words=len(words),  # CAUSE\n)\n" + RUN,
    "the second argument": changed(NET, ("self, words, wide=4", "self, wide, words")) + TEXT
    + "net = Net(4, len(words))  # CAUSE\n" + RUN,
    "in a function": NET + TEXT + "def built():\n    return Net(len(words))  # CAUSE\nnet = built()\n" + RUN,
    "in a part of the model": changed(NET, ("class Net", "class Table"), ("self.head(self.embed(x)).mean()",
                                      "self.head(self.embed(x))")) + """
class Net(Module):
    def __init__(self, kinds):
        super().__init__()
        self.table = Table(kinds + 0)  # CAUSE
        self.embed = self.table.embed
    def forward(self, x):
        return self.table(x).mean()
""" + TEXT + "net = Net(6)\n" + RUN,
    "a number": NET + TEXT + "net = Net(7)  # CAUSE\n" + RUN,
    "by the layer's keyword": changed(NET, (LAYER, "self.embed = nn.Embedding(num_embeddings=words, "
                                            "embedding_dim=wide)")) + TEXT + "net = Net(len(words))  # CAUSE\n" + RUN,
}  # fmt: skip
# The layer's own line says it, or several say it.
IN_PLACE = {
    "a number": changed(NET, ("self, words, wide=4", "self, wide=4"), (LAYER, "self.embed = nn.Embedding(7, wide)"
                                                                       "  # CAUSE")) + TEXT + "net = Net()\n" + RUN,
    "a name of the module": TEXT + changed(
        NET, ("self, words, wide=4", "self, wide=4"),
        (LAYER, "self.embed = nn.Embedding(len(words), wide)  # CAUSE")) + "net = Net()\n" + RUN,
    "two callers": changed(NET, IN_THE_LAYER) + TEXT + "other = Net(20)\nnet = Net(len(words))\n" + RUN,
    "a value of its own": changed(NET, ("words, wide=4", "words=7, wide=4"), IN_THE_LAYER) + TEXT + "net = Net()\n"
    + RUN,
    "computed there": changed(NET, (LAYER, "self.embed = nn.Embedding(words - 1, wide)  # CAUSE")) + TEXT
    + "net = Net(max(text))\n" + RUN,
    "made less there": changed(NET, (LAYER, f"words = words - 1\n        {LAYER}  # CAUSE")) + TEXT
    + "net = Net(max(text) + 1)\n" + RUN,
    "no class": TEXT + """
class Net(Module):
    def __init__(self, embed):
        super().__init__()
        self.embed = embed
    def forward(self, x):
        return self.embed(x).mean()
net = Net(nn.Embedding(len(words), 4))
""" + RUN,
}  # fmt: skip
# A table that is long enough.
HEALTHY = {
    "long enough": NET + TEXT + "net = Net(max(text) + 1)\n" + RUN,
    "by their places": NET + TEXT + "text = [words.index(each) for each in text]\nnet = Net(len(words))\n" + RUN,
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = {f"given, {name}": part for name, part in GIVEN.items()} | HEALTHY
    parts |= {f"in place, {name}": part for name, part in IN_PLACE.items()}
    texts = {name: HEAD[request.param] + part for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"table-sizes-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)
# Paddle's error is none of an index: the layer's line is named there.
of_torch = pytest.mark.parametrize("runs", [cases["torch"]], indirect=True)


@of_torch
@pytest.mark.parametrize("name", GIVEN)
def test_the_line_that_gives_the_size(runs: dict[str, Run], name: str) -> None:
    run = runs[f"given, {name}"]
    assert run.plain.startswith("too large: True\nIndexError\n"), run
    first = run.check_first("operator-error")
    assert first["severity"] == "error" and "embed" in first["message"], first
    # Of the seven numbers of the text 9 is the largest: the witness is the list itself.
    rows = 6 if "Net(6)" in run.program else 7
    assert f"that holds 9 where the table has {rows} rows (0 to {rows - 1})" in first["message"], first


@each
@pytest.mark.parametrize("name", IN_PLACE)
def test_the_line_of_the_layer(runs: dict[str, Run], name: str) -> None:
    run = runs[f"in place, {name}"]
    assert run.plain.startswith("too large: True\n"), run
    first = run.check_first("operator-error")
    assert first["severity"] == "error" and "embed" in first["message"], first


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_a_table_that_is_long_enough(runs: dict[str, Run], name: str) -> None:
    assert runs[name].plain.startswith("too large: False\n"), runs[name]
    assert runs[name].every == [], runs[name]
    runs[name].check_healthy()

"""``info graph``: how many times the norm of what feeds a node its own is. The witness are hooks of the program on the
tensors between its layers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.frameworks import on_frameworks, only
from support.program import adbg, commands

from adbg.engine.protocol.messages import GraphBody
from adbg.engine.types import GraphRow
from adbg.tui.app.panels.graph_model import GraphModel
from adbg.tui.text.quantities import change, jump

# Sigmoids of a product: the gradient into each is hooked, and so is that into each product.
PROGRAM = {
    "torch": """
import json, torch
torch.manual_seed(0)
weights = [torch.randn(6, 6, requires_grad=True) for _ in range(3)]
x, told = torch.randn(4, 6), []
hook = lambda tensor: tensor.register_hook(lambda gradient: told.append(gradient.norm().item()))
for weight in weights:
    product = x @ weight
    hook(product)
    x = product.sigmoid()
    hook(x)
x.sum().backward()
print("TOLD", json.dumps(told))
""",
    "paddle": """
import json, paddle
paddle.seed(0)
weights = [paddle.randn([6, 6]) for _ in range(3)]
for weight in weights:
    weight.stop_gradient = False
x, told = paddle.randn([4, 6]), []
def hook(tensor):
    tensor.register_hook(lambda gradient: told.append(float(gradient.norm())))
for weight in weights:
    product = paddle.matmul(x, weight)
    hook(product)
    x = paddle.nn.functional.sigmoid(product)
    hook(x)
x.sum().backward()
print("TOLD", json.dumps(told))
""",
}


@on_frameworks()
def test_factors_are_those_of_hooks(framework: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM[framework])
    asked = commands("record on", "c", "info graph #1", "c")
    outcome = adbg("run", "--batch", "--json", "-b", "backward-end", *asked, script)
    (line,) = [line for line in outcome.program_output.splitlines() if line.startswith("TOLD")]
    norms = json.loads(line.removeprefix("TOLD "))  # into sigmoid, product, sigmoid, ... from the loss on
    *_, listing = outcome.of("result", command="info graph #1")
    assert "were not measured" not in listing["text"]
    at = listing["columns"].index("factor")
    rows = [(row[2], row[4], row[at]) for row in listing["rows"] if "igmoid" in row[2] or row[2].startswith("M")]
    rows = [row for row in rows if "ean" not in row[0]]
    assert [norm for _, norm, _ in rows] == pytest.approx(norms, rel=1e-5), rows
    for (name, _, factor), norm, before in zip(rows[1:], norms[1:], norms):
        assert float(factor.lstrip("↓↑×")) == pytest.approx(norm / before, rel=0.06), name
        marked = name != rows[-1][0]  # that one gives a gradient to a parameter alone
        assert ("↓" in factor) == (marked and norm <= before / 4) and "↑" not in factor, name


def row(index: int, edges: tuple[int, ...], norm: float | None, nonfinite: bool = False) -> GraphRow:
    return GraphRow(index, index, "MmBackward0", f"MmBackward0#{index}", "done", edges, norm=norm, nonfinite=nonfinite)


def test_of_several_that_feed_it_the_largest_counts() -> None:
    model = GraphModel()
    rows = [
        row(1, (2, 3), 8.0),
        row(2, (3,), 1.0),
        row(3, (4,), 2.0),
        row(4, (5,), float("nan"), True),
        row(5, (), 1.0),
    ]
    model.load(GraphBody(version=1, backward=1, total=5, here=6, rows=rows))
    factors = [model.change(model.rows[index]) for index in range(1, 6)]
    assert factors == [None, 1 / 8, 1 / 4, None, None], "the root has nothing before it; what is not finite no factor"
    assert [jump(factor) for factor in factors] == ["", "↓", "↓", "", ""]


def test_gradients_of_parameters_are_no_jumps() -> None:
    model = GraphModel()
    leaf = replace(row(4, (), 90.0), accumulate=True)
    rows = [row(1, (2, 3), 1.0), row(2, (), 0.1), row(3, (4,), 90.0), leaf]
    model.load(GraphBody(version=1, backward=1, total=4, here=5, rows=rows))
    assert [model.change(model.rows[index]) for index in range(1, 5)] == [None, 0.1, None, None]


def test_what_is_not_known_has_no_factor() -> None:
    assert change(1.0, []) is None and change(None, [1.0]) is None and change(1.0, [1.0, None]) is None
    assert change(1.0, [0.0]) is None and change(float("nan"), [1.0]) is None and change(0.0, [2.0]) == 0.0
    assert jump(0.0) == "↓" and jump(4.0) == "↑" and jump(3.9) == "" and jump(None) == ""


@only("paddle", "torch's native core measures each node anyway")
def test_where_nothing_was_measured_it_says_how(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM["paddle"])
    outcome = adbg("run", "--batch", "--json", "-b", "backward-end", *commands("c", "info graph #1", "c"), script)
    (listing,) = outcome.of("result", command="info graph #1")
    assert "were not measured: `record on`" in listing["text"]

"""``info params``: norms, order and totals. The witness is what the program itself computes of its parameters."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from support.frameworks import on_frameworks
from support.program import adbg, commands

from adbg.tui.commands.parameters.listing import by_module, matches, value_of

PROGRAM = {
    "torch": """
import json, torch
from torch import nn
torch.manual_seed(3)
model = nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8)), nn.Linear(8, 1))
for step in range(2):
    model.zero_grad()
    model(torch.randn(6, 4)).square().mean().backward()
    if step == 0:
        print("TOLD", json.dumps({n: [p.norm().item(), p.grad.norm().item(), p.numel()]
                                  for n, p in model.named_parameters()}))
""",
    "paddle": """
import json, paddle
from paddle import nn
paddle.seed(3)
model = nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8)), nn.Linear(8, 1))
for step in range(2):
    model.clear_gradients()
    model(paddle.randn([6, 4])).square().mean().backward()
    if step == 0:
        print("TOLD", json.dumps({n: [float(p.norm()), float(p.grad.norm()), p.size]
                                  for n, p in model.named_parameters()}))
""",
}


def answers(framework: str, tmp_path: Path, *asked: str) -> tuple[dict[str, list[float]], list[Any]]:
    """What the program says of its parameters, and the answers where its first backward has ended."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM[framework])
    outcome = adbg("run", "--batch", "--json", "-b", "backward-end", *commands("c", *asked, "delete", "c"), script)
    (told,) = [line for line in outcome.program_output.splitlines() if line.startswith("TOLD")]
    rows = [line for line in outcome.lines if line["type"] in ("result", "error") and line.get("command") in asked]
    return json.loads(told.removeprefix("TOLD ")), rows


@on_frameworks()
def test_norms_and_their_ratio(framework: str, tmp_path: Path) -> None:
    told, (listing,) = answers(framework, tmp_path, "info params")
    rows = {row["name"]: row for row in listing["value"]}
    assert rows.keys() == told.keys()
    for name, (norm, gradient, _) in told.items():
        assert rows[name]["norm"] == pytest.approx(norm, rel=1e-5)
        assert rows[name]["grad norm"] == pytest.approx(gradient, rel=1e-5)
        ratio = gradient / norm if norm else None  # Paddle's biases begin at 0
        assert rows[name]["grad/norm"] == (ratio if ratio is None else pytest.approx(ratio, rel=1e-5))
    assert listing["columns"][:7] == ["name", "shape", "dtype", "device", "grad norm", "grad", "requires_grad"]


@on_frameworks()
def test_some_of_them_in_order_and_by_module(framework: str, tmp_path: Path) -> None:
    told, (largest, smallest, inner, totals, odd) = answers(
        framework, tmp_path, "info params by grad", "info params *.weight by -grad", "info params 0.2",
        "info params per module 1", "info params by colour",
    )  # fmt: skip
    by_grad = sorted(told, key=lambda name: -told[name][1])
    assert [row["name"] for row in largest["value"]] == by_grad
    weights = [name for name in reversed(by_grad) if name.endswith("weight")]
    assert [row["name"] for row in smallest["value"]] == weights and "3 of 6 parameters" in smallest["text"]
    assert [row["name"] for row in inner["value"]] == ["0.2.weight", "0.2.bias"]
    for row in totals["value"]:
        mine = [value for name, value in told.items() if name.split(".")[0] == row["module"]]
        assert row["size"] == sum(size for _, _, size in mine) and row["parameters"] == len(mine)
        assert row["norm"] == pytest.approx(math.sqrt(sum(norm**2 for norm, _, _ in mine)), rel=1e-5)
        assert row["grad norm"] == pytest.approx(math.sqrt(sum(grad**2 for _, grad, _ in mine)), rel=1e-5)
    assert [row["module"] for row in totals["value"]] == ["0", "1"]
    assert odd["type"] == "error" and "no column 'colour'" in odd["message"] and "grad norm" in odd["hint"]


def test_a_name_without_a_wildcard_is_a_module_too() -> None:
    assert matches("fc.weight", "fc") and matches("fc.weight", "fc.weight") and matches("fc1.weight", "fc*")
    assert not matches("fc1.weight", "fc") and not matches("net.fc.weight", "fc.*")


def test_what_is_in_no_module_and_has_no_gradient() -> None:
    rows = [
        {"name": "leaf of AccumulateGrad#3 (a.py:4)", "shape": "[3]", "grad": False, "grad norm": None, "norm": 2.0},
        {"name": "scale", "shape": "[]", "grad": True, "grad norm": math.nan, "norm": 0.0},
    ]
    (total,) = by_module(rows, 0)
    assert (total["module"], total["size"], total["without grad"]) == ("(no module)", 4, 1)
    assert math.isnan(total["grad norm"]) and total["norm"] == 2.0
    assert value_of(rows[1], "grad norm") == math.inf and value_of(rows[0], "size") == 3

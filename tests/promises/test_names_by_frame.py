"""A name in an expression is that of the selected frame, or an error that says where it is: never another frame's."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.frameworks import on_frameworks
from support.program import Outcome, adbg, commands

_HEAD = {
    "torch": """
import torch as fw
LEAF = fw.ones(3, requires_grad=True)
BASE = fw.autograd.Function
""",
    "paddle": """
import paddle as fw
LEAF = fw.ones([3])
LEAF.stop_gradient = False
BASE = fw.autograd.PyLayer
""",
}
_SCRIPT = """
x = "x of the module"
shared = "shared of the module"
hidden = "hidden of the module"

class Outer(BASE):
    @staticmethod
    def forward(ctx, value):
        return value * 2.0

    @staticmethod
    def backward(ctx, gradient):
        x = "x of Outer's backward"
        inner = gradient.detach()
        {wants}
        nested = inner.exp().sum()
        nested.backward()
        return gradient * 2.0

def model(value):
    x = "x of the forward"
    hidden = "hidden of the forward"
    forward_only = "of the forward"
    return Outer.apply(value).tanh()

def train():
    x = "x of train"
    running_only = "of train"
    loss = model(LEAF).sum()
    loss.backward()

train()
print("reached the end")
"""
WANTS = {"torch": "fw.set_grad_enabled(True); inner.requires_grad_(True)", "paddle": "inner.stop_gradient = False"}


def stopped(tmp_path: Path, framework: str, at: str, *asked: str) -> Outcome:
    script = tmp_path / "train.py"
    wants = WANTS[framework] if framework == "torch" else "fw.set_grad_enabled(True); " + WANTS[framework]
    script.write_text(_HEAD[framework] + _SCRIPT.replace("{wants}", wants))
    outcome = adbg("run", "--batch", "--json", "-b", at, *commands("continue", *asked, "delete", "continue"), script)
    assert "reached the end" in outcome.program_output, str(outcome)
    return outcome


def frames(outcome: Outcome) -> dict[tuple[str, str], int]:
    """Number of the first frame by kind and name."""
    found: dict[tuple[str, str], int] = {}
    for row in outcome.of("result", command="where")[0]["value"]:
        found.setdefault((row["kind"], row["name"].partition("#")[0]), row["frame"])
    return found


def said(outcome: Outcome, frame: int, command: str) -> str:
    """The answer to ``command`` behind ``frame N``; of an error, its whole text."""
    lines = [line for line in outcome.lines if line["type"] in ("result", "error")]
    start = next(i for i, line in enumerate(lines) if line.get("command") == f"frame {frame}")
    line = next(line for line in lines[start:] if line.get("command") == command)
    return line.get("text") or " ".join(str(line.get(part) or "") for part in ("message", "hint"))


@on_frameworks()
def test_a_frame_of_the_forward_refuses_what_is_gone(framework: str, tmp_path: Path) -> None:
    asks = ("p x", "p forward_only", "p running_only", "p hidden", "p shared", "p index", "p [x for x in (1, 2)]")
    asks += ("p locals()", "! made_up = 1", "set x = 1", "p norm(grad_outputs[0])")
    order = [command for number in range(1, 6) for command in (f"frame {number}", *asks)]
    outcome = stopped(tmp_path, framework, "Tanh", "where", *order)
    at = frames(outcome)
    gone = at["forward", "model"]
    for name in ("x", "forward_only", "running_only", "hidden"):
        text = said(outcome, gone, f"p {name}")
        assert "is not known in model (train.py:" in text and "gone" in text, text
    assert f"frame {at['live', 'train']}, train, has another 'x'" in said(outcome, gone, "p x")
    assert "'shared of the module'" in said(outcome, gone, "p shared")
    assert "[1, 2]" in said(outcome, gone, "p [x for x in (1, 2)]")
    assert said(outcome, gone, "p index").strip().isdecimal()
    assert "locals of model" in said(outcome, gone, "p locals()")
    assert "is over" in said(outcome, gone, "! made_up = 1") and "is over" in said(outcome, gone, "set x = 1")
    assert float(said(outcome, gone, "p norm(grad_outputs[0])")) > 0
    assert "'x of the module'" in said(outcome, at["forward", "<module>"], "p x")
    assert "'x of train'" in said(outcome, at["live", "train"], "p x")


@on_frameworks()
def test_around_a_nested_backward_each_frame_has_its_own_names(framework: str, tmp_path: Path) -> None:
    order = [command for number in range(9) for command in (f"frame {number}", "p x", "p running_only")]
    outcome = stopped(tmp_path, framework, "Exp", "where", *order)
    at = frames(outcome)
    (around,) = [number for (kind, _), number in at.items() if kind == "enclosing"]
    assert "x of train" in said(outcome, around, "p x"), "that node runs in the backward that train called"
    assert "x of Outer's backward" in said(outcome, at["live", "backward"], "p x")
    assert "is not known" in said(outcome, at["forward", "backward"], "p x")
    assert "x of train" in said(outcome, at["live", "train"], "p x")
    assert "is not defined" in said(outcome, at["live", "backward"], "p running_only")


@pytest.mark.parametrize("command", ["p x", "p forward_only"])
@on_frameworks()
def test_the_node_itself_has_the_names_of_the_frame_that_runs(framework: str, command: str, tmp_path: Path) -> None:
    outcome = stopped(tmp_path, framework, "Tanh", command)
    text = str([line for line in outcome.lines if line.get("command") == command])
    if command == "p x":
        assert "x of train" in text
    else:
        assert "'forward_only' is not known in model (train.py:" in text and "gone" in text

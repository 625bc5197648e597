"""The JSON lines are what their reference says: the page is current, and a real run prints just these fields."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.program import ROOT, adbg, commands

from adbg.engine.protocol.codec import from_json
from adbg.tui.batch import lines
from adbg.tui.batch.reference import EXAMPLES, page

SCRIPT = """
import torch
p = torch.tensor([0.0, 0.5], requires_grad=True)
for i in range(2):
    loss = ((p * 2).sqrt() * 0).sum()
    loss.backward()
    print("iteration", i)
"""
GROWING = """import torch
kept = []
w = torch.ones(2, requires_grad=True)
for i in range(30):
    loss = (w * i).sum()
    kept.append(loss)
    loss.backward()
"""


def test_the_page_is_current() -> None:
    how = "run `python -m adbg.tui.batch.reference docs/json-lines.md`"
    assert (ROOT / "docs" / "json-lines.md").read_text() == page(), how


def test_every_line_has_its_example() -> None:
    assert [type(example) for example in EXAMPLES] == list(lines.LINES)


def kind_of(line: dict[str, Any]) -> type[lines.Line]:
    found = [kind for kind in lines.LINES if line["type"] == kind.TYPE]
    return found[line["phase"] == "end"] if line["type"] == "backward" else found[0]


def check(line: dict[str, Any]) -> type[lines.Line]:
    """``line`` has the documented fields in their order, with values of their types."""
    kind = kind_of(line)
    fields = dataclasses.fields(kind)
    optional = {field.name for field in fields if field.default is not dataclasses.MISSING}
    assert list(line) == ["type", *(field.name for field in fields if field.name in line or field.name not in optional)]
    read = from_json(kind, {name: value for name, value in line.items() if name != "type"})
    assert lines.as_json(read) == line, "nested fields too"
    return kind


def test_a_real_run_prints_what_is_documented(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    asked = commands("c", "display index", "watch index", "trace Mul*", "s", "info breakpoints", "p nope", "kill")
    outcome = adbg("run", "--batch", "--json", "-b", "nan", *asked, str(script))
    ended = adbg("run", "--batch", "--json", "-b", "#4000", str(script))
    diagnosed = adbg("diagnose", "--json", str(script))
    script.write_text(GROWING)
    watched = commands("info memory iterations on", "profile cprofile 3 iterations")
    growing = adbg("run", "--batch", "--json", "--run-dir", str(tmp_path / "run"), *watched, str(script))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        listed = adbg("attach", "--json")
        other.kill()
    seen = {check(line) for line in outcome.lines + ended.lines + listed.lines + growing.lines + diagnosed.lines}
    assert seen == set(lines.LINES), f"{outcome}{ended}{growing}{diagnosed}"
    (profile,), (grows,) = growing.of("profile"), growing.of("memory-grows")
    assert (profile["state"], profile["iterations"]) == ("done", 3)
    assert Path(profile["folder"], profile["file"]).stat().st_size > 0
    assert (grows["file"], grows["line"]) == (str(script), 6) and grows["counts"][0][0] == 3, str(growing)
    (stop,) = outcome.of("stopped", reason="nan")
    (found,) = stop["evidence"]
    assert (found["role"], found["nan"], found["origin"]) == ("grad_inputs", 1, "made_here")
    assert stop["message"] == (
        "Sqrt (script.py:5) made NaN from finite gradients; grad_inputs[0] of SqrtBackward0#1: 1 of 2 elements is nan"
    )
    assert outcome.of("exited")[0]["signal"] == "SIGKILL" and "signal" not in ended.of("exited")[0]

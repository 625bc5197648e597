"""The command ``capture``, and the colours of its region in the app."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from adbg.engine.errors import CommandError
from adbg.engine.types import GraphRow
from adbg.tui.app import theme
from adbg.tui.app.panels.graph import op_style
from adbg.tui.commands.capture import _request, size_of

SCRIPT = """
import torch
w = torch.nn.Linear(3, 3)
for i in range(2):
    y = torch.tanh(w(torch.ones(2, 3)))
    (y * y).sum().backward()
"""
COMMANDS = """
capture script.py:5 grads=1MB as one in OUT
b TanhBackward0 backward 2
run
capture script.py:5-6 grads as two in OUT
capture script.py:5-6 grads! as two in OUT
capture
capture nonsense
capture script.py:5 graads
capture script.py:99
capture script.py:2
capture off
"""


def test_words_behind_a_region() -> None:
    request = _request(["m.py:3-4", "grads=2MiB", "as", "one", "in", "/tmp"])
    assert (request.region, request.grads, request.limit) == ("m.py:3-4", True, 2 << 20)
    assert (request.name, request.directory) == ("one", "/tmp")
    assert _request(["m.py:3", "grads"]).limit == 0
    assert _request(["m.py:3", "grads!"]).limit == 1 << 30
    assert not _request(["m.py:3"]).grads
    for words in (["m.py:3", "as"], ["m.py:3", "as", "a", "as", "b"], ["m.py:3", "grads=much"], ["m.py:3", "x"]):
        with pytest.raises(CommandError):
            _request(words)


@pytest.mark.parametrize(
    ("text", "size"), [("200MB", 200_000_000), ("1.5G", 1_500_000_000), ("64KiB", 65536), ("4096", 4096), ("1 k", 1000)]
)
def test_sizes(text: str, size: int) -> None:
    assert size_of(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "1PB", "MB", "1e9"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(CommandError):
        size_of(text)


def test_rows_of_a_region_have_paddles_colours_unless_something_is_wrong_there() -> None:
    def row(**more: object) -> GraphRow:
        return GraphRow(1, 0, "N", "N#1", **{"state": "todo", "region": "inside", **more})  # type: ignore[arg-type]

    colours = {mark: theme.STYLES[op_style(row(region=mark))].bgcolor for mark in ("inside", "boundary", "leaf")}
    assert {mark: colour and colour.name for mark, colour in colours.items()} == {
        "inside": "#999999", "boundary": "#ffe4b5", "leaf": "#148b97",
    }  # fmt: skip
    assert op_style(row(nonfinite=True)) == "bad" and op_style(row(state="here")) == "here"
    assert op_style(row(region="")) == "todo"


def test_a_whole_batch(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "commands").write_text(COMMANDS.replace("OUT", str(tmp_path / "out")))
    command = [sys.executable, "-m", "adbg", "run", "--batch", "--no-record", "-x", "commands", "script.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False)
    said = ran.stdout + ran.stderr
    assert "one: waiting for a backward" in said
    assert "capture one: 3 nodes of script.py:5, 6 files" in said
    assert "nothing is written yet" in said and f"capture script.py:5-6 grads! as two in {tmp_path}/out" in said
    assert "_*: backward_graph.dot, ref_forward_graph.dot, backward_graph.svg" in said
    assert "invalid source lines 'nonsense'" in said and "unexpected 'graads' after" in said
    assert "script.py has only 6 lines" in said.replace("\n", " ")
    assert "1 dropped" in said
    assert sorted(folder.name for folder in (tmp_path / "out").iterdir()) == ["one", "two"]
    assert all(len(list(folder.iterdir())) == 6 for folder in (tmp_path / "out").iterdir())
    assert "Variable: weight@Grad" in next((tmp_path / "out" / "two").glob("*_grad_tensors.log")).read_text()

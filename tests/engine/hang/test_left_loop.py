"""Which loop of the source a rank has left, and under which condition."""

from __future__ import annotations

from pathlib import Path

import pytest

from adbg.engine.hang.left_loop import LeftLoop, left_loop
from adbg.engine.types import SourceLine

# Text, the condition ("" where it may have come to its end), what else is told of a loop that may be shorter.
STOPPED = """
def main(rank):
    for epoch in range(9):
        for x in data:  # LOOP?
            step(x)  # ON
        if stopper.ends(loss):  # LEAVES
            say()
            break
    barrier()  # BEHIND
"""
CALLED = """
def average(net):
    for p in net:
        all_reduce(p)  # ON
def main(rank):
    while True:
        average(net)
        with quiet():
            if loss < 0.1:  # LEAVES
                break
    barrier()  # BEHIND
"""
WHILE = "def main():\n    while loss > 0.1:  # LEAVES\n        reduce()  # ON\n    barrier()  # BEHIND\n"
CASES = {
    "early stopping": (STOPPED, "stopper.ends(loss)", "for epoch in range(9)"),
    "in a function": (CALLED, "loss < 0.1", "while True"),
    "its condition": (WHILE, "loss > 0.1", "while loss > 0.1"),
    "at the top": (WHILE.replace("def main():", "if True:"), "loss > 0.1", "while loss > 0.1"),
}
SHORTER = """
def main():
    for epoch in range(9):
        for x in loader:
            if x.step > 9:
                break
            reduce()  # ON
    barrier()  # BEHIND
"""
ENDED = {
    "data": (SHORTER, "for x in loader", "x.step > 9"),
    "without a break": (SHORTER.replace("x.step > 9", "0").replace("break", "pass"), "for x in loader", ""),
    "so many as there are": (
        "def main():\n    for i in range(len(shard)):\n        step()  # ON\n        if loss > 9:\n            break\n"
        "    barrier()  # BEHIND\n", "for i in range(len(shard))", "loss > 9"
    ),
    "an inner loop's else": (
        "def main():\n    while True:\n        step()  # ON\n        for x in data:\n            pass\n        else:\n"
        "            break\n    barrier()  # BEHIND\n", "while True", ""
    ),
    "of an epoch": (STOPPED.replace("    barrier()", "        barrier()"), "for x in data", ""),
    "under none": (SHORTER.replace("                break\n", "                pass\n            break\n"),
                   "for x in loader", ""),
}  # fmt: skip
NONE = {
    "in the same loop": WHILE.replace("    barrier()", "        barrier()"),
    "no loop": "def main():\n    reduce()  # ON\n    barrier()  # BEHIND\n",
    "before it": "def main():\n    barrier()  # BEHIND\n    for x in data:\n        reduce()  # ON\n",
    "called from two places": CALLED.replace("    while True:", "    average(other)\n    while True:"),
    "of another function": STOPPED.replace("# BEHIND", "") + "def other():\n    barrier()  # BEHIND\n",
}


def at(file: Path, text: str, mark: str) -> SourceLine:
    (line,) = [number for number, each in enumerate(text.splitlines(), 1) if f"# {mark}" in each]
    return SourceLine(str(file), line, "")


def told(folder: Path, text: str) -> LeftLoop | None:
    file = folder / "train.py"
    file.write_text(text)
    return left_loop(at(file, text, "ON"), at(file, text, "BEHIND"))


@pytest.mark.parametrize("name", CASES)
def test_the_condition_that_leaves_it(tmp_path: Path, name: str) -> None:
    text, condition, over = CASES[name]
    found = told(tmp_path, text)
    assert found is not None and (found.text, found.over) == (condition, over)
    assert found.shorter == ("for x in data" if name == "early stopping" else "")
    assert found.leaves is not None and found.leaves.line == at(tmp_path / "train.py", text, "LEAVES").line


@pytest.mark.parametrize("name", ENDED)
def test_a_loop_that_may_be_shorter_there(tmp_path: Path, name: str) -> None:
    text, over, condition = ENDED[name]
    found = told(tmp_path, text)
    assert found is not None and (found.leaves, found.over, found.text) == (None, over, condition)


@pytest.mark.parametrize("name", NONE)
def test_no_loop_was_left(tmp_path: Path, name: str) -> None:
    assert told(tmp_path, NONE[name]) is None


def test_what_cannot_be_read(tmp_path: Path) -> None:
    line = SourceLine(str(tmp_path / "gone.py"), 3, "main")
    assert left_loop(line, line) is None

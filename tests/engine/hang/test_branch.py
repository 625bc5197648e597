"""Under which condition on its data a rank comes to a collective."""

from __future__ import annotations

from pathlib import Path

import pytest

from adbg.engine.hang.branch import Branch, branch_of
from adbg.engine.types import SourceLine

IF = """
def step(batch):
    loss = net(batch)
    if batch.boxes:  # TEST
        total = count(batch)
        all_reduce(total)  # ON
    loss.backward()
"""
ELSE = """
def step(batch):
    if batch.empty:  # TEST
        loss = net.zero()
    else:
        loss = net(batch)
        with timer():
            all_reduce(loss)  # ON
"""
GUARD = """
def step(batch):
    if not batch.boxes:  # TEST
        say("nothing")
        return None
    loss = net(batch)
    all_reduce(loss)  # ON
"""
SKIPPED = """
def main():
    for batch in data:
        if bad(batch):  # TEST
            continue
        for p in net:
            all_reduce(p)  # ON
"""
EXPRESSION = """
def step(batch):
    total = reduced(loss) if len(batch) else zero  # ON TEST
    return total
"""
OTHERWISE = """
def step(batch):
    return (
        zero if batch.empty  # TEST
        else reduced(loss)  # ON
    )
"""
ABOVE = """
def reduced(value):
    all_reduce(value)  # CALLED
    return value
def step(batch):
    loss = net(batch)
    if batch.boxes and ready:  # TEST
        loss = loss + reduced(count(batch))  # ON
"""
# By way of a method, and another call above that.
TWICE_ABOVE = """
class Meter:
    def gather(self):
        barrier()  # CALLED
    def flush(self):
        self.gather()
        self.clear()
def main():
    meter = Meter()
    while True:
        if meter.full:  # TEST
            meter.flush()  # ON
"""
ELIF = """
def step(kind):
    if kind == 1:
        skip()
    elif kind == 2:  # TEST
        barrier()  # ON
"""
INNER = """
def step(batch):
    if batch:
        if batch.last:  # TEST
            barrier()  # ON
"""
TRY = """
def main():
    try:
        if loss > 9:  # TEST
            barrier()  # ON
    finally:
        close()
"""
MODULE = "if data:  # TEST\n    barrier()  # ON\n"
# Text and condition. "# ON": the line that leads there; "# CALLED": the collective, where that is further down.
FOUND = {
    "if": (IF, "batch.boxes"), "else": (ELSE, "not (batch.empty)"),
    "a guard": (GUARD, "batch.boxes"), "a guard of a loop": (SKIPPED, "not (bad(batch))"),
    "an expression": (EXPRESSION, "len(batch)"), "its other side": (OTHERWISE, "not (batch.empty)"),
    "one level up": (ABOVE, "batch.boxes and ready"), "two levels up": (TWICE_ABOVE, "meter.full"),
    "elif": (ELIF, "kind == 2"), "in a try": (TRY, "loss > 9"),
    "of a module": (MODULE, "data"),
}  # fmt: skip
BOTH = """
def step(batch):
    if batch.boxes:
        all_reduce(count(batch))  # ON
    else:
        all_reduce(zero)
"""
BOTH_SIDES = "def step(batch):\n    return reduced(batch) if batch else reduced(zero)  # ON\n"
BOTH_ABOVE = """
def reduced(value):
    all_reduce(value)  # ON
def step(batch):
    if batch.boxes:
        reduced(batch)
    else:
        reduced(zero)
"""
# A dummy of the same collective where there is nothing: all ranks come to it.
DUMMY = """
def step(batch):
    if not batch.boxes:
        all_reduce(zero)
        return
    all_reduce(count(batch))  # ON
"""
MAIN = """
def main():
    for batch in data:
        all_reduce(count(batch))  # ON
if __name__ == "__main__":
    main()
"""
TWO_CALLERS = """
def reduced(value):
    all_reduce(value)  # ON
def step(batch):
    if batch.boxes:
        reduced(count(batch))
def other(batch):
    reduced(batch)
"""
TWO_GUARDS = """
def step(batch):
    if batch.short:
        return
    if not batch.boxes:
        return
    all_reduce(count(batch))  # ON
"""
CONFIGURED = "def step(batch):\n    if not cfg.average:\n        return\n    all_reduce(batch)  # ON\n"
# Which of several conditions parts the ranks is not known; one of the configuration parts none.
NONE = {
    "one of two": INNER, "two guards": TWO_GUARDS, "of the configuration": CONFIGURED,
    "no condition": "def step(batch):\n    if batch:\n        skip()\n    all_reduce(batch)  # ON\n",
    "both branches": BOTH,
    "both sides of an expression": BOTH_SIDES,
    "both branches call it": BOTH_ABOVE,
    "two callers": TWO_CALLERS,
    "no caller": "def step(batch):\n    all_reduce(batch)  # ON\n",
    "the condition itself": "def step(batch):\n    if any_of(all_reduce(batch)):  # ON\n        skip()\n",
    "a guard that raises": "def step(batch):\n    if not batch:\n        raise Error\n    all_reduce(batch)  # ON\n",
    "of the function around it": "if data:\n    def step(batch):\n        barrier()  # ON\n",
    "a guard that calls it": DUMMY,
    "in a guard, and behind it": DUMMY.replace("  # ON", "").replace("(zero)", "(zero)  # ON"),
    "it is the program": MAIN,
    "a job of one rank": "def mean(x):\n    if world_size == 1:\n        return\n    all_reduce(x)  # ON\n",
    "a job of several": "def mean(x):\n    if dist.is_initialized():\n        dist.all_reduce(x)  # ON\n",
}  # fmt: skip


def marked(text: str, mark: str) -> int:
    (line,) = [number for number, each in enumerate(text.splitlines(), 1) if mark in each.partition("#")[2].split()]
    return line


def told(folder: Path, text: str, line: int) -> Branch | None:
    file = folder / "train.py"
    file.write_text(text)
    return branch_of(SourceLine(str(file), line, ""))


@pytest.mark.parametrize("name", FOUND)
def test_the_condition(tmp_path: Path, name: str) -> None:
    """One level up, where it is the caller that stands under it, the line of that is the one that leads there."""
    text, condition = FOUND[name]
    found = told(tmp_path, text, marked(text, "CALLED" if "# CALLED" in text else "ON"))
    assert found is not None and found.text == condition
    assert (found.call.line, found.test.line) == (marked(text, "ON"), marked(text, "TEST"))
    assert found.call.function == found.test.function


@pytest.mark.parametrize("name", NONE)
def test_under_none(tmp_path: Path, name: str) -> None:
    assert told(tmp_path, NONE[name], marked(NONE[name], "ON")) is None


def test_what_cannot_be_read(tmp_path: Path) -> None:
    assert branch_of(SourceLine(str(tmp_path / "gone.py"), 3, "main")) is None

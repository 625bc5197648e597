"""docs/attach.md says what the code does: what can be compared is."""

from __future__ import annotations

import re

from stress import table
from support.program import ROOT

from adbg.engine.attach import snippet
from adbg.engine.attach.injector import page, ptrace, visit
from adbg.engine.bootstrap import attach

TEXT = (ROOT / "docs" / "attach.md").read_text()
REQUESTS = {
    "SEIZE", "INTERRUPT", "GETREGSET", "SETREGSET", "GETSIGMASK", "SETSIGMASK", "GET_RSEQ_CONFIGURATION", "SYSCALL",
    "CONT", "DETACH",
}  # fmt: skip


class Name(str):
    """Shown as it is, where the code puts a literal."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def test_the_snippet() -> None:
    outer, inner = re.findall(r"```python\n(?:# INNER\n)?(.*?)```", TEXT, re.DOTALL)
    assert outer == snippet._OUTER.format(inner=Name("INNER"))
    assert inner == snippet._INNER.format(file=Name("FILE"), session=Name("SESSION"))


def test_numbers() -> None:
    assert f"**One mapping of {page.SIZE >> 10} KB**" in TEXT
    assert f"{(page.SIZE - page.DATA) >> 10} KB of data and stack" in TEXT
    assert f"`{page.MARK.decode().rstrip(chr(0))}`" in TEXT
    assert f"does not stop within {visit.STOP_TIME:.0f} s" in TEXT
    assert f"does not return within {visit.CALL_TIME:.0f} s" in TEXT
    assert f"to {attach._Turns.SHORT * 1e3:g} ms" in TEXT and f"{attach._Turns.LONG * 1e3:g} ms at most" in TEXT


def test_ptrace_requests() -> None:
    """All that the injector makes, and no other."""
    sentence = re.search(r"ptrace requests: (.*?)\. `/proc", TEXT)
    assert sentence is not None
    assert set(re.findall(r"`(\w+)`", sentence[1])) == REQUESTS
    known = {name for name in vars(ptrace) if name.isupper() and name[0] != "_" and isinstance(vars(ptrace)[name], int)}
    same = {"CONTINUE": "CONT", "GET_RSEQ": "GET_RSEQ_CONFIGURATION"}
    others = {"TRACESYSGOOD", "EVENT_STOP", "PRSTATUS", "WALL", "ALL_SIGNALS"}
    assert {same.get(name, name) for name in known - others} == REQUESTS


def test_links() -> None:
    for path in re.findall(r"\]\(([^)#]*/[^)#]*)\)", TEXT):
        assert (ROOT / "docs" / path).exists(), path


def test_the_table_has_its_place() -> None:
    for text in (TEXT, (ROOT / "README.md").read_text()):
        assert table.insert(text, "text").count("text\n<!-- /attach stress -->") == 1

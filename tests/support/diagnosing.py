"""Programs with one bug each, or none, as a user has them, and what ``adbg diagnose`` says of them.

A program is a text; the line to change ends with ``# CAUSE``. The first finding is what a user reads first: it has to
be of the expected kind and to name that line. A healthy look-alike gets no finding above a note.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from adbg.engine.session.breakpoints.grammar import SpecKind, parse_spec
from adbg.tui.commands.table import resolve
from support.program import Outcome, adbg

CAUSE = "# CAUSE"


def diagnose(folder: Path, program: str, *options: str, compared: bool = False) -> Outcome:
    """``adbg diagnose --json`` of a program. ``compared``: its output is that of a run without adbg."""
    script = folder / "train.py"
    script.write_text(text_of(program))
    outcome = adbg("diagnose", "--json", *options, str(script), cwd=folder)
    if not compared:
        return outcome
    plain = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=folder)
    assert outcome.program_output == plain.stdout, f"another result under diagnosis\n{outcome}\nplain:\n{plain.stdout}"
    return outcome


def findings(outcome: Outcome) -> list[dict[str, Any]]:
    """As told last, in the order in which a user reads them: what is folded under another one is left out."""
    last = {(line.get("process", 1), line["id"]): line for line in outcome.of("finding")}
    (end,) = outcome.of("diagnosis")
    return [last[row["process"], row["id"]] for row in end["findings"]]


def text_of(program: str) -> str:
    """As it is written to its file."""
    return textwrap.dedent(program).lstrip()


def line_of(program: str, mark: str = CAUSE) -> int:
    lines = text_of(program).splitlines()
    found = [number for number, line in enumerate(lines, 1) if mark in line]
    assert len(found) == 1, f"{len(found)} lines are marked with {mark}"
    return found[0]


def check_found(folder: Path, program: str, kind: str, *options: str, status: int | None = None) -> dict[str, Any]:
    """The first finding above a note is of that kind and names the marked line (where one is marked)."""
    outcome = diagnose(folder, program, *options)
    told = [each for each in findings(outcome) if each["severity"] != "note"] or findings(outcome)
    assert told, f"nothing was found\n{outcome}"
    first = told[0]
    assert first["kind"] == kind, f"{kind} was expected first\n{outcome}"
    if CAUSE in program:
        assert first["cause"] is not None, f"no line is named\n{outcome}"
        assert first["cause"]["line"] == line_of(program), f"another line is named\n{outcome}"
        assert first["cause"]["file"].endswith("train.py"), str(outcome)
    assert first["evidence"], f"nothing proves it\n{outcome}"
    check_commands(first)
    if status is not None:
        assert outcome.status == status, str(outcome)
    return first


def check_commands(found: dict[str, Any]) -> None:
    """What it says to do next can be typed: a command line, or a command that adbg knows, with a spec that it reads."""
    for line in found["next"]:
        word, _, rest = line.partition(" ")
        if word != "adbg" and resolve(word).name in ("break", "tbreak", "trace", "until"):
            spec = parse_spec(rest)
            assert spec.kind is not SpecKind.NAME or "-" not in spec.pattern, f"{rest!r} is no word of the grammar"


def check_healthy(folder: Path, program: str, *options: str) -> Outcome:
    """No finding above a note."""
    outcome = diagnose(folder, program, *options, compared=True)
    told = [each for each in findings(outcome) if each["severity"] != "note"]
    assert not told, f"a false alarm\n{outcome}"
    return outcome

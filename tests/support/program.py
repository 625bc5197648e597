"""Runs debuggees, plainly or under ``adbg``, and holds what came of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE
from typing import Any, TypeVar

from support.patience import patience

ROOT = Path(__file__).resolve().parents[2]
DEBUGGEES = ROOT / "tests" / "debuggees"
LIMIT = 90.0  # seconds: nothing here takes a tenth of that on an idle machine
T = TypeVar("T")


@dataclass
class Outcome:
    """A finished process. ``str`` of it is what a failed assertion is to show."""

    command: list[str]
    status: int
    stdout: str
    stderr: str
    seconds: float
    _lines: list[dict[str, Any]] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        parts = (" ".join(self.command), f"status {self.status}", "stdout:", self.stdout, "stderr:", self.stderr)
        return "\n".join(parts)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Standard output as JSON lines; nothing else may be there."""
        if self._lines is None:
            self._lines = [json.loads(line) for line in self.stdout.splitlines()]
        return self._lines

    def of(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        """The JSON lines of a type, with these fields."""
        return [
            line for line in self.lines if line["type"] == kind and all(line.get(k) == v for k, v in fields.items())
        ]

    @property
    def program_output(self) -> str:
        """What the program wrote to its stdout, of a ``--json`` run."""
        return "".join(line["text"] for line in self.of("output", stream="stdout"))

    @property
    def digest(self) -> str:
        return digest_of(self.program_output if self.stdout.startswith("{") else self.stdout)


def digest_of(output: str) -> str:
    """The digest a debuggee printed; fails when there is not exactly one."""
    found = re.findall(r"^DIGEST ([0-9a-f]{64})\s*$", output.replace("\r\n", "\n"), re.MULTILINE)
    assert len(found) == 1, f"{len(found)} digests in:\n{output[-2000:]}"
    return found[0]


def run(command: Sequence[str | Path], input: str = "", limit: float = LIMIT, **options: Any) -> Outcome:
    """Run a command to its end, without a terminal."""
    words = [str(word) for word in command]
    started = time.monotonic()
    limit = patience(limit)
    process = subprocess.Popen(words, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True, errors="replace", **options)
    try:
        output, errors = process.communicate(input, timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        raise AssertionError(f"no end within {limit:.0f} s: {' '.join(words)}\n{output}\n{errors}") from None
    return Outcome(words, process.returncode, output, errors, time.monotonic() - started)


def debuggee(name: str) -> Path:
    return DEBUGGEES / (name if name.endswith(".py") else f"{name}.py")


def plain(name: str, *arguments: str, **options: Any) -> Outcome:
    """A debuggee as ``python SCRIPT ARGS`` runs it."""
    return run([sys.executable, debuggee(name), *arguments], **options)


def own_lines(text: str) -> list[str]:
    """Lines of a traceback or of stacks that name a file of adbg's, whatever the folders around it are called."""
    folders = [f"{ROOT / name}{os.sep}" for name in ("adbg", "engine", "tui", "profiles")]
    return [line for line in text.splitlines() if any(folder in line for folder in folders)]


def adbg(*words: str | Path, **options: Any) -> Outcome:
    """``adbg WORDS``, without a terminal."""
    return run([sys.executable, "-m", "adbg", *words], **options)


def batch(name: str, *options: str, arguments: Sequence[str] = (), json_lines: bool = True, **more: Any) -> Outcome:
    """``adbg run --batch [--json] OPTIONS DEBUGGEE ARGUMENTS``."""
    form = ["--json"] if json_lines else []
    return adbg("run", "--batch", *form, *options, debuggee(name), *arguments, **more)


def commands(*lines: str) -> list[str]:
    """``-e`` in front of each."""
    return [word for line in lines for word in ("-e", line)]


def marked(name: str, marker: str) -> int:
    """The number of the line of a debuggee that ends in ``# @marker``."""
    for number, line in enumerate(debuggee(name).read_text().splitlines(), 1):
        if line.rstrip().endswith(f"# @{marker}"):
            return number
    raise AssertionError(f"{name} has no line marked @{marker}")


def wait_until(condition: Callable[[], T | None], what: str, limit: float = LIMIT) -> T:
    """The first value of ``condition`` that is true; asks every 20 ms, fails with ``what`` after ``limit`` seconds."""
    limit = patience(limit)
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within {limit:.0f} s")


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX"

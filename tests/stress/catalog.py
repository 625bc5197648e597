"""The targets: what a process may be doing when somebody attaches to it, and where the Pythons are that run them."""

from __future__ import annotations

import glob
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
TARGETS = Path(__file__).resolve().parent / "targets"


@dataclass(frozen=True, slots=True)
class Kind:
    """Args:
    name: of the command line and the table.
    script: in targets/.
    word: its first argument.
    poke: how the blocked target is made to do a step, "" for one that works all the time.
    steady: its threads, descriptors and children are the same at any two moments.
    holds_gil: in calls of about a second, so that nobody gets in sooner.
    """

    name: str
    script: Literal["plain", "with_torch", "with_paddle"]
    word: str
    poke: Literal["", "signal", "socket"] = ""
    steady: bool = True
    holds_gil: bool = False

    @property
    def framework(self) -> str:
        return self.script.partition("with_")[2]


KINDS = (
    Kind("tight Python loop", "plain", "tight"),
    Kind("torch training loop", "with_torch", "loop"),
    Kind("Paddle training loop", "with_paddle", "loop"),
    Kind("time.sleep", "plain", "sleep", "signal"),
    Kind("socket recv", "plain", "recv", "socket"),
    Kind("socket recv with a time-out", "plain", "timed recv", "socket"),
    Kind("lock.acquire", "plain", "lock", "signal"),
    Kind("lock.acquire with a time-out", "plain", "timed lock", "signal"),
    Kind("queue.get", "plain", "queue", "signal"),
    Kind("thread.join, a worker in Python", "plain", "joined", steady=False),
    Kind("C calls of 1 s that hold the GIL", "plain", "c_call", holds_gil=True),
    Kind("matmul with the GIL released", "with_torch", "matmul"),
    Kind("DataLoader, 2 worker processes", "with_torch", "loader", steady=False),
    Kind("malloc-heavy", "plain", "malloc"),
    Kind("in the middle of a torch backward", "with_torch", "backward"),
    Kind("in the middle of a Paddle backward", "with_paddle", "backward"),
    Kind("under cProfile", "plain", "profiled"),
    Kind("under sys.settrace", "plain", "traced"),
)
#: The training loops with a pause after every step: for tests, which have other things to do with the processors.
SLOW = {
    "torch": Kind("slow torch training loop", "with_torch", "slow loop"),
    "paddle": Kind("slow Paddle training loop", "with_paddle", "slow loop"),
}
VERSIONED = ("tight Python loop", "time.sleep", "socket recv")  # tried with every Python that is found
OLDEST, NEWEST = (3, 10), (3, 14)


def kind(name: str) -> Kind:
    return next(each for each in KINDS if each.name == name)


@cache
def version(python: str) -> str:
    """Its version, "" where it does not run."""
    try:
        asked = subprocess.run(
            [python, "-c", "import platform; print(platform.python_version())"],
            capture_output=True,
            text=True,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout.strip() if asked.returncode == 0 else ""


@cache
def has(python: str, framework: str) -> bool:
    """Whether it can import the framework (which is not imported)."""
    code = f"import importlib.util as u, sys; s = u.find_spec({framework!r}); sys.exit(not (s and s.origin))"
    try:
        return subprocess.run([python, "-c", code], capture_output=True, timeout=60, cwd="/").returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def python_of(framework: str) -> str:
    """A Python with the framework: this one, or that of the repository's environment for it; "" for none."""
    own = {"torch": ("VENV", ".venv"), "paddle": ("VENV_PADDLE", ".venv-paddle")}
    if not framework:
        return sys.executable
    variable, folder = own[framework]
    chosen = os.environ.get(variable) or str(ROOT / folder)
    return next((p for p in (sys.executable, os.path.join(chosen, "bin", "python")) if has(p, framework)), "")


def other_pythons(more: Sequence[str] = ()) -> list[str]:
    """One of each minor version from OLDEST to NEWEST and each way of building that is found, beside this one's."""
    patterns = ("~/.pyenv/versions/3.*/bin/python3", "/usr/bin/python3.[0-9]*", "/usr/local/bin/python3.[0-9]*")
    found = [path for pattern in patterns for path in sorted(glob.glob(os.path.expanduser(pattern)))]
    chosen: dict[tuple[str, bool], str] = {}
    for path in (*more, *found):
        number = version(path) if "config" not in path else ""
        pair = tuple(int(part) for part in number.split(".")[:2]) if number[:1] == "3" else (0,)
        if OLDEST <= pair <= NEWEST:
            chosen.setdefault((number, path.startswith("/usr/bin/")), path)
    return [path for (number, system), path in sorted(chosen.items()) if system or number != version(sys.executable)]

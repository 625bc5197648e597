"""What adbg costs before anything runs: ``import adbg`` and ``adbg --help``, in fresh interpreters."""

from __future__ import annotations

import subprocess
import sys
import time

IMPORT = "import time; t = time.perf_counter(); import adbg; print((time.perf_counter() - t) * 1e3)"


def import_times(rounds: int) -> list[float]:
    """Milliseconds of ``import adbg``, as the interpreter itself measures them."""
    command = [sys.executable, "-c", IMPORT]
    return [float(subprocess.run(command, capture_output=True, check=True, text=True).stdout) for _ in range(rounds)]


def help_times(rounds: int) -> list[float]:
    """Milliseconds of ``adbg --help`` above those of ``python -c pass``, measured in pairs."""
    return [_wall(["-m", "adbg", "--help"]) - _wall(["-c", "pass"]) for _ in range(rounds)]


def _wall(arguments: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - started) * 1e3

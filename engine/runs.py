"""The folder of recorded runs: make, list, delete (L1, stdlib only; used by front ends and the launcher)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One recorded run. ``state`` is "running", "ended" or "crashed"; ``exit`` None: not known. ``size`` in bytes, times in
    seconds (``started`` since the epoch)."""

    path: str
    name: str
    script: str
    started: float
    seconds: float
    size: int
    state: str
    exit: int | None
    ranks: int


def runs_root() -> Path:
    """$ADBG_RUNS, else $XDG_STATE_HOME/adbg/runs, else ~/.local/state/adbg/runs."""
    raise NotImplementedError


def new_run_dir(argv: Sequence[str], root: str | os.PathLike[str] | None = None) -> Path:
    """Make a new, private (0700) run directory named after time and script. Raises AdbgError saying why not."""
    raise NotImplementedError


def list_runs(root: str | os.PathLike[str] | None = None) -> list[RunSummary]:
    """Newest first. A folder that is no run is left out; an unreadable one is listed as crashed."""
    raise NotImplementedError


def find_run(name: str, root: str | os.PathLike[str] | None = None) -> Path:
    """By name, unique prefix or path. Raises CommandError with the closest names."""
    raise NotImplementedError


def delete_run(path: str | os.PathLike[str], force: bool = False) -> None:
    """Raises CommandError when it is no run directory, or is still being written (unless ``force``)."""
    raise NotImplementedError

"""The folder of recorded runs: make, list, delete. Used by front ends and the launcher."""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from adbg.engine.errors import AdbgError, CommandError
from adbg.engine.record.crash import crashed_labels
from adbg.engine.record.files import labels, read_exit, read_info, run_state

RUNS_VARIABLE = "ADBG_RUNS"
_OURS = re.compile(
    r"(?:run(?:-r[\d-]+)?\.json|exit\.json"
    r"|\.?(?:events|tensors|vlog|output|journal|faults|crash)-r[\d-]+\.(?:sqlite(?:-wal|-shm|-journal)?|bin|log|txt))\Z"
)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One recorded run. ``state`` is "running", "ended" or "crashed"; ``exit`` None: not known. ``size`` in bytes,
    times in seconds (``started`` since the epoch); ``seconds`` goes to the last write when the run did not end."""

    path: str
    name: str
    script: str
    started: float
    seconds: float
    size: int
    state: str
    exit: int | None
    ranks: int
    argv: tuple[str, ...] = ()  # as the process was called, with the interpreter where there was one
    crash: tuple[str, ...] = ()  # labels of the processes that left a crash journal with a fault


def runs_root() -> Path:
    """$ADBG_RUNS, else $XDG_STATE_HOME/adbg/runs, else ~/.local/state/adbg/runs."""
    if own := os.environ.get(RUNS_VARIABLE):
        return Path(own)
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(state) / "adbg" / "runs"


def new_run_dir(argv: Sequence[str], root: str | os.PathLike[str] | None = None) -> Path:
    """Make a new, private (0700) run directory named after time and script. Raises AdbgError saying why not."""
    base = Path(root) if root is not None else runs_root()
    script = re.sub(r"[^\w.-]+", "_", os.path.basename(script_of(argv)))[:40].strip("._") or "python"
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{script}"
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        for count in range(1, 1000):
            path = base / (name if count == 1 else f"{name}-{count}")
            try:
                path.mkdir(mode=0o700)
                return path
            except FileExistsError:
                continue
    except OSError as error:
        raise AdbgError(
            f"no run directory can be made in {base}: {error.strerror}", "--run-dir DIR or --no-record"
        ) from None
    raise AdbgError(f"no free name for a run directory in {base}", "delete old runs: adbg runs")


def script_of(argv: Sequence[str]) -> str:
    """The script of a command line as the user thinks of it: "train.py", "-m pkg" -> "pkg", "-c ..." -> "-c"."""
    words = list(argv)
    if len(words) > 1 and words[0] == "-m":
        return words[1]
    return words[0] if words else ""


def list_runs(root: str | os.PathLike[str] | None = None) -> list[RunSummary]:
    """Newest first. A folder that is no run is left out; one whose run.json is broken is listed as crashed."""
    base = Path(root) if root is not None else runs_root()
    found = []
    with contextlib.suppress(OSError):
        for entry in base.iterdir():
            if entry.is_dir() and not entry.is_symlink() and is_run(entry):
                with contextlib.suppress(OSError):  # deleted while it was looked at
                    found.append(summary(entry))
    return sorted(found, key=lambda run: (run.started, run.name), reverse=True)


def is_run(path: str | os.PathLike[str]) -> bool:
    """True for a folder that adbg recorded into, or made to record into."""
    try:
        names = os.listdir(path)
    except OSError:
        return False
    return any(_OURS.match(name) for name in names)


def summary(path: str | os.PathLike[str]) -> RunSummary:
    """Raises OSError when the folder cannot be read."""
    folder = Path(path)
    info = read_info(folder)
    stats = [file.stat() for file in folder.rglob("*") if file.is_file()]
    last = max((s.st_mtime for s in stats), default=folder.stat().st_mtime)
    started = _number(info.get("started")) or folder.stat().st_mtime
    argv = info.get("argv")
    return RunSummary(
        path=str(folder),
        name=folder.name,
        script=script_of([str(word) for word in argv]) if isinstance(argv, list) else "",
        started=started,
        seconds=max(0.0, (_number(info.get("ended")) or last) - started),
        size=sum(s.st_size for s in stats),
        state=run_state(folder),
        exit=read_exit(folder),
        ranks=len(labels(folder)),
        argv=tuple(str(word) for word in argv) if isinstance(argv, list) else (),
        crash=tuple(crashed_labels(folder)),
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def find_run(name: str, root: str | os.PathLike[str] | None = None) -> Path:
    """By name, unique prefix or path. Raises CommandError with the closest names."""
    if os.sep in name and is_run(name):
        return Path(name)
    names = [run.name for run in list_runs(root)]
    matching = [known for known in names if known == name] or [known for known in names if known.startswith(name)]
    base = Path(root) if root is not None else runs_root()
    if len(matching) == 1:
        return base / matching[0]
    if matching:
        raise CommandError(f"{name!r} names {len(matching)} runs", f"one of: {', '.join(matching[:5])}")
    close = difflib.get_close_matches(name, names, 3, 0.4) or names[:3]
    raise CommandError(
        f"no run {name!r} in {base}", f"closest: {', '.join(close)}" if close else "none is recorded yet"
    )


def prepare_run_dir(path: str | os.PathLike[str]) -> Path:
    """Make ``path`` ready for a new record: made when missing; the record of an earlier run in it is deleted, other
    files stay. Raises AdbgError when that run is still going on or the folder cannot be written."""
    folder = Path(path)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if is_run(folder) and run_state(folder) == "running":
            raise AdbgError(f"{folder} is being recorded into by another run", "choose another --run-dir")
        for file in folder.iterdir():
            if _OURS.match(file.name):
                file.unlink()
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        reason = error.strerror
        raise AdbgError(f"{folder} cannot be used as run directory: {reason}", "--run-dir DIR or --no-record") from None
    return folder


def delete_run(path: str | os.PathLike[str], force: bool = False) -> None:
    """Raises CommandError when it is not a run directory, or is still being written (unless ``force``)."""
    folder = Path(path)
    if folder.is_symlink() or not is_run(folder):
        raise CommandError(f"{folder} is not a run directory: nothing was deleted", "see: adbg runs")
    if not force and run_state(folder) == "running":
        raise CommandError(f"{folder.name} is still being recorded: nothing was deleted", "end the program first")
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise CommandError(f"{folder} could not be deleted: {error.strerror} ({error.filename})") from None

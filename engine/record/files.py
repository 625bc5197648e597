"""The files of a run directory: their names, the tables, ``run.json`` and what state a run is in.

Several processes may record into one run: each has a *label*, its rank; a second process of the same rank (a spawned
worker) gets "<rank>-<pid>". The first process to come owns ``run.json``, the others write ``run-r<label>.json``.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# 1: an edge's slot was its place in the list, ``to_slot`` and null edges were not kept; 2: no collectives; 3: neither
# nodes_ran nor same_graph
SCHEMA = 4

#: artifact: the root of a backward call (its number is the path) was not finite: [NaN, infinite, elements]
LOSS = "loss"

# Times are seconds since the epoch, ``idx`` counts from 1 in execution order, ``us`` are microseconds. One counter
# numbers ``seq`` over node_event, stop, log, artifact and both ends of a backward: sorting by it gives what happened in
# order. An edge leads from output ``slot`` of a node to input ``to_slot`` of node ``to_idx``; that is NULL where no
# gradient is needed, or the producer does not run in this call. ``nodes_ran`` has the events of many nodes in one row,
# packed as ``backends.base.events.ROW``: both phases of each, numbered from seq to last; ``epoch`` is the time at 0 ns.
# A call in ``same_graph`` has the nodes and edges of call ``source``.
TABLES = """
CREATE TABLE IF NOT EXISTS backward (number INTEGER PRIMARY KEY, seq INTEGER, time REAL, entry TEXT, depth INTEGER,
    parent INTEGER, parent_idx INTEGER, thread INTEGER, iteration INTEGER, nodes INTEGER, roots TEXT, file TEXT,
    line INTEGER, create_graph INTEGER, end_seq INTEGER, us REAL, error TEXT);
CREATE TABLE IF NOT EXISTS node (backward INTEGER, idx INTEGER, key INTEGER, name TEXT, unique_name TEXT,
    accumulate INTEGER, custom INTEGER, compiled INTEGER, parameter TEXT, module TEXT, file TEXT, line INTEGER,
    function TEXT, shape TEXT, dtype TEXT, stack INTEGER, PRIMARY KEY (backward, idx)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS edge (backward INTEGER, idx INTEGER, slot INTEGER, to_idx INTEGER, to_slot INTEGER,
    PRIMARY KEY (backward, idx, slot)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS node_event (seq INTEGER PRIMARY KEY, time REAL, backward INTEGER, idx INTEGER, phase TEXT,
    us REAL, norm, nonfinite INTEGER);
CREATE TABLE IF NOT EXISTS nodes_ran (seq INTEGER PRIMARY KEY, last INTEGER, backward INTEGER, epoch REAL, rows BLOB,
    lost INTEGER);
CREATE TABLE IF NOT EXISTS same_graph (backward INTEGER PRIMARY KEY, source INTEGER);
CREATE TABLE IF NOT EXISTS stack (id INTEGER PRIMARY KEY, frames TEXT);
CREATE TABLE IF NOT EXISTS stop (seq INTEGER PRIMARY KEY, time REAL, backward INTEGER, idx INTEGER, reason TEXT,
    phase TEXT, body TEXT);
CREATE TABLE IF NOT EXISTS artifact (seq INTEGER PRIMARY KEY, time REAL, kind TEXT, path TEXT, text TEXT);
CREATE TABLE IF NOT EXISTS log (seq INTEGER PRIMARY KEY, offset INTEGER, length INTEGER);
CREATE TABLE IF NOT EXISTS collective (id INTEGER PRIMARY KEY, grp TEXT, seq INTEGER, op TEXT, shape TEXT, dtype TEXT,
    reduce TEXT, peer INTEGER, asynchronous INTEGER, state TEXT, file TEXT, line INTEGER, function TEXT, thread INTEGER,
    node TEXT, backward INTEGER, begun REAL, ended REAL, source TEXT);
"""

_EVENTS = re.compile(r"events-r(\d+(?:-\d+)?)\.sqlite\Z")


def events_path(run_dir: Path, label: str) -> Path:
    return run_dir / f"events-r{label}.sqlite"


def vlog_path(run_dir: Path, label: str) -> Path:
    return run_dir / f"vlog-r{label}.log"


def output_path(run_dir: Path, label: str) -> Path:
    return run_dir / f"output-r{label}.log"


def labels(run_dir: str | os.PathLike[str]) -> list[str]:
    """Labels of the processes that recorded into ``run_dir``, by rank."""
    found = [match[1] for name in os.listdir(run_dir) if (match := _EVENTS.match(name))]
    return sorted(found, key=lambda label: [int(part) for part in label.split("-")])


def claim_label(run_dir: Path, rank: int) -> str:
    """The label of this process; its event file is made here, so that no other process can have it. Raises OSError."""
    for label in (str(rank), f"{rank}-{os.getpid()}"):
        try:
            os.close(os.open(events_path(run_dir, label), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            return label
        except FileExistsError:
            continue
    raise FileExistsError(f"this process records into {run_dir} already")


# ------------------------------------------------------------------ run.json


def info_path(run_dir: Path, label: str) -> Path:
    """``run.json``, or the label's own file when there is one."""
    own = run_dir / f"run-r{label}.json"
    return own if own.exists() else run_dir / "run.json"


def create_info(run_dir: Path, label: str, info: Mapping[str, Any]) -> Path:
    """Write the first info of a process; returns the file that it owns. Raises OSError."""
    main = run_dir / "run.json"
    try:
        os.close(os.open(main, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        path = main
    except FileExistsError:
        path = run_dir / f"run-r{label}.json"
    write_info(path, info)
    return path


def write_info(path: Path, info: Mapping[str, Any]) -> None:
    """Replace the file as a whole: a reader never sees half of it. Raises OSError."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8", opener=_private) as file:
            json.dump(info, file, indent=1, default=str)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def read_info(run_dir: str | os.PathLike[str], label: str = "") -> dict[str, Any]:
    """``run.json`` (or the label's own); {} when it is missing or broken, as after a full disk."""
    path = info_path(Path(run_dir), label) if label else Path(run_dir) / "run.json"
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return info if isinstance(info, dict) else {}


def process_start(pid: int) -> str:
    """When the process began, as the kernel counts it (field 22 of /proc/PID/stat): tells a reused pid. "": unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def state_of(info: Mapping[str, Any]) -> str:
    """ "ended" (recording was closed), "running", or "crashed" (neither closed nor alive)."""
    if info.get("ended"):
        return "ended"
    pid = info.get("pid")
    if isinstance(pid, int) and _alive(pid) and info.get("pid_start", "") in ("", process_start(pid)):
        return "running"
    return "crashed"


_ASKED_TO_END = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})


def _kept_exit(run_dir: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        found = json.loads((Path(run_dir) / "exit.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_exit(run_dir: str | os.PathLike[str]) -> int | None:
    """Exit status of the launched program, from its keeper's ``exit.json`` (-N: ended by signal N); None: unknown."""
    found = _kept_exit(run_dir)
    code, number = found.get("code"), found.get("signal")
    if isinstance(number, int):
        return -number
    return code if isinstance(code, int) else None


def run_state(run_dir: str | os.PathLike[str]) -> str:
    """ "ended", "running" or "crashed" of the run as a whole. What the keeper saw counts more than what the process
    left behind: ``os._exit(0)`` ends a run without closing its record, and a process may crash after it closed it. A
    signal that the user had adbg send (``restart``, ``quit``) is not a crash."""
    code = read_exit(run_dir)
    if code is not None:
        asked = -code in _ASKED_TO_END or _kept_exit(run_dir).get("asked") is True
        return "crashed" if code < 0 and not asked else "ended"
    return state_of(read_info(run_dir))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True

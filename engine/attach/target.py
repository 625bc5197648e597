"""Whether adbg can get into a process, and if not, why and what to do: before anything is touched."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from adbg.engine.attach import checks
from adbg.engine.errors import AttachError
from adbg.engine.proc import PROC, Proc

OLDEST = (3, 10)


@dataclass(frozen=True, slots=True)
class Target:
    """A process that adbg may enter. ``started`` names it together with ``pid``; ``version`` is (0, 0) where nothing
    tells; ``traced_by``: the pid of its tracer, 0 for none."""

    pid: int
    started: int
    executable: str
    version: tuple[int, int]
    machine: str
    traced_by: int = 0


def examine(pid: int, untested: bool = False, root: Path = PROC) -> Target:
    """Look at process ``pid`` from outside. ``untested``: also what adbg was written for but never run
    on; the environment can say so, too.

    Raises:
        AttachError: adbg cannot enter it.
    """
    untested = untested or os.environ.get(checks.UNTESTED) == "1"
    process = Proc(pid, root)
    try:
        status = checks.check_exists(process)
        checks.check_relation(process, status)
        checks.check_owner(process, status)
        checks.check_readable(process)
        checks.check_namespaces(process, status)
        started = process.started()
        executable = os.readlink(process.folder / "exe")
        checks.check_machine(process, executable, untested)
        maps = process.maps()
        checks.check_libc(process, maps)
        checks.check_python(process, maps, executable)
        version = _version(executable, [part.path for part in maps])
        checks.check_version(process, version, OLDEST)
        checks.check_threading(process, maps, untested)
        checks.check_filters(process, status, untested)
        traced_by = checks.check_tracer(process, status, version)
        checks.check_running(process, status)
        checks.check_session(process)
        if not traced_by:
            checks.check_rights(process)
    except (FileNotFoundError, ProcessLookupError):
        raise checks.gone(pid) from None
    except OSError as error:
        raise AttachError(f"process {pid} cannot be examined: {error.strerror}", "run adbg as its owner") from None
    return Target(pid, started, executable, version, platform.machine(), traced_by)


def _version(executable: str, paths: list[str]) -> tuple[int, int]:
    """From the names of libpython, the executable, and the interpreter's own modules."""
    names = [os.path.basename(path) for path in paths if os.path.basename(path).startswith("libpython")]
    for name in [*names, os.path.basename(executable), *(path for path in paths if "/lib-dynload/" in path)]:
        found = re.search(r"python(3)\.(\d+)", name)
        if found:
            return int(found[1]), int(found[2])
    return (0, 0)

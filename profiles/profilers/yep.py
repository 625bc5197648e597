"""yep: what the CPU does in C and C++, on all threads, sampled by gperftools' libprofiler.

The library is called directly where it is there: the package ``yep`` is a module of two functions around it, and is
used where it brings the library along. Samples come by SIGPROF, 100 times a second of CPU time
(CPUPROFILE_FREQUENCY in the program's environment changes that).
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import shutil
import signal
from typing import Any

from adbg.profiles.base import Artifact, Availability, ProfileError, Profiler
from adbg.profiles.region import Region

FILE = "profile.prof"
MAPS = "maps"  # beside it: libprofiler writes the memory map at its end only, and a killed process has none
LIBRARIES = ("libprofiler.so.0", "libprofiler.so")
HINT = "install gperftools: apt-get install libgoogle-perftools-dev (or its like), then pip install 'adbg[profilers]'"


def library() -> Any:
    """libprofiler as it can be loaded here; None where it cannot."""
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _module() -> bool:
    try:
        return importlib.util.find_spec("yep") is not None
    except (ImportError, ValueError):
        return False


class _Library:
    def __init__(self, found: Any) -> None:
        self._found = found
        self._found.ProfilerStart.argtypes = [ctypes.c_char_p]

    def start(self, path: str) -> bool:
        return bool(self._found.ProfilerStart(os.fsencode(path)))

    def flush(self) -> None:
        self._found.ProfilerFlush()

    def stop(self) -> None:
        self._found.ProfilerStop()


class _Module:
    """Of the package."""

    def __init__(self) -> None:
        self._yep = importlib.import_module("yep")

    def start(self, path: str) -> bool:
        self._yep.start(path)
        return True

    def flush(self) -> None:
        """It has no way to."""

    def stop(self) -> None:
        self._yep.stop()


class Yep(Profiler):
    name = "yep"
    what = "C and C++ functions of all threads, sampled by CPU time (gperftools)"
    format = "gperftools"
    file = FILE

    def __init__(self) -> None:
        self._folder = ""
        self._tool: _Library | _Module | None = None

    def available(self) -> Availability:
        if library() is None and not _module():
            return Availability(False, "libprofiler is not installed", HINT)
        return Availability(True)

    def start(self, region: Region, folder: str) -> None:
        self._folder = folder
        if signal.getitimer(signal.ITIMER_PROF)[0] > 0:
            raise ProfileError(
                "the program's own profiler is at work: its timer ITIMER_PROF is running",
                "end that one, or use py-spy or cprofile, which need no timer",
            )
        if signal.getsignal(signal.SIGPROF) not in (signal.SIG_DFL, None):
            raise ProfileError("the program handles SIGPROF itself, which samples come by", "use py-spy or cprofile")
        found = library()
        self._tool = _Library(found) if found is not None else _Module()
        path = os.path.join(folder, FILE)
        if not self._tool.start(path):
            raise ProfileError(
                "libprofiler does not start: it is running already, or cannot write its file",
                f"unset CPUPROFILE in the program's environment, and check that {folder} can be written",
            )
        self._save_maps()

    def checkpoint(self) -> None:
        if self._tool is not None:
            self._tool.flush()
            self._save_maps()

    def stop(self) -> Artifact:
        if self._tool is not None:
            self._tool.stop()
        path = os.path.join(self._folder, FILE)
        # what samples there are is in the file's length: it is empty until the first flush
        sampled = os.path.exists(path) and _samples(path) > 0
        meta: dict[str, Any] = {"hz": int(os.environ.get("CPUPROFILE_FREQUENCY", "") or 100)}
        return Artifact(self.name, self._folder, FILE if sampled else "", self.format, meta)

    def _save_maps(self) -> None:
        shutil.copyfile("/proc/self/maps", os.path.join(self._folder, MAPS))


def _samples(path: str) -> int:
    """Stacks in the file: header of five words, then (count, depth, addresses…), ended by (0, 1, 0)."""
    with open(path, "rb") as file:
        data = file.read()
    words = memoryview(data[: len(data) // 8 * 8]).cast("Q")
    place, stacks = 5, 0
    while place + 2 < len(words):
        count, depth = words[place], words[place + 1]
        if (count, depth) == (0, 1):
            break
        stacks += 1
        place += 2 + depth
    return stacks

"""yep: what the CPU does in C and C++, on all threads, sampled by gperftools' libprofiler.

The library is called directly where it is there: the package ``yep`` is a module of two functions around it, and is
used where it brings the library along. Samples come by SIGPROF, 100 times a second of CPU time
(CPUPROFILE_FREQUENCY in the program's environment changes that).

What stays in the process: the library, its handler of SIGPROF, which does nothing while no profile runs, and the pipe
of its unwinder. It installs its handler once in a process and would die of the next profile's first sample without it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import os
import shutil
import signal
import time
from collections.abc import Iterator
from typing import Any

from adbg.profiles.base import Artifact, Availability, ProfileError, Profiler
from adbg.profiles.profilers.sampling import SAMPLING
from adbg.profiles.region import Region

FILE = "profile.prof"
MAPS = "maps"  # beside it: libprofiler writes the memory map at its end only, and a killed process has none
ROOM = 4 << 20  # bytes: twice what libprofiler keeps before it writes
LIBRARIES = ("libprofiler.so.0", "libprofiler.so")
FEW = 20  # samples: with fewer a share is off by a fifth of the whole, two standard deviations
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


class _State(ctypes.Structure):
    """``struct ProfilerState`` of gperftools/profiler.h."""

    _fields_ = (
        ("enabled", ctypes.c_int),
        ("start_time", ctypes.c_long),
        ("profile_name", ctypes.c_char * 1024),
        ("samples", ctypes.c_int),
    )


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

    def runs(self, path: str) -> bool:
        """It writes this file, and no other one."""
        state = _State()
        self._found.ProfilerGetCurrentState(ctypes.byref(state))
        return bool(state.enabled) and state.profile_name == os.fsencode(path)[:1023]


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

    def runs(self, path: str) -> bool:
        return True  # it has no way to tell


class _Action(ctypes.Structure):
    """``struct sigaction`` of glibc, as far as it is read."""

    _fields_ = (("handler", ctypes.c_void_p), ("rest", ctypes.c_char * 256))


def _handler() -> int:
    """The address of the function that handles SIGPROF; 0 and 1 stand for SIG_DFL and SIG_IGN. Python knows of those
    only that were installed in Python."""
    action = _Action()
    ctypes.CDLL(None).sigaction(signal.SIGPROF, None, ctypes.byref(action))
    return action.handler or 0


def _file_of(address: int) -> str:
    """The mapped file that this address is in."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            words = line.split(None, 5)
            first, _, last = words[0].partition("-")
            if int(first, 16) <= address < int(last, 16):
                return words[5].strip() if len(words) > 5 else ""
    return ""


class Yep(Profiler):
    name = "yep"
    what = "C and C++ functions of all threads, sampled by CPU time (gperftools)"
    format = "gperftools"
    file = FILE

    def __init__(self) -> None:
        self._folder = ""
        self._region = Region("run")
        self._begun = 0.0  # CPU time of the process
        self._tool: _Library | _Module | None = None
        self._handler = 0  # of SIGPROF, while it samples
        self._over = False

    def available(self) -> Availability:
        if library() is None and not _module():
            return Availability(False, "libprofiler is not installed", HINT)
        return Availability(True)

    def start(self, region: Region, folder: str) -> None:
        self._folder, self._region = folder, region
        if signal.getitimer(signal.ITIMER_PROF)[0] > 0:
            raise ProfileError(
                "the program's own profiler is at work: its timer ITIMER_PROF is running",
                "end that one, or use py-spy or cprofile, which need no timer",
            )
        handler = _handler()
        if handler > 1 and "profiler" not in os.path.basename(_file_of(handler)):
            raise ProfileError("the program handles SIGPROF itself, which samples come by", "use py-spy or cprofile")
        found = library()
        self._tool = _Library(found) if found is not None else _Module()
        path = os.path.join(folder, FILE)
        with SAMPLING.lock:
            started = self._tool.start(path)
        if not started:
            self._tool = None
            raise ProfileError(
                "libprofiler does not start: it is running already, or cannot write its file",
                f"unset CPUPROFILE in the program's environment, and check that {folder} can be written",
            )
        try:
            self._handler = _handler()
            SAMPLING.begin(self._save)
            self._save_maps()
        except BaseException:
            self.undo()
            raise
        self._begun = time.process_time()

    def checkpoint(self) -> None:
        self._check_room()
        with SAMPLING.lock:
            if self._tool is not None and self._tool.runs(os.path.join(self._folder, FILE)):
                self._tool.flush()
                self._save_maps()

    def _save(self) -> None:
        """The process becomes another program, or tries to."""
        with contextlib.suppress(OSError):
            self.checkpoint()

    def stop(self) -> Artifact:
        path, cpu = os.path.join(self._folder, FILE), time.process_time() - self._begun
        meta: dict[str, Any] = {"hz": _frequency()}
        self._check_room()
        with SAMPLING.lock:  # a fork comes before all of this or behind it
            try:
                self._stop(path, meta)
            finally:
                SAMPLING.end()
        # what samples there are is in the file's length: it is empty until the first flush
        sampled = _samples(path) if os.path.exists(path) else 0
        remark = few(sampled, cpu, _frequency(), self._region) if sampled < FEW and "displaced" not in meta else ""
        return Artifact(self.name, self._folder, FILE if sampled else "", self.format, meta, remark)

    def _stop(self, path: str, meta: dict[str, Any]) -> None:
        if self._tool is not None:
            if self._tool.runs(path):
                displaced = self._displaced()
                self._over = True
                self._tool.stop()
                if displaced is not None:
                    signal.setitimer(signal.ITIMER_PROF, *displaced)
                    meta["displaced"] = "the program took SIGPROF for itself in the region: samples end there"
            elif not self._over:
                meta["displaced"] = "the program ended the profile with a yep of its own: samples end there"

    def _displaced(self) -> tuple[float, float] | None:
        """The program's own timer, where it has put itself in the place of this one; libprofiler stops it blindly."""
        timer = signal.getitimer(signal.ITIMER_PROF)
        another = bool(timer[1]) and abs(timer[1] * _frequency() - 1) > 0.5
        if _handler() == self._handler and not another:
            return None
        return timer if another else (0.0, 0.0)

    def _check_room(self) -> None:
        """libprofiler ends the process when a write of its own fails. Raises OSError."""
        path = os.path.join(self._folder, "room")
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
        try:
            os.posix_fallocate(number, 0, ROOM)
        finally:
            os.close(number)
            os.unlink(path)

    def undo(self) -> None:
        tool, path = self._tool, os.path.join(self._folder, FILE)
        with SAMPLING.lock:
            SAMPLING.end()
            if tool is None or not tool.runs(path):
                return
            try:
                self._check_room()
            except OSError:
                with _to_nowhere(*_descriptors_of(path)):
                    tool.stop()
            else:
                tool.stop()

    def abandon(self) -> None:
        """A forked child has the file, what was not written of it, and the library's function that writes it when the
        process exits: in the middle of the parent's samples. ``SAMPLING`` saw to it that its locks are free."""
        SAMPLING.end()
        tool, self._tool = self._tool, None
        path = os.path.join(self._folder, FILE)
        if tool is None or not tool.runs(path):
            return
        with _to_nowhere(2, *_descriptors_of(path)):  # it also says on stderr how many samples it had
            tool.stop()

    def _save_maps(self) -> None:
        shutil.copyfile("/proc/self/maps", os.path.join(self._folder, MAPS))


def _frequency() -> int:
    text = os.environ.get("CPUPROFILE_FREQUENCY", "")
    return int(text) if text.isdigit() and int(text) else 100


def _descriptors_of(path: str) -> list[int]:
    real = os.path.realpath(path)
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == real:
                found.append(int(name))
    return found


@contextlib.contextmanager
def _to_nowhere(*descriptors: int) -> Iterator[None]:
    """What is written to them meanwhile is lost: nobody else writes there now."""
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    kept = {}
    for number in descriptors:
        with contextlib.suppress(OSError):
            kept[number] = os.dup(number)
            os.dup2(nowhere, number)
    try:
        yield
    finally:
        for number, before in kept.items():
            with contextlib.suppress(OSError):
                os.fstat(number)  # closed meanwhile: it stays so
                os.dup2(before, number)
            os.close(before)
        os.close(nowhere)


def few(samples: int, cpu: float, hz: int, region: Region) -> str:
    """Why there are so few, and what to do: ``cpu`` seconds are what was sampled."""
    told = f"{samples or 'no'} sample{'' if samples == 1 else 's'}: {cpu * 1e3:.3g} ms of CPU time at {hz} a second"
    if region.kind != "node" or not region.count:
        return f"{told}; measure a longer region, or sample more often: CPUPROFILE_FREQUENCY=1000 in its environment"
    needed = region.count * FEW / max(cpu * hz, 1.0)
    rounded = 10 ** (len(str(int(needed))) - 1)
    return f"{told}; repeat it more often: --repeat {-(-int(needed) // rounded) * rounded}"


def _samples(path: str) -> int:
    """Samples in the file: header of five words, then (count, depth, addresses…), ended by (0, 1, 0)."""
    with open(path, "rb") as file:
        data = file.read()
    words = memoryview(data[: len(data) // 8 * 8]).cast("Q")
    place, samples = 5, 0
    while place + 2 < len(words):
        count, depth = words[place], words[place + 1]
        if (count, depth) == (0, 1):
            break
        samples += count
        place += 2 + depth
    return samples

"""cProfile: every call of Python and C functions on one thread, counted and timed.

By its C part alone: ``cProfile`` imports ``profile``, and many a program has a ``profile.py`` of its own.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import sys
import threading
import time
from typing import Any

from adbg.engine.own_files import own_folders
from adbg.profiles.base import Artifact, Availability, ProfileError, Profiler
from adbg.profiles.region import Region

FILE = "profile.pstats"
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_PACKAGES = tuple(os.path.join(_LIBRARY, name) + os.sep for name in ("site-packages", "dist-packages"))
_Label = tuple[str, int, str]
_Cost = tuple[int, int, float, float]  # calls that are not recursive, calls, own seconds, with what it calls


def _label(code: Any) -> _Label:
    if isinstance(code, str):
        return "~", 0, code  # a function of C, as pstats names them
    return code.co_filename, code.co_firstlineno, code.co_name


MONITORING: Any = getattr(sys, "monitoring", None)  # from Python 3.12 on cProfile is one for all threads
_KEPT: list[Any] = []  # that were displaced


def active() -> bool:
    """Another profiler is in charge of this thread (before Python 3.12), or of the process."""
    if MONITORING is not None:
        return MONITORING.get_tool(MONITORING.PROFILER_ID) is not None
    return sys.getprofile() is not None


def _thread_state() -> int | None:
    """Of this thread, where another one may have to end its profile."""
    if MONITORING is not None or not hasattr(ctypes.pythonapi, "_PyEval_SetProfile"):
        return None
    get = ctypes.pythonapi.PyThreadState_Get
    get.restype = ctypes.c_void_p
    state: int | None = get()
    return state


def _end_on(state: int, thread: int) -> None:
    """Nothing profiles that thread any more, which may be in C code for hours. It lives, and is not switched to
    meanwhile: its state would be freed at its end."""
    end = ctypes.pythonapi._PyEval_SetProfile
    end.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(10.0)
        time.sleep(0.0001)  # those who wait for the GIL now wait that long too
        if thread in sys._current_frames():
            end(state, None, None)
    finally:
        sys.setswitchinterval(before)


class CProfile(Profiler):
    name = "cprofile"
    what = "Python and C functions of the thread that calls backward: calls and time of each"
    format = "pstats"
    file = FILE
    bound = True

    def __init__(self) -> None:
        self._profiler: Any = None
        self._thread = 0
        self._state: int | None = None  # address of its thread's state
        self._folder = ""
        self._lost = False  # the program took its place
        self._over = False  # it is to end, or has
        self._gone = False  # its thread ended
        self.own_seconds = 0.0

    def available(self) -> Availability:
        try:
            import _lsprof  # noqa: F401
        except ImportError:
            return Availability(False, "this Python has no _lsprof", "use a Python that was built with it")
        return Availability(True)

    def start(self, region: Region, folder: str) -> None:
        import _lsprof

        if active():
            raise ProfileError(
                "another profiler is at work on this thread already: the program's own cProfile or sys.setprofile",
                "end that one, or use yep or py-spy, which do not need its place",
            )
        self._folder = folder
        self._thread = threading.get_ident()
        self._state = _thread_state()
        self._profiler = _lsprof.Profiler()
        try:
            self._profiler.enable()
        except ValueError as error:
            raise ProfileError(f"cProfile does not start: {error}", "end the other profiler first") from None

    def pause(self) -> None:
        if threading.get_ident() == self._thread and self._mine():
            self._profiler.disable()

    def resume(self) -> None:
        if threading.get_ident() == self._thread and not active():
            self._profiler.enable()

    def checkpoint(self) -> None:
        self.pause()  # writing is none of the program's time
        try:
            self._write()
        finally:
            self.resume()

    def stop(self) -> Artifact:
        self._end()
        calls = self._write()
        meta: dict[str, Any] = {"adbg_seconds": self.own_seconds, "functions": calls}
        if self._lost:
            meta["displaced"] = "the program took cProfile's place on this thread in the region: its calls miss"
        elif self._gone:
            meta["displaced"] = "its thread ended in the region"
        return Artifact(self.name, self._folder, FILE if calls else "", self.format, meta)

    def abandon(self) -> None:
        if self._profiler is not None:
            self._end()

    def _end(self) -> None:
        """From any thread; the profiler of the program's own that has its place keeps it."""
        if MONITORING is not None:
            if active():
                self._profiler.disable()
            return
        here = threading.get_ident() == self._thread
        # its thread holds it as long as it profiles there; the others are this object and the argument
        lost = self._lost
        runs = self._mine() if here else sys.getrefcount(self._profiler) > 2
        self._gone = not here and self._thread not in sys._current_frames()
        if self._over:  # an exception came into the first time
            self._lost = lost
        elif not runs:
            self._lost = lost or not self._gone
        self._over = True
        if runs and not here and not self._gone and self._state is not None:
            _end_on(self._state, self._thread)
        if sys.getprofile() in (None, self._profiler):
            self._profiler.disable()  # what runs still is counted up to now
        else:
            _KEPT.append(self._profiler)  # freed, it would end the one that this thread has

    def _mine(self) -> bool:
        """The program has not put another profiler in its place meanwhile. On its thread."""
        if MONITORING is not None:
            return active()
        mine = sys.getprofile() is self._profiler
        self._lost = self._lost or not mine
        return mine

    def _write(self) -> int:
        """Returns how many functions were called; 0: nothing is written."""
        stats, self.own_seconds = without_own(as_pstats(self._profiler.getstats()), own_folders())
        if stats:
            path = os.path.join(self._folder, FILE)
            with open(path + ".new", "wb") as file:
                file.write(marshal.dumps(stats))
            os.replace(path + ".new", path)
        return len(stats)


_Stats = dict[_Label, tuple[int, int, float, float, dict[_Label, _Cost]]]


def as_pstats(entries: list[Any]) -> _Stats:
    """What ``cProfile.Profile.create_stats`` makes of the same entries."""
    stats: _Stats = {}
    callers: dict[_Label, dict[_Label, _Cost]] = {}
    for entry in entries:
        label = _label(entry.code)
        nc, cc, tt, ct = entry.callcount, entry.callcount - entry.reccallcount, entry.inlinetime, entry.totaltime
        known = stats.get(label)
        if known is not None:  # two code objects of one label (a class made twice)
            nc, cc, tt, ct = nc + known[1], cc + known[0], tt + known[2], ct + known[3]
        stats[label] = cc, nc, tt, ct, callers.setdefault(label, {})
        for call in entry.calls or ():
            into = callers.setdefault(_label(call.code), {})
            before = into.get(label, (0, 0, 0.0, 0.0))
            into[label] = (
                before[0] + call.callcount,
                before[1] + call.callcount - call.reccallcount,
                before[2] + call.inlinetime,
                before[3] + call.totaltime,
            )
    return stats


def without_own(stats: _Stats, folders: tuple[str, ...]) -> tuple[_Stats, float]:
    """Without the functions of adbg's files, and the seconds that these took themselves, which are in no function's
    cumulative time either. What they called (torch's engine is entered through one of them) is then called by their
    callers."""
    gone = {label for label in stats if label[0].startswith(folders)}
    while True:  # functions of C and of the standard library whose callers are all adbg's
        inner = {
            label
            for label, row in stats.items()
            if label not in gone and row[4] and set(row[4]) <= gone and _serves(label)
        }
        if not inner:
            break
        gone |= inner
    stats = _with_leaves(stats, gone)
    seconds = sum(stats[label][2] for label in gone)
    whole = sum(row[2] for row in stats.values()) - seconds
    shares = _shares(stats, gone)
    kept: _Stats = {}
    for label, (cc, nc, tt, ct, callers) in stats.items():
        if label in gone:
            continue
        found = dict(callers)
        for _ in range(20):  # adbg's functions call each other, no deeper than this
            through = [caller for caller in found if caller in gone]
            if not through:
                break
            for caller in through:
                cost = found.pop(caller)
                above = [each for each in stats[caller][4] if each != caller]
                if above:
                    chosen = max(above, key=lambda each: stats[caller][4][each][1])
                    before = found.get(chosen, (0, 0, 0.0, 0.0))
                    found[chosen] = tuple(a + b for a, b in zip(before, cost))  # type: ignore[assignment]
        rest = 1.0 - shares[label]
        ours = {each: (n, c, own, all_ * rest) for each, (n, c, own, all_) in found.items() if each not in gone}
        kept[label] = cc, nc, tt, min(max(ct * rest, tt), max(whole, tt)), ours
    return kept, seconds


def _with_leaves(stats: _Stats, gone: set[_Label]) -> _Stats:
    """Functions of C that others call too: what they took for ``gone`` is theirs."""
    callers = {caller for row in stats.values() for caller in row[4]}
    found = dict(stats)
    for label, (cc, nc, tt, ct, costs) in stats.items():
        theirs = [caller for caller in costs if caller in gone]
        if not theirs or label in gone or label in callers or label[0] != "~" or not _serves(label):
            continue
        costs = dict(costs)
        for caller in theirs:
            n, c, own, all_ = costs.pop(caller)
            nc, cc, tt, ct = nc - n, cc - c, tt - own, ct - all_
            row = found[caller]
            found[caller] = row[0], row[1], row[2] + own, row[3], row[4]
        found[label] = cc, nc, max(tt, 0.0), max(ct, 0.0), costs
    return found


def _shares(stats: _Stats, gone: set[_Label]) -> dict[_Label, float]:
    """How much of each function's cumulative time was spent in those of ``gone`` themselves. A caller has of it what it
    spent in each function that has."""
    called: dict[_Label, list[tuple[_Label, float]]] = {label: [] for label in stats}
    for label, row in stats.items():
        for caller, cost in row[4].items():
            if caller in called and caller != label:
                called[caller].append((label, cost[3]))
    shares = dict.fromkeys(stats, 0.0)
    order = sorted(stats, key=lambda label: stats[label][3])  # what is called before what calls it
    for _ in range(50):  # functions that call each other in a circle take some rounds
        change = 0.0
        for label in order:
            tt = stats[label][2]
            all_ = tt + sum(seconds for _, seconds in called[label])
            ours = tt * (label in gone) + sum(seconds * shares[each] for each, seconds in called[label])
            share = ours / all_ if all_ > 0 else float(label in gone)
            change = max(change, abs(share - shares[label]))
            shares[label] = share
        if change < 1e-6:
            break
    return shares


def _serves(label: _Label) -> bool:
    """Where adbg alone calls it. Not a function of the framework's that stands in a backward: adbg only passes that
    call on."""
    if label[0] == "~":
        return "run_backward" not in label[2] and "core.eager" not in label[2]
    return label[0].startswith(_LIBRARY) and not label[0].startswith(_PACKAGES)

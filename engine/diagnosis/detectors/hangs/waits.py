"""What a thread waits for, by the frames that it is in. No code of the program runs, and none of its values is kept."""

from __future__ import annotations

import linecache
import re
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from adbg.engine.diagnosis.detectors.hangs import polling
from adbg.engine.diagnosis.detectors.hangs.locks import locks_of
from adbg.engine.diagnosis.values import is_users
from adbg.engine.frames import locals_elsewhere
from adbg.engine.python.user_code import OWN, framework_roots, owner_of, source_line
from adbg.engine.types import SourceLine

_LOCKS = frozenset({"threading", "queue", "concurrent.futures._base", "concurrent.futures.thread", "_queue", "asyncio"})
_PROCESSES = (
    "multiprocessing.", "concurrent.futures.process", "torch.multiprocessing", "torch.utils.data", "paddle.io",
    "paddle.distributed.spawn",
)  # fmt: skip
OVER = "threading._shutdown"
_RANKS = ("torch.distributed", "paddle.distributed")
_HOLDS = ("adbg.engine.session.", "adbg.engine.agent.")  # where it stops the program; other code of adbg's calls on
# Built-in functions have no frame: what the line calls says it. A thing that is entered by its name is a lock.
_CALLS = re.compile(r"\.(?:acquire|get|put|join|result|wait)\(\s*\)|\.put\(|^\s*with\s+[\w.\[\]]+\s*[:,]")
_OF_LOCK = re.compile(r"\.acquire\(|^\s*with\b")
_SLEEPS = re.compile(r"\bsleep\(")


@dataclass(frozen=True, slots=True)
class Wait:
    """Of one thread.

    Attributes:
        thread: its name.
        line: of the user's innermost frame; None where the user has none on it.
        place: what tells a later look whether it has moved since.
        kind: "thread" (a lock, a queue, the end of a thread: what another thread has to do), "process" (the same of
            another process), "ranks" (a collective), "other" (a sleep, a file, a socket, or it computes).
        call: the function that the user's line called ("queue.Queue.get"); "" for a built-in one.
        timed: it goes on by itself after a while.
        joins: the thread whose end it waits for.
        held: it waits for a lock, not for what somebody puts or sets.
        sleeps: it is in a sleep that its own line calls for.
        polls: the first line of the loop that it goes round in, where all that this does is to look again; 0: none.
        again: a wait that runs out is begun anew, and nothing else happens then.
        beats: the loop around it goes on for ever, and wakes nobody.
        timer: it is a ``threading.Timer`` whose time has not come.
        wants: which lock it waits for, as ``locks.locks_of`` says; ``has``: since which line it has which ones.
        number: the system's of the thread; 0: not known.
        put: of a queue that it takes from, how many items were ever put there; -1: not known.
        counted: the first line of the loop with a fixed number of rounds that it takes in; 0: none.
    """

    thread: str
    line: SourceLine | None
    place: tuple[int, ...]
    kind: str
    call: str = ""
    timed: bool = False
    joins: int = 0
    held: bool = False
    sleeps: bool = False
    polls: int = 0
    again: bool = False
    beats: bool = False
    timer: bool = False
    wants: int = 0
    has: Mapping[int, SourceLine] = field(default_factory=dict)
    number: int = 0
    put: int = -1
    counted: int = 0


def program_waits(loops: bool) -> dict[int, Wait] | None:
    """By ident, every thread of the program's that runs Python; None where one of them is in adbg's hands. ``loops``:
    what goes round is found out, too, for which files are parsed: 0.1 s for one of 4,500 lines, once."""
    known = dict(getattr(threading, "_active", {}))  # ``enumerate`` takes a lock, which may be what hangs
    found = {}
    for ident, innermost in sys._current_frames().items():
        thread = known.get(ident)
        name = str(thread.name) if thread is not None else f"thread {ident}"
        if name.startswith("adbg-"):
            continue
        wait = _wait(name, innermost, loops)
        if wait is None:
            return None
        timer = isinstance(thread, threading.Timer) and not thread.finished.is_set()
        if loops and wait.line is not None and wait.kind == "thread":
            wants, has = locks_of(innermost)
            wait = replace(wait, wants=wants if wait.held else 0, has=has)
        found[ident] = replace(wait, timer=timer, number=getattr(thread, "native_id", None) or 0)
    return found


def _wait(name: str, innermost: types.FrameType, loops: bool) -> Wait | None:
    roots = framework_roots()
    inside: list[types.FrameType] = []  # the library's and the framework's, innermost first
    frame: types.FrameType | None = innermost
    while frame is not None and not is_users(frame):
        if frame.f_code.co_name == "_bootstrap" and str(frame.f_globals.get("__name__")) == "multiprocessing.process":
            # The program's function has returned, or there is none (a loader's worker): what is above began it all.
            return Wait(name, None, (id(innermost), innermost.f_lasti), "other")
        if owner_of(frame, roots) != OWN:
            inside.append(frame)
        elif str(frame.f_globals.get("__name__")).startswith(_HOLDS):
            return None
        frame = frame.f_back
    if frame is None:  # a library's thread: one of a pool that waits for work, a monitor that looks now and then
        # One that looks now and then, as tqdm's, waits for a lock with a limit.
        monitor = str(innermost.f_globals.get("__name__")) in _LOCKS
        kind = "thread" if monitor else _kind(inside)
        timed = _timed(locals_elsewhere(innermost, innermost)) if kind == "thread" else False
        started = innermost.f_code.co_name == "run"  # it runs a built-in function
        over = any(each.f_code.co_name == "_shutdown" for each in inside)  # threading's: its code has come to its end
        at, said = (id(innermost), innermost.f_lasti), OVER if over else ""
        return Wait(name, None, at, "other" if started else kind, said, timed=timed)
    line, place = source_line(frame), (id(frame), frame.f_lasti)
    looks = line is not None and loops and _only_looks(inside)
    variables = {**frame.f_globals, **locals_elsewhere(frame, innermost)} if looks else {}
    if line is not None and looks and (polls := polling.polls_at(line.file, line.line, variables)):
        return Wait(name, replace(line, line=polls), (id(frame), polls), "thread", polls=polls)
    again = line is not None and looks and polling.asks_again(line.file, line.line, variables)
    beats = line is not None and looks and polling.wakes_nobody(line.file, line.line)
    del variables
    if not inside:
        text = linecache.getline(line.file, line.line).partition("#")[0] if line is not None else ""
        kind = "thread" if _CALLS.search(text) else "other"
        sleeps = bool(_SLEEPS.search(text))
        return Wait(name, line, place, kind, held=bool(_OF_LOCK.search(text)), sleeps=sleeps, beats=beats)
    kind = _kind(inside)
    call = inside[-1]
    values = locals_elsewhere(call, innermost) if kind == "thread" else {}  # of the standard library's function
    joins = getattr(values.get("self"), "ident", 0) if call.f_code.co_name == "join" else 0
    held = call.f_code.co_name == "acquire"
    wait = Wait(name, line, place, kind, _called(call), _timed(values), int(joins or 0), held, again=again, beats=beats)
    if kind == "thread" and call.f_code.co_name == "get" and line is not None and loops:
        # Counted by ``put``; those that are taken count until ``task_done``, where the program calls that.
        put = getattr(values.get("self"), "unfinished_tasks", -1)
        text = "".join(linecache.getlines(line.file))
        known = type(put) is int and "task_done" not in text and "Thread(" in text  # else the loop itself fills it
        wait = replace(wait, put=put if known else -1, counted=polling.counted_at(line.file, line.line))
    return wait


def _kind(inside: Sequence[types.FrameType]) -> str:
    modules = [str(frame.f_globals.get("__name__")) for frame in inside]
    if any(each.startswith(_RANKS) for each in modules):
        return "ranks"
    if any(each.startswith(_PROCESSES) for each in modules):
        return "process"  # perhaps by a queue that a thread fills from processes
    return "thread" if modules[0] in _LOCKS and modules[-1] in _LOCKS else "other"


def _only_looks(inside: Sequence[types.FrameType]) -> bool:
    """Nothing but what a loop asks of locks, queues and processes runs."""
    modules = (str(frame.f_globals.get("__name__")) for frame in inside)
    return all(each in _LOCKS or each.startswith("multiprocessing.") for each in modules)


def _timed(values: dict[str, Any]) -> bool:
    timeout = values.get("timeout")
    return timeout is not None and timeout != -1


def _called(frame: types.FrameType) -> str:
    code = frame.f_code
    name = getattr(code, "co_qualname", code.co_name)
    module = str(frame.f_globals.get("__name__")).partition(".")[0]
    return f"{module}.{name}"

"""Functions of a framework's put in place of its own, and taken out again without a trace."""

from __future__ import annotations

import abc
import functools
import os
import sys
import types
import weakref
from collections.abc import Callable, Container, Iterator
from threading import get_ident
from time import time
from typing import Any

from adbg.engine.backends.base.collectives import ENDED, GROUP, STATE, CollectiveTaps, KnownGroup, LedgerSink, Method
from adbg.engine.backends.common.tracebacks import strip_own
from adbg.engine.outside import DISGUISED, own, suppress
from adbg.engine.own_files import own_folders
from adbg.engine.protocol.messages import Collective, ProcessGroup
from adbg.engine.types import SourceLine

GRADIENTS = "all_reduce (of gradients, by C++)"
_UNWAITED = 4096  # works that nobody waited for, remembered at most

Place = tuple[str, int, str]  # file, line, function


class Patches:
    """What was put where. ``restore`` puts back the very objects that were there; what somebody put above ours stays,
    and goes on calling ours, which then must only pass through."""

    def __init__(self) -> None:
        self._put: list[tuple[Any, str, Any, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._put)

    def put(self, owner: Any, name: str, new: Any) -> None:
        """``owner``: a class or a module that has ``name`` itself."""
        self._put.append((owner, name, vars(owner)[name], new))
        setattr(owner, name, new)

    def restore(self) -> None:
        while self._put:
            owner, name, old, new = self._put.pop()
            now = vars(owner).get(name)
            if now is new or getattr(now, "__wrapped__", None) is new:
                setattr(owner, name, old)


def outwards(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    """``frame`` and those that called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def in_engine(
    innermost: types.FrameType | None, entries: Container[tuple[str, str]], user_file: Callable[[str], str | None]
) -> Place | None:
    """The user's line that called a backward whose C++ code this thread runs now; None: it is elsewhere. ``entries``:
    (file without its folders, function) of the framework's last Python frame before that."""
    own_code = own_folders()
    for frame in outwards(innermost):
        code = frame.f_code
        if code.co_filename.startswith(own_code) or code in DISGUISED:
            continue
        if (os.path.basename(code.co_filename), code.co_name) in entries:
            return user_place(frame, user_file)
        return None
    return None


def of_gradients(group: ProcessGroup, thread: int, place: Place) -> Collective:
    """What a thread that rests in the C++ code of a backward is most likely in, in a job of several ranks."""
    file, line, function = place
    where = SourceLine(file, line, function) if file else None
    return Collective(0, group.name, 0, GRADIENTS, state="waiting", place=where, thread=thread, source="frames")


def user_place(frame: types.FrameType | None, user_file: Callable[[str], str | None]) -> Place:
    """The innermost line of the user's from ``frame`` outwards; ("", 0, "") where there is none."""
    for each in outwards(frame):
        file = user_file(each.f_code.co_filename)
        if file is not None:
            return file, each.f_lineno or 0, each.f_code.co_name
    return "", 0, ""


class MethodTaps(CollectiveTaps):
    """Taps of the methods of one class of process groups, and of the ``wait`` of what they return."""

    def __init__(self, user_file: Callable[[str], str | None], number: Callable[[Any], int] | None = None) -> None:
        """``user_file``: see ``FrameFilter``. ``number``: the framework's own count of what a group issued."""
        self._user_file = user_file
        self._number = number
        self._files: dict[str, str] = {}  # what ``user_file`` said
        self._patches = Patches()
        self._first = Patches()  # what waits for the first group
        self._known: dict[int, KnownGroup] = {}  # by id of the group
        self._alive: dict[int, weakref.ref[Any]] = {}
        self._works: dict[int, list[Any]] = {}  # rows of what was issued and not waited for, by id of the work

    @property
    def tapped(self) -> bool:
        return bool(self._patches)

    def uninstall(self) -> None:
        self._patches.restore()
        self._first.restore()
        self._known.clear()
        self._alive.clear()
        self._works.clear()

    @abc.abstractmethod
    def _learn(self, group: Any) -> KnownGroup:
        """A group that is used for the first time since the taps are in."""

    def _node_now(self) -> str:
        """The backward node that runs on this thread, "" for none or where it cannot be told."""
        return ""

    def _put(self, kind: Any, name: str, method: Method) -> None:
        sink = self.sink
        if sink is not None and name in vars(kind):
            self._patches.put(kind, name, self._method(getattr(kind, name), method, sink))

    def _put_wait(self, kind: Any, name: str) -> None:
        if kind is not None and name in vars(kind):
            self._patches.put(kind, name, self._wait(getattr(kind, name)))

    def _method(self, call: Any, method: Method, sink: LedgerSink) -> Any:
        """The hot path: written in one piece, for each call of a function costs 0.1 us of it. Around a stub a row costs
        1.9 us on torch (0.2 the group's number, 0.2 shape and dtype, 0.4 the user's line, 0.2 the clock) and 0.3 more
        in ``wait``, on two busy processors; 2.4 and 2.1 (Paddle) in all where they are seven times overcommitted. A
        real gloo call becomes 3 to 5 us longer there. Its entry in the crash journal takes 4.4 us more. See
        ``tests/bench/bench_collectives.py``."""
        meet, resume, works, groups = self._meet, self._resume_counting, self._works, self._known
        number, files, user_file, node_now = self._number, self._files, self._user_file, self._node_now
        place, detail, alone, whole = method.tensor, method.detail, method.alone, method.whole
        add, next_id, inside = sink.add, sink.number, sink.inside

        @functools.wraps(call)
        def tap(group: Any, *args: Any, **kwargs: Any) -> Any:
            row = None
            try:
                known = groups.get(id(group)) or meet(group, sink)
                if number is not None:
                    native = number(group)
                    if native != known.native:
                        known.catch_up(native)
                    known.native = native + 1
                seq = 0
                if known.counted and not alone:
                    seq = known.count = known.count + 1
                shape = dtype = None
                if -1 < place < len(args):
                    tensor = args[place]
                    while tensor.__class__ is list:
                        tensor = tensor[0] if tensor else None
                    if tensor is not None:
                        shape, dtype = tensor.shape, tensor.dtype
                frame: Any = sys._getframe(1)
                file, line, function = "", 0, ""
                while frame is not None:
                    code = frame.f_code
                    name = code.co_filename
                    known_file = files.get(name)
                    if known_file is None:
                        known_file = files[name] = user_file(name) or ""
                    if known_file:
                        file = known_file
                        line, function = frame.f_lineno, code.co_name
                        break
                    frame = frame.f_back
                thread, node, backward = get_ident(), "", 0
                if inside:
                    within = inside.get(thread)
                    node, backward = node_now(), within[-1] if within else 0
                row = [
                    method, known, seq, shape, dtype, args[detail], file, line, function, thread, node, backward,
                    time(), None, "called", next_id(),
                ]  # fmt: skip
                add(row)
            except own(Exception):  # an odd call of the script's: the framework says what is wrong with it
                pass
            try:
                work = call(group, *args, **kwargs)
            except BaseException as error:
                if row is not None:
                    resume(row, group)
                    row[ENDED], row[STATE] = time(), "failed"
                strip_own(error)
                raise
            if row is None:
                return work
            if work is None or whole or known.backend == "GLOO":  # Paddle's gloo: it is over
                row[ENDED], row[STATE] = time(), "done"
                if whole:
                    resume(row, group)
            else:
                row[STATE] = "issued"
                works[id(work)] = row
            return work

        return tap

    def _meet(self, group: Any, sink: LedgerSink) -> KnownGroup:
        key = id(group)
        known = self._known[key] = self._learn(group)
        sink.met(known)

        def gone(_: object) -> None:  # another group may get its address
            self._known.pop(key, None)
            self._alive.pop(key, None)

        with suppress(TypeError):
            self._alive[key] = weakref.ref(group, gone)
        return known

    def _resume_counting(self, row: list[Any], group: Any) -> None:
        """A call that failed, or counted as often as it sent something."""
        if self._number is not None:
            with suppress(Exception):
                row[GROUP].native = self._number(group)

    def _wait(self, wait: Any) -> Any:
        works = self._works

        @functools.wraps(wait)
        def tap(work: Any, *args: Any, **kwargs: Any) -> Any:
            row = works.pop(id(work), None)
            if row is None:
                return wait(work, *args, **kwargs)
            row[STATE] = "waiting"
            try:
                result = wait(work, *args, **kwargs)
            except BaseException as error:
                row[ENDED], row[STATE] = time(), "failed"
                strip_own(error)
                raise
            row[ENDED], row[STATE] = time(), "done"
            if len(works) > _UNWAITED:
                works.clear()
            return result

        return tap

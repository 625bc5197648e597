"""``adbg/allThreads`` and ``adbg/threadNames``: what every thread does while the program runs. Runs on "adbg-reader".

No thread is stopped for it, and nothing of the program's is run: no ``__repr__``, no property, no tensor's numbers. A
frame is held no longer than an answer takes: it would keep its locals alive.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import time
import types
from collections.abc import Mapping, Sequence
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.errors import CommandError, UnknownName
from adbg.engine.frames import locals_elsewhere
from adbg.engine.inspect.attributes import Unknown, follow
from adbg.engine.inspect.still_text import still_text
from adbg.engine.inspect.value_text import type_name
from adbg.engine.inspect.variables import rank
from adbg.engine.outside import DISGUISED, own, suppress
from adbg.engine.places import parsed
from adbg.engine.protocol.messages import (
    AllThreadsBody,
    RunningNode,
    ThreadFacts,
    ThreadFrame,
    ThreadNames,
    ThreadNamesBody,
    Variable,
)
from adbg.engine.python.user_code import FRAMEWORK, OWN, USER, framework_roots, owner_of, source_line
from adbg.engine.session.session import Session

INNER, OUTER = 150, 50  # frames sent of a deep recursion
_LIBRARY = "library"
_LIBRARIES = tuple(
    os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
# Functions that only hand a call on: the one behind them is what was called.
_WRAPPERS = frozenset(
    ("wrapper", "inner", "_fn", "decorate_context", "__call__", "_call_impl", "_wrapped_call_impl", "__impl__",
     "_dygraph_call_func", "_decorate_function")
)  # fmt: skip


class Threads:
    """What one agent knows of the threads, and where each was when it was asked before."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._seen: dict[int, tuple[tuple[int, int], float]] = {}  # ident -> (place of its innermost frame, since when)

    def all(self) -> AllThreadsBody:
        """Every thread that runs Python, adbg's own left out; the main thread first."""
        session = self._session
        parked = session.parked
        stopped = parked.thread if parked is not None else 0
        waiting = set(session.turn.waiting)
        known = dict(getattr(threading, "_active", {}))  # ``enumerate`` takes a lock, which may be what hangs
        roots = framework_roots()
        now = time.monotonic()
        seen: dict[int, tuple[tuple[int, int], float]] = {}
        found = []
        for ident, innermost in sys._current_frames().items():
            thread = known.get(ident)
            name = str(thread.name) if thread is not None else f"thread {ident}"
            if name.startswith("adbg-"):
                continue
            place = (id(innermost), innermost.f_lasti)
            before = self._seen.get(ident)
            seen[ident] = (place, before[1] if before is not None and before[0] == place else now)
            stack = _program_frames(innermost, roots)
            call, call_name = _last_call(stack)
            found.append(
                ThreadFacts(
                    id=ident,
                    native_id=(thread.native_id or 0) if thread is not None else 0,
                    name=name,
                    daemon=bool(thread.daemon) if thread is not None else False,
                    state="stopped" if ident == stopped else "waiting" if ident in waiting else "running",
                    frames=_sent(stack),
                    cut=max(len(stack) - INNER - OUTER, 0),
                    call=call if call < INNER else -1,
                    call_name=call_name,
                    node=self._node(ident, innermost, stack),
                    unmoved=now - before[1] if before is not None and before[0] == place else None,
                )
            )
        self._seen = seen
        main = threading.main_thread().ident
        own_threads = [each.native_id or 0 for each in known.values() if str(each.name).startswith("adbg-")]
        return AllThreadsBody(sorted(found, key=lambda each: (each.id != main, each.name, each.id)), own_threads)

    def _node(self, ident: int, innermost: types.FrameType, stack: Sequence[_Placed]) -> RunningNode | None:
        """The innermost node that runs on the thread: the one at which it stands, that of a Python function that a node
        calls, else the hooked one."""
        parked = self._session.parked
        if parked is not None and parked.thread == ident:
            stop = parked.point.stop
            if stop.node is not None:
                return RunningNode(stop.node.unique_name, stop.backward, stop.index, forward=stop.node.forward)
        with suppress(Exception):
            for place in stack:
                for backend in self._session.backends:
                    found = backend.node_at(place.frame, innermost)
                    if found is not None:
                        return self._hooked(ident, found[0]) or RunningNode(found[0], forward=found[1])
            return self._hooked(ident)
        return None

    def _hooked(self, ident: int, name: str = "") -> RunningNode | None:
        """The node that adbg saw begin there, and not end; of that name, where one is given."""
        for hooks in self._session.hooks:
            running = hooks.innermost(ident)
            if running is None or not running.begun:
                continue
            key, visit = list(running.begun.items())[-1]
            node = running.call.describe(key)
            if name and node.name != name:
                continue
            spent = time.perf_counter_ns() - visit.started_ns - running.state.parked_ns
            return RunningNode(node.unique_name, running.call.number, visit.index, spent / 1e9, node.forward)
        return None

    def names(self, request: ThreadNames) -> ThreadNamesBody:
        """The locals of a frame, or the value of an expression there.

        Raises:
            CommandError: the frame is not there any more, or the expression would run code of the program's.
        """
        stack = _outwards(sys._current_frames().get(request.thread))
        place = len(stack) - request.from_end
        frame = stack[place] if 0 <= place < len(stack) else None
        if frame is None or frame.f_code.co_name != request.function or _file(frame) != request.file:
            raise CommandError(f"{request.function} does not run on that thread any more", "`where` shows where it is")
        values = locals_elsewhere(frame, stack[0])
        backends = self._session.backends
        if request.expression:
            return ThreadNamesBody([_value(request.expression, values, frame.f_globals, backends)])
        names = sorted(values, key=lambda name: rank(name, values[name]))
        return ThreadNamesBody([_variable(name, values[name], backends) for name in names])


# ---------------------------------------------------------------------- frames


class _Placed:
    """A frame of the program's, and where it is."""

    __slots__ = ("frame", "from_end", "owner")

    def __init__(self, frame: types.FrameType, owner: str, from_end: int) -> None:
        self.frame = frame
        self.owner = owner
        self.from_end = from_end


def _outwards(frame: types.FrameType | None) -> list[types.FrameType]:
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def _program_frames(innermost: types.FrameType, roots: tuple[str, ...]) -> list[_Placed]:
    """Innermost first, without adbg's own."""
    stack = _outwards(innermost)
    found = []
    for place, frame in enumerate(stack):
        owner = owner_of(frame, roots)
        if owner == OWN or frame.f_code in DISGUISED:
            continue
        if owner == USER and _installed(frame.f_code.co_filename):
            owner = _LIBRARY
        found.append(_Placed(frame, owner if owner in (USER, FRAMEWORK) else _LIBRARY, len(stack) - place))
    return found


def _installed(file: str) -> bool:
    """Of the standard library or an installed package."""
    return file.startswith(_LIBRARIES) or any(part in file for part in _PACKAGES)


def _file(frame: types.FrameType) -> str:
    line = source_line(frame)
    return line.file if line is not None else ""


def _sent(stack: Sequence[_Placed]) -> list[ThreadFrame]:
    kept = [*stack[:INNER], *stack[-OUTER:]] if len(stack) > INNER + OUTER else stack
    found = []
    for each in kept:
        line = source_line(each.frame)
        assert line is not None
        found.append(ThreadFrame(each.frame.f_code.co_name, line.file, line.line, each.owner, each.from_end))
    return found


def _last_call(stack: Sequence[_Placed]) -> tuple[int, str]:
    """(place, name) of the function of a library or framework that the innermost frame of the user's called, wrappers
    passed over; (-1, "") where that is a built-in one, or none of the user's runs."""
    inside = next((place for place, each in enumerate(stack) if each.owner == USER), 0)
    for place in range(inside - 1, -1, -1):
        if place == 0 or stack[place].frame.f_code.co_name not in _WRAPPERS:
            return place, _imported_name(stack[place].frame)
    return -1, ""


def _imported_name(frame: types.FrameType) -> str:
    """As a user writes it: "torch.distributed.all_reduce", though it lives in "torch.distributed.distributed_c10d"."""
    code = frame.f_code
    name = getattr(code, "co_qualname", code.co_name).replace(".<locals>", "")
    module = frame.f_globals.get("__name__")
    if not isinstance(module, str):
        return name
    parts = module.split(".")
    for end in range(1, len(parts)):
        package = ".".join(parts[:end])
        if _code_of(getattr(sys.modules.get(package), "__dict__", {}).get(code.co_name)) is code:
            return f"{package}.{code.co_name}"
    return f"{module}.{name}"


def _code_of(value: Any) -> types.CodeType | None:
    for _ in range(4):
        if not isinstance(value, types.FunctionType):
            return None
        inner = value.__dict__.get("__wrapped__")
        if inner is None:
            return value.__code__
        value = inner
    return None


# ---------------------------------------------------------------------- values


def _variable(name: str, value: Any, backends: Sequence[Backend]) -> Variable:
    return Variable(name=name, value=still_text(value, backends), type=type_name(value), evaluateName=name)


def _value(
    expression: str, values: Mapping[str, Any], more: Mapping[str, Any], backends: Sequence[Backend]
) -> Variable:
    def named(name: str) -> Any:
        for names in (values, more):
            if name in names:
                return names[name]
        raise UnknownName(f"name {name!r} is not defined in that frame", "`info locals` lists its names")

    try:
        tree = parsed(expression.strip(), mode="eval").body
        value = follow(tree, named)
    except SyntaxError as error:
        raise CommandError(f"{expression!r} is no expression: {error.msg}") from None
    except own(Unknown, ValueError, MemoryError, RecursionError):
        raise CommandError(
            f"{expression!r} cannot be read while that thread runs: the program's own code would run for it",
            "a chain of names, attributes and items can (model.fc.weight, queue[0]); `pause` and `print` do the rest",
        ) from None
    return _variable(expression.strip(), value, backends)

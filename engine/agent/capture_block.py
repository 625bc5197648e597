"""``with adbg.capture_backward_subgraph(...)``: the nodes made in a block, captured with the next backward.

Runs on the script's thread. Under adbg the capture belongs to the attached session. Outside it a session of its own
serves, without a front end: no socket, no thread, one observer, the captures; what it has to say goes to stderr.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from adbg.engine.agent import agent as agents
from adbg.engine.backends import REGISTRY
from adbg.engine.backends.base import Backend, CreationWatch, Graph, Stray
from adbg.engine.capture.captures import Captures, Wanted
from adbg.engine.errors import AdbgError
from adbg.engine.graph.region import block_region
from adbg.engine.outside import own
from adbg.engine.protocol import messages as p
from adbg.engine.session.session import Session

_alone: tuple[Session, Captures] | None = None  # of a program that is not debugged
_users: dict[Backend, int] = {}  # blocks that are open and need forward stacks, by the framework they switched on
_users_lock = threading.Lock()
_said: set[str] = set()


class SubgraphCapture:
    """The context manager. ``files`` are the paths written so far; complete when the backward that has the nodes is
    over."""

    def __init__(self, directory: str, grads: bool, name: str, limit: int) -> None:
        """Args as of ``adbg.capture_backward_subgraph``. Raises ValueError: a bad name or limit."""
        if limit <= 0:
            raise ValueError(f"limit must be a number of bytes above 0, got {limit}")
        if name and (os.sep in name or name in (".", "..") or not name.isprintable()):
            raise ValueError(f"{name!r} cannot name a capture: use letters, digits, - and _")
        self._directory = os.path.abspath(os.path.expanduser(directory))
        self._grads = grads
        self._name = name
        self._limit = limit
        self._wanted: Wanted | None = None
        self._watch: CreationWatch | None = None
        self._session: Session | None = None
        self._switched: list[Backend] = []

    @property
    def files(self) -> list[str]:
        return list(self._wanted.files) if self._wanted is not None else []

    @property
    def state(self) -> str:
        """ "waiting" for the backward, "running", "done", "failed"; "" where nothing is captured."""
        return self._wanted.state if self._wanted is not None else ""

    def __enter__(self) -> SubgraphCapture:
        found = _session()
        if found is not None:
            try:
                self._begin(*found, sys._getframe(1))
            except AdbgError as error:
                _say_once(f"nothing is captured: {error}")
        return self

    def _begin(self, session: Session, captures: Captures, frame: Any) -> None:
        self._need_stacks(session)
        watches, notes = [], []
        for backend in session.backends:
            try:
                watches.append(backend.watch_creation())
            except AdbgError as error:
                notes.append(f"ops without a part in the loss are not known: {error.message}")
        self._watch = _Watches(watches) if watches else None
        region = block_region(frame, self._watch)
        wanted = captures.make(region, self._directory, self._name, self._grads, self._limit)
        wanted.quiet = True
        wanted.notes = notes
        captures.wait_for(wanted)
        self._wanted = wanted

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watch is not None:
            self._watch.close()
        with _users_lock:
            for backend in self._switched:
                _users[backend] -= 1
                if not _users[backend]:  # a block around this one, or on another thread, still needs them
                    del _users[backend]
                    if self._session is not None and not self._session.stacks:
                        backend.set_stacks(False)
        self._switched.clear()

    def _need_stacks(self, session: Session) -> None:
        self._session = session
        with _users_lock:
            for backend in session.backends:
                if not session.stacks or backend in _users:
                    backend.set_stacks(True)
                    _users[backend] = _users.get(backend, 0) + 1
                    self._switched.append(backend)


class _Watches(CreationWatch):
    """The watches of all frameworks there are, as one."""

    def __init__(self, watches: Sequence[CreationWatch]) -> None:
        self._watches = watches

    def close(self) -> None:
        for watch in self._watches:
            watch.close()

    def release(self) -> None:
        for watch in self._watches:
            watch.release()

    def restart(self) -> None:
        for watch in self._watches:
            watch.restart()

    def holds(self, graph: Graph, key: int) -> bool:
        return any(watch.holds(graph, key) for watch in self._watches)

    def strays(self, graph: Graph) -> tuple[Sequence[Stray], str]:
        for watch in self._watches:
            if any(watch.holds(graph, key) for key in graph.order()):
                return watch.strays(graph)
        return (), ""


# ------------------------------------------------------------------ whose session


def _session() -> tuple[Session, Captures] | None:
    """The attached session of this process, else one of our own; None where neither can be (why: once, on stderr)."""
    agent = agents.current()
    if agent is not None:
        if agent.session.attached:
            return agent.session, agent.captures
        _say_once("nothing is captured: no front end is attached to this program (adbg attach)")
        return None
    return _own_session()


def _own_session() -> tuple[Session, Captures] | None:
    global _alone
    present = [name for name in REGISTRY if name in sys.modules]
    if not present:
        _say_once(f"nothing is captured: none of {', '.join(REGISTRY)} is imported yet")
        return None
    if _alone is None:
        session = Session(_Stderr())
        captures = Captures(session, os.getcwd)
        session.observe(captures)
        session.set_filters([])  # nobody is there to stop for
        session.attach()
        _alone = session, captures
        atexit.register(_farewell, os.getpid())
    session, _ = _alone
    known = {backend.name for backend in session.backends}
    for name in present:
        if name not in known:
            try:
                session.add_backend(REGISTRY[name]())
            except own(Exception) as error:
                _say_once(f"{name} cannot be watched: {type(error).__name__}: {error}")
    return _alone if session.backends else None


class _Stderr:
    """Where a session without a front end speaks: important lines, to stderr."""

    def event(self, body: Any, droppable: bool = False) -> None:
        if isinstance(body, p.Output) and body.category == "important":
            print(f"adbg: {body.output}", end="", file=sys.stderr)


def _farewell(pid: int) -> None:
    """Say what was never captured."""
    if _alone is None or os.getpid() != pid:
        return
    session, captures = _alone
    for state in captures.listing():
        if state.state == "waiting":
            print(f"adbg: capture {state.name}: no backward came that has nodes of {state.region}", file=sys.stderr)
    session.detach()


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        print(f"adbg: capture_backward_subgraph: {text}", file=sys.stderr)

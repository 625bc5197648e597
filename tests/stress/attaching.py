"""One attach, as a front end does it: listen, enter, the agent's hello, a handshake, detach; timed."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.attach.enter import enter
from adbg.engine.attach.target import examine
from adbg.engine.errors import AdbgError
from adbg.engine.launch.launch import prepare_session
from adbg.engine.protocol import messages as p
from adbg.tui.debugger.client import Client, Listener, initialize

from .census import Census, census, left_behind
from .running import patience

HELLO = 180.0  # seconds to the agent's hello
GONE = 30.0  # seconds after the detach within which nothing may be left


@dataclass(slots=True)
class Attached:
    """What came of it. ``error``: nobody got in, and why. ``left``: what was not put back, in words."""

    hello: float = 0.0  # seconds from the first look at the process to the agent's hello
    gone: float = 0.0  # seconds from the request to detach until the process is as it was
    way: str = ""
    queued: bool = False
    error: str = ""
    left: list[str] = field(default_factory=list)


class Session:
    """The front end's end of one attach. ``with`` takes the socket and its folder away."""

    def __init__(self) -> None:
        self.agents: queue.Queue[tuple[Client, p.Hello]] = queue.Queue()
        self.listener = Listener(lambda client, hello: self.agents.put((client, hello)), on_refused=self._refused)
        self.file = prepare_session(self.listener.config)
        self.cancelled = threading.Event()
        self.progress: list[Any] = []
        self.events: queue.Queue[Any] = queue.Queue()
        self.entry: Any = None
        self.failed = ""
        self.lost = threading.Event()

    def _refused(self, refused: p.Refused) -> None:
        self.failed = refused.reason

    def _enter(self, pid: int) -> None:
        try:
            self.entry = enter(examine(pid), self.file, self.progress.append, self.cancelled)
        except AdbgError as error:
            self.failed = error.message
        except Exception as error:  # shown in the table
            self.failed = f"{type(error).__name__}: {error}"

    def begin(self, pid: int, limit: float = HELLO) -> Client:
        """The agent's client, started, initialised and configured. Raises AdbgError when nobody got in."""
        way = threading.Thread(target=self._enter, args=(pid,), daemon=True)
        way.start()
        deadline = time.monotonic() + limit
        try:
            while True:
                try:
                    client, _ = self.agents.get(timeout=0.05 if way.is_alive() else 1.0)
                    break
                except queue.Empty:
                    if self.failed or time.monotonic() > deadline:
                        raise AdbgError(self.failed or f"no hello within {limit:.0f} s") from None
        except AdbgError:
            self.cancelled.set()
            way.join(patience(10))
            raise
        self.hello_at = time.perf_counter()
        way.join(patience(10))
        if self.entry is not None:
            self.entry.release()
        client.start(self.events.put, lambda reason: self.lost.set())
        initialize(client, self.listener.token, stacks=False, timeout=patience(30))
        client.request(p.ConfigurationDone(), patience(30))
        return client

    def close(self) -> None:
        self.cancelled.set()
        self.listener.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def attach_and_detach(pid: int, steady: bool = True) -> Attached:
    """Once. Raises OSError when the process is gone."""
    before = census(pid)
    result = Attached()
    with Session() as session:
        started = time.perf_counter()
        try:
            client = session.begin(pid, patience(HELLO))
        except AdbgError as error:
            result.error = error.message
        else:
            result.hello = session.hello_at - started
            result.way = str(getattr(session.entry, "way", "?"))
            leaving = time.perf_counter()
            try:
                client.request(p.Disconnect(), patience(30))
            except AdbgError as error:
                result.left.append(f"detach: {error.message}")
            result.left += _settled(pid, before, steady)
            result.gone = time.perf_counter() - leaving
        result.queued = any(getattr(step, "kind", "") == "queued" for step in session.progress)
    return result


def _settled(pid: int, before: Census, steady: bool) -> list[str]:
    """What is left, once nothing is or the time is up."""
    deadline = time.monotonic() + patience(GONE)
    while True:
        after = census(pid)
        left = left_behind(before, after) if steady else left_behind(_same(before, after), after)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.01)


def _same(before: Census, after: Census) -> Census:
    """Of a process whose threads and descriptors come and go: only what never does is compared."""
    return Census(after.threads, after.descriptors, before.pages, before.mappings, before.tracer, before.resident)

"""The agent: adbg inside the program being debugged (L4, stdlib only; imports no framework that the script did not).

``start`` dials the front end that launched the program and holds the calling thread until it has set its breakpoints.
Requests are served on "adbg-reader". Whatever goes wrong here, the program runs on: undebugged at worst.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import platform
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from adbg.engine.agent import import_watch as importwatch
from adbg.engine.agent.client import Client
from adbg.engine.agent.requests import Requests
from adbg.engine.backends import REGISTRY
from adbg.engine.backends.base import Backend
from adbg.engine.protocol import messages as p
from adbg.engine.protocol.rendezvous import SessionConfig
from adbg.engine.record.journal import open_journal
from adbg.engine.record.recorder import Recorder
from adbg.engine.session.session import Session

PATIENCE = 30.0  # seconds that a program waits for a front end that does not speak

_current: Agent | None = None
_fork_registered = False

Factories = Mapping[str, Callable[[], Backend]]


def current() -> Agent | None:
    """The agent of this process; None outside adbg, and in a forked child."""
    return _current


def start(
    config: SessionConfig, main: bool = True, backends: Factories | None = None, patience: float = PATIENCE
) -> Agent | None:
    """Dial ``config.socket`` and wait until the front end lets the program start.

    Args:
        main: this is the launched process itself, not a child of it.
        backends: made at once instead of those of the registry, which wait for the script's imports.
        patience: seconds to wait for ``configurationDone``; then the program runs with nothing armed.

    Returns:
        None when nobody listens: the program runs undebugged, and says so in one line on stderr.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(config.socket)
    except OSError as error:
        sock.close()
        print(f"adbg: no front end at {config.socket} ({error.strerror}): running undebugged", file=sys.stderr)
        return None
    agent = Agent(config, main, backends, os.path.dirname(config.socket))
    agent.serve(sock, hello=True)
    if not agent.configured.wait(patience):
        print(f"adbg: the front end said nothing for {patience:.0f} s: running on, nothing armed", file=sys.stderr)
    return agent


class Agent:
    """One process's agent: session, record and the client of the moment. ``scratch``: the folder of a session that a
    front end made, "" for none; what would go beside the record lies there when nothing is recorded."""

    def __init__(
        self, config: SessionConfig, main: bool = True, backends: Factories | None = None, scratch: str = ""
    ) -> None:
        global _current
        self.config = config
        self.main = main
        self.rank = _environment_rank() or 0
        self.configured = threading.Event()
        self.client: Client | None = None
        self._breakpointhook = sys.breakpointhook
        self._pid = os.getpid()
        self._record_due = bool(config.run_dir)  # the record is still to be opened
        recorder = self._open_recorder() if main else None
        self.session = Session(self, self.rank, recorder, scratch)
        self._open_journal(recorder, scratch)
        self.session.set_stacks(config.stacks)
        self._requests = Requests(self)
        _current = self
        _register_fork()
        atexit.register(self.close)
        self._hook_breakpoint()
        if backends is None:
            importwatch.watch({name: self._importer(make) for name, make in REGISTRY.items()})
        else:
            for make in backends.values():
                self._add_backend(make)

    # ---- connection

    def serve(self, sock: socket.socket, hello: bool = False) -> Client:
        """Take ``sock`` as the client's connection. ``hello``: we dialled, so say who we are."""
        client = self.client = Client(sock, self._requests.handle, self._gone)
        if hello:
            client.event(p.Hello(self.config.token, self.process_info()))
        client.connection.start()
        return client

    def _gone(self, client: Client) -> None:
        if self.client is client:
            self.client = None
            self.session.detach()
        self.configured.set()

    def event(self, body: Any, droppable: bool = False) -> None:
        """Send an event to the client, if there is one. Never blocks, never raises."""
        client = self.client
        if client is not None and client.initialized:
            client.event(body, droppable)

    def event_later(self, make: Callable[[], Sequence[Any]]) -> None:
        client = self.client
        if client is not None and client.initialized:
            client.event_later(make)

    def active(self) -> None:
        """A spawned child may have learnt its rank since it began, and records from its first backward on."""
        known = [backend.rank() for backend in self.session.backends]
        rank = next((r for r in (*known, _environment_rank()) if r is not None), self.rank)
        if rank == self.rank and not self._record_due:
            return
        self.rank = self.session.rank = rank
        if self._record_due:
            self.session.reports.recorder = recorder = self._open_recorder()
            self._open_journal(recorder, os.path.dirname(self.config.socket))
        self.event(p.ProcessChanged(self.process_info()))

    def process_info(self) -> p.ProcessInfo:
        """Who this process is. ``argv`` as the interpreter was called; ``sys.argv`` may not be set yet at start."""
        return p.ProcessInfo(
            pid=os.getpid(),
            rank=self.rank,
            argv=list(sys.orig_argv),
            python=platform.python_version(),
            cwd=os.getcwd(),
            run_dir=self.config.run_dir if self.recorder is not None and self.recorder.recording else "",
            frameworks=[_framework(backend) for backend in self.session.backends],
            main=self.main,
        )

    # ---- frameworks

    def _importer(self, make: Callable[[], Backend]) -> Callable[[], None]:
        return lambda: self._add_backend(make)

    def _add_backend(self, make: Callable[[], Backend]) -> None:
        if os.getpid() != self._pid:
            return
        try:
            backend = make()
            self.session.add_backend(backend)
        except Exception as error:
            self.session.reports.defect("a framework cannot be debugged", error)
            return
        if self.session.reports.journal is not None:
            self.session.reports.journal.watch_faults_again()
        framework = _framework(backend)
        self.event(p.FrameworkLoaded(framework))
        if self.recorder is not None:
            known = [dataclasses.asdict(_framework(b)) for b in self.session.backends]
            self.recorder.update_info(frameworks=known)

    # ---- record

    @property
    def recorder(self) -> Recorder | None:
        return self.session.reports.recorder

    def _open_recorder(self) -> Recorder | None:
        """One writer a process: the launched one from the start, a child with its first backward (most have none)."""
        if not self._record_due:
            return None
        self._record_due = False
        return Recorder.open(
            self.config.run_dir,
            self.rank,
            self._record_problem,
            argv=list(sys.orig_argv),
            cwd=os.getcwd(),
            pid=os.getpid(),
            python=platform.python_version(),
        )

    def _open_journal(self, recorder: Recorder | None, scratch: str) -> None:
        """The crash journal lies beside the record; without one, in the session's own folder."""
        if not self.main and recorder is None:
            return
        folder, label = scratch, f"{self.rank}"
        if recorder is not None and recorder.recording:
            folder, label = recorder.run_dir, recorder.label
        self.session.reports.journal = open_journal(folder, label, self._record_problem)

    def _record_problem(self, text: str) -> None:
        self.event(p.Output(text.rstrip("\n") + "\n", "important"))

    def record(self, on: bool | None) -> p.RecordBody:
        """Answer ``adbg/record``: on records every node from the next backward on; off only what is armed anyway."""
        recorder = self.recorder
        if recorder is None or not recorder.recording:
            return p.RecordBody(False, "", "nothing is recorded: the run was started without a run directory")
        if on is not None:
            self.session.set_record(on)
        every = "every node" if self.session.record_nodes else "stops, VLOG and the nodes that are hooked anyway"
        return p.RecordBody(True, recorder.run_dir, f"recording {every}")

    # ---- breakpoint()

    def _hook_breakpoint(self) -> None:
        """The built-in ``breakpoint()`` stops here too; PYTHONBREAKPOINT, where set, decides as ever."""
        if not os.environ.get("PYTHONBREAKPOINT"):
            import adbg

            sys.breakpointhook = adbg.breakpoint

    # ---- end

    def close(self) -> None:
        """The program ends: send and write what is still waiting (at most a second each)."""
        global _current
        if os.getpid() != self._pid:
            return
        if _current is self:
            _current = None
            sys.breakpointhook = self._breakpointhook
        client = self.client
        if client is not None:
            for state in self.session.table.final():
                self.event(p.BreakpointChanged("changed", state))
            self.session.reports.flush()
            client.connection.flush(1.0)
            client.connection.close()
        self.session.detach()
        if self.recorder is not None:
            self.recorder.flush(1.0)
            self.recorder.close()
        journal, self.session.reports.journal = self.session.reports.journal, None
        if journal is not None:
            journal.close()
        atexit.unregister(self.close)

    def abandon(self) -> None:
        """In a forked child: no threads, no client, nothing armed. Locks are left alone: their holders are not here."""
        session = self.session
        session.attached = session.deciding = False
        session.parked = None
        session.reports.recorder = None
        journal, session.reports.journal = session.reports.journal, None
        if journal is not None:
            journal.abandon()
        session.reports.verbosity.abandon()
        client, self.client = self.client, None
        if client is not None:
            client.connection.abandon()
        sys.breakpointhook = self._breakpointhook
        for backend in session.backends:
            with contextlib.suppress(Exception):
                backend.abandon()


def _register_fork() -> None:
    global _fork_registered
    if not _fork_registered:
        _fork_registered = True
        os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    global _current
    agent, _current = _current, None
    if agent is not None:
        agent.abandon()


def _environment_rank() -> int | None:
    """As torchrun and the like tell it."""
    text = os.environ.get("RANK", "")
    return int(text) if text.isdigit() else None


def _framework(backend: Backend) -> p.Framework:
    return p.Framework(backend.name, backend.version, dataclasses.asdict(backend.capabilities))

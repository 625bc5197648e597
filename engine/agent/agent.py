"""The agent: adbg inside the program being debugged. It imports no framework that the script did not.

``start`` dials the front end that launched the program and holds the calling thread until it has set its breakpoints.
Requests are served on "adbg-reader". Whatever goes wrong here, the program runs on: undebugged at worst. Here the rooms
meet: the session, and the observers that listen to it.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import platform
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from adbg.engine import own_threads
from adbg.engine.agent import import_watch as importwatch
from adbg.engine.agent.aids import AidSwitches
from adbg.engine.agent.child_process import ForkedChild, before_fork, hear_of_the_end, without_filter
from adbg.engine.agent.client import Client
from adbg.engine.agent.connection import Connection
from adbg.engine.agent.diagnosing import Diagnosing
from adbg.engine.agent.events import Events
from adbg.engine.agent.late_facts import LateFacts
from adbg.engine.agent.ranks import RankFacts, environment_rank
from adbg.engine.agent.requests import Requests
from adbg.engine.agent.run_record import RunRecord
from adbg.engine.agent.unmatched import UnmatchedBreakpoints
from adbg.engine.backends import REGISTRY
from adbg.engine.backends.base import Backend
from adbg.engine.capture.captures import Captures
from adbg.engine.collectives.answer import latest
from adbg.engine.collectives.ledger import Ledger
from adbg.engine.errors import ProtocolError
from adbg.engine.flag import Flag
from adbg.engine.inspect.digest import DigestMoments
from adbg.engine.inspect.memory.answer import MemoryWatch
from adbg.engine.log.levels import LogLevels
from adbg.engine.log.narrator import Narrator
from adbg.engine.log.node_log import NodeLog
from adbg.engine.outside import own
from adbg.engine.protocol import messages as p
from adbg.engine.protocol.rendezvous import SessionConfig, peer_of
from adbg.engine.session.collecting import Collector
from adbg.engine.session.post_mortem import interrupted, stop_at_uncaught, uncaught
from adbg.engine.session.session import Session
from adbg.engine.session.stop_point import PausedPoint
from adbg.engine.session.stopped_mark import StoppedMark
from adbg.engine.session.told_later import Gatherer

if TYPE_CHECKING:
    from adbg.profiles.control import Profiling

ENDING = 2.0  # seconds that the end of the program waits for threads of adbg's
PATIENCE = 30.0  # seconds that a program waits for a front end that does not speak
LEAVING = 1.0  # seconds that a front end which hung up has to be gone
_current: Agent | None = None
_registered = False  # with ``os`` and ``atexit``, for all agents of this process
_behind: set[str] = set()  # frameworks whose own clean-up comes later than ``_at_exit``

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
        None when no front end listens, or another user does: the program runs undebugged, and says so in one line on
        stderr.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(config.socket)
        user = peer_of(sock)[1]
    except own(OSError) as error:
        sock.close()
        print(f"adbg: no front end at {config.socket} ({error.strerror}): running undebugged", file=sys.stderr)
        return None
    if user not in (os.geteuid(), None):
        sock.close()
        print(f"adbg: user {user} listens at {config.socket}, nothing was sent: running undebugged", file=sys.stderr)
        return None
    agent = Agent(config, main, backends, os.path.dirname(config.socket))
    if not main:
        hear_of_the_end(_child_ends)
    agent.serve(sock, hello=True)
    if not agent.configured.wait(patience):
        print(f"adbg: the front end said nothing for {patience:.0f} s: running on, nothing armed", file=sys.stderr)
    else:
        if agent.profiling is not None:
            agent.profiling.program_starts()
        agent.diagnosing.program_starts()
    return agent


class Agent:
    """One process's agent: the session, its observers, and the client that is connected. ``scratch``: the folder of a
    session that a front end made, "" for none; what would go beside the record lies there when nothing is recorded."""

    _ended = False  # the program's end was told of
    late = False  # the program ran before adbg came, and may be in the middle of anything

    def __init__(
        self, config: SessionConfig, main: bool = True, backends: Factories | None = None, scratch: str = ""
    ) -> None:
        global _current
        self.config = config
        self.main = main
        self.rank = environment_rank()
        self.configured = Flag()
        self.client: Client | None = None
        self._taking = threading.Lock()
        self._breakpointhook = sys.breakpointhook
        self._pid = os.getpid()
        self.session = session = Session(self, self.rank or 0)
        session.kept.limit = config.keep_gradients
        self.record = RunRecord(session, self, config, scratch)
        self.ledger = Ledger(self._new_group)
        self.record.opened = lambda recorder: self.ledger.record_into(recorder.collective)
        self.record.before_end = self.ledger.hand_over
        self.record.kept = lambda journal: self.ledger.keep_in(journal.collective)
        self.events = Events(self)
        self.digests = DigestMoments(session)
        self.profiling: Profiling | None = None  # from the first question about profiles on
        self.diagnosing = Diagnosing(self)
        self.captures = Captures(session, self.record.captures_folder)
        self.log_levels = LogLevels(Narrator(self.record.log), self.record.log_file, session.problems.problem)
        self.log_levels.tap.limit = config.record_limit // 2
        self.aids = AidSwitches(session)
        self.ranks = RankFacts(session)
        self.ranks.last_collective = lambda: latest(self.ledger)
        session.known_rank = self._known_rank
        node_log = NodeLog(self.log_levels, self.record.place_log)
        unmatched = UnmatchedBreakpoints(session, self)
        session.observe(Gatherer(session), Collector(lambda: session.notify))
        session.observe(LateFacts(self), self.ledger, self.captures, self.events, unmatched, self.log_levels)
        session.observe(node_log, self.aids, self.ranks, self.digests, StoppedMark())
        self.memory = MemoryWatch(session, self.event)
        if main:
            self.record.open()
        session.set_stacks(config.stacks)
        self._requests = Requests(self)
        self._watcher: importwatch.ImportWatcher | None = None
        _current = self
        _register_once()
        self._hook_breakpoint()
        if backends is None:
            self._watcher = importwatch.watch({name: self._importer(make) for name, make in REGISTRY.items()})
        else:
            for make in backends.values():
                self._add_backend(make)

    # ---- connection

    def serve(self, sock: socket.socket, hello: bool = False) -> Client:
        """Serve what is at the other end of ``sock``. ``hello``: we dialled, so this is the client, and is told who we
        are; who dialled us becomes the client by its first request (``take``)."""
        client = Client(sock, self._requests.handle, self._gone)
        if hello:
            self.client = client
            client.event(p.Hello(self.config.token, self.process_info()))
        client.connection.start()
        return client

    def take(self, client: Client) -> None:
        """It knows the token. Raises ProtocolError while there is another one."""
        with self._taking:
            other = self.client
            # the one before it may have hung up a moment ago
            if other is not None and other is not client and not other.over.wait(LEAVING):
                raise ProtocolError("another front end debugs this process", "end that one first: it has `detach`")
            self.client = client

    def _gone(self, client: Client) -> None:
        if self.client is client:
            self.client = None
            self.let_go()
        self.configured.set()

    def joined(self) -> None:
        """A client is here, and the hooks are in."""

    def let_go(self) -> None:
        """The client leaves, or is gone: the program runs on without it, and waits for another one."""
        self.session.detach()

    def event(self, body: Any, droppable: bool = False) -> None:
        """Send an event to the client, if there is one. Never blocks, never raises."""
        client = self.client
        if client is not None and client.initialized:
            client.event(body, droppable)

    def event_later(self, gather: Callable[[], Callable[[], Sequence[Any]]], calm: float = 0.0) -> None:
        client = self.client
        if client is not None and client.initialized:
            client.event_later(gather, calm)

    @property
    def connection(self) -> Connection | None:
        return self.client.connection if self.client is not None else None

    def look_again(self) -> None:
        """A spawned child may have learnt its rank since it began, and records from its first backward on."""
        rank = self._known_rank()
        if rank == self.rank and not self.record.due:
            return
        if rank != self.rank:
            self.session.change(self.session.table.learn_rank)
        self.rank, self.session.rank = rank, rank or 0
        if self.record.due:
            self.record.open()
        self.event(p.ProcessChanged(self.process_info()))

    def profile(self, request: p.Profile, point: PausedPoint | None = None) -> p.ProfileBody:
        """Answer ``adbg/profile``, with a ``point`` on the thread that stands there. The first one loads profilers."""
        if self.profiling is None:
            from adbg.profiles.control import Profiling

            self.profiling = Profiling(self.session, self.event, lambda: self.record.run_dir)
            self.session.observe(self.profiling)
        return self.profiling.answer(request, point)

    def _known_rank(self) -> int | None:
        known = [backend.rank() for backend in self.session.backends]
        return next((r for r in (*known, environment_rank()) if r is not None), self.rank)

    def _new_group(self, groups: Sequence[p.ProcessGroup]) -> None:
        """A process group is used for the first time: now this process has a rank, and something to be recorded."""
        self.look_again()
        self.ranks.groups.look_again()
        self.record.note_groups(groups, self.rank)

    def process_info(self) -> p.ProcessInfo:
        """Who this process is. ``argv`` as the interpreter was called; ``sys.argv`` may not be set yet at start."""
        return p.ProcessInfo(
            pid=os.getpid(),
            rank=self.rank,
            argv=list(sys.orig_argv),
            python=platform.python_version(),
            cwd=os.getcwd(),
            run_dir=self.config.run_dir if self.record.run_dir else "",
            frameworks=[_framework(backend) for backend in self.session.backends],
            main=self.main,
            parent=os.getppid(),
            host=os.uname().nodename,
        )

    # ---- frameworks

    def _importer(self, make: Callable[[], Backend]) -> Callable[[], None]:
        return lambda: self._add_backend(make)

    def _add_backend(self, make: Callable[[], Backend]) -> None:
        if os.getpid() != self._pid:
            return
        try:
            backend = make()
            backend.prepare(self.late)
            self.session.add_backend(backend)
        except own(Exception) as error:
            self.session.problems.defect("a framework cannot be debugged", error)
            return
        _stay_ahead(backend.name)
        framework = _framework(backend)
        self.event(p.FrameworkLoaded(framework))
        if self.record.recorder is not None:
            known = [dataclasses.asdict(_framework(b)) for b in self.session.backends]
            self.record.recorder.update_info(frameworks=known)

    # ---- breakpoint()

    def _hook_breakpoint(self) -> None:
        """The built-in ``breakpoint()`` stops here too; PYTHONBREAKPOINT, where set, decides as ever."""
        self._hook = None
        if not os.environ.get("PYTHONBREAKPOINT"):
            import adbg

            self._hook = sys.breakpointhook = adbg.breakpoint

    # ---- end

    def before_end(self, error: BaseException | None, interrupted: bool) -> None:
        """The program ends, by ``error`` where nothing caught that; ``interrupted``: by Ctrl-C."""
        if os.getpid() != self._pid or self.client is None or self._ended:
            return
        self._ended = True
        if self.profiling is not None:
            self.profiling.program_ends()
        self.diagnosing.program_ends(error, interrupted)
        try:
            stop_at_uncaught(self.session, error)
        except Exception as defect:
            self.session.problems.defect("the exception that ends the program cannot be shown", defect)

    def close(self) -> None:
        """The program ends: send and write what is still waiting (at most a second each)."""
        global _current
        if os.getpid() != self._pid:
            return
        if _current is self:
            _current = None
            sys.breakpointhook = self._breakpointhook
            without_filter()
        client = self.client
        if client is not None:
            for state in self.session.table.final():
                self.event(p.BreakpointChanged("changed", state))
            self.events.flush()
            self.event(p.ProgramEnds(sum(backend.iteration for backend in self.session.backends)))
        self.session.detach()  # before the connection goes: an observer may have something to say
        if client is not None:
            client.connection.flush(1.0)
            client.connection.close()
        self.record.close()

    def leave(self) -> None:
        """The program runs on without adbg: nothing of it may stay. Calls that run now take their hooks off as they
        end."""
        global _current
        parked = self.session.parked
        self.session.detach()
        if parked is not None:
            parked.over.wait(PATIENCE)
        if self._watcher is not None:
            self._watcher.leave()
        without_filter()
        if sys.breakpointhook == self._hook:
            sys.breakpointhook = self._breakpointhook
        self.record.close()
        for backend in self.session.backends:
            try:
                backend.leave()
            except own(Exception) as error:
                self.session.problems.defect(f"something of adbg's is left in {backend.name}", error)
        self.log_levels.leave()
        if _current is self:
            _current = None

    def abandon(self) -> None:
        """In a forked child: no threads, no client, nothing armed, nothing recorded. Where the front end was dialled,
        a child that trains dials it, too: one that came into a running process is told of no others."""
        client, self.client = self.client, None
        child = ForkedChild(self.config, _start_in_child) if client is not None and not self.late else None
        if client is not None:
            client.connection.abandon()
        sys.breakpointhook = self._breakpointhook
        without_filter()
        self.record.abandon()
        if self._watcher is not None:
            self._watcher.abandon()
        self.session.abandon(child.trains if child is not None else None)
        if child is not None:
            child.wait_for_imports(REGISTRY)


def _register_once() -> None:
    """Python takes back no ``register_at_fork`` and keeps the place of what was unregistered with ``atexit``: one entry
    each for the life of the process, which does nothing while there is no agent."""
    global _registered
    if not _registered:
        _registered = True
        os.register_at_fork(before=_forks, after_in_child=_forked)
        atexit.register(_close)
        atexit.register(_at_exit)
        _behind.update(name for name in REGISTRY if name in sys.modules)


def _stay_ahead(framework: str) -> None:
    """Be asked before the framework's own clean-up, which it registered while it was imported."""
    if framework not in _behind:
        _behind.add(framework)
        atexit.unregister(_at_exit)
        atexit.register(_at_exit)


def _close() -> None:
    if _current is not None:
        _current.close()
    own_threads.end_all(ENDING)  # also those of an agent that is leaving, or has left


def _at_exit() -> None:
    if _current is not None:
        _current.before_end(uncaught(), interrupted())


def _start_in_child(config: SessionConfig) -> None:
    start(config, main=False)


def _child_ends(error: BaseException | None, last: bool) -> None:
    if _current is not None:  # none in what this process forked itself, which has heard of this, too
        _current.before_end(error if isinstance(error, Exception) else None, isinstance(error, KeyboardInterrupt))
        if last:
            _close()


def _forks() -> None:
    if _current is not None:
        before_fork()


def _forked() -> None:
    global _current
    agent, _current = _current, None
    if agent is not None:
        agent.abandon()


def _framework(backend: Backend) -> p.Framework:
    return p.Framework(backend.name, backend.version, dataclasses.asdict(backend.capabilities))

"""The session: what is armed, who stops and why, and how the program continues.

Decisions and stops happen on the thread that reached a hook, under its turn (``parking``); ``set_*``, ``pause`` and
``detach`` are called from "adbg-reader". While no client is attached every hook passes through. Whoever listens to the
run is an ``Observer``: the session knows none of them.
"""

from __future__ import annotations

import collections
import itertools
import threading
import time
import types
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from adbg.engine.backends.base import Backend, BackwardCall, HookPlan
from adbg.engine.errors import AdbgError, CommandError, NotStopped
from adbg.engine.frames import forget_stack
from adbg.engine.outside import own, suppress
from adbg.engine.own_files import SHOWN
from adbg.engine.protocol import messages as p
from adbg.engine.session.breakpoints.grammar import parse_spec
from adbg.engine.session.breakpoints.matching import absent, name_test
from adbg.engine.session.breakpoints.table import BreakpointTable, Evaluate, Hit, HitEvent
from adbg.engine.session.hooks import BackendHooks
from adbg.engine.session.kept import KeptGradients
from adbg.engine.session.observers import Notify, Observer
from adbg.engine.session.parking import Parked, Turn
from adbg.engine.session.passed_over import PassedOver
from adbg.engine.session.problems import Outlet, Problems
from adbg.engine.session.running_call import Running
from adbg.engine.session.stepping import Goal, Kind, Place
from adbg.engine.session.stop_description import point_at_line, point_in_call
from adbg.engine.session.stop_point import PausedPoint
from adbg.engine.types import Evidence, Phase, StopReason

Why = tuple[StopReason, tuple[int, ...], str]
T = TypeVar("T")

PATIENCE = 1.0  # seconds that an expression may run on after the client that asked for it disconnected
_VALUES = frozenset((StopReason.NAN, StopReason.INF))


class Session:
    """One agent's debugging session.

    Attributes:
        problems: what goes wrong is said here.
        notify: the observers' methods, by event.
        attached: a client is there; while False all hooks pass through.
        deciding: something could stop a node now (a cheap test for hooks).
    """

    def __init__(self, outlet: Outlet, rank: int = 0) -> None:
        self._outlet = outlet
        self.problems = Problems(outlet)
        self.notify = Notify()
        self._observers: list[Observer] = []
        self.rank = rank
        self.known_rank: Callable[[], int | None] = lambda: None  # None: the rank is a guess so far
        self.table = BreakpointTable(lambda: self.known_rank())
        self.turn = Turn()
        self.parked: Parked | None = None
        self.kept = KeptGradients()
        self.shown: collections.deque[tuple[int, type, str]] = collections.deque(maxlen=100)  # exceptions stopped at
        self.goal: Goal | None = None
        self.until: BreakpointTable | None = None
        self.attached = self.deciding = False
        self.entry = self.pausing = False
        self.stacks = False
        self.backends: list[Backend] = []
        self.hooks: list[BackendHooks] = []
        self._passed_over = PassedOver()
        self._serials = itertools.count(1)
        self._guard = threading.RLock()  # of arming: the reader and a parked thread both change it

    # ------------------------------------------------------------ observers, backends and arming

    def observe(self, *observers: Observer) -> None:
        """Tell these of the run from now on, behind those that were added before."""
        with self._guard:
            self._observers += observers
            for observer in observers:
                for backend in self.backends:
                    observer.backend_added(backend)
            self.rearm()

    def unobserve(self, gone: Observer) -> None:
        """Tell it nothing any more. A list of its own: the one before may be gone through on this thread."""
        self.change(lambda: setattr(self, "_observers", [each for each in self._observers if each is not gone]))

    def add_backend(self, backend: Backend) -> None:
        """Take reports of ``backend``; it is installed while a client is attached."""
        with self._guard:
            self.backends.append(backend)
            self.hooks.append(BackendHooks(self, backend))
            if self.attached:
                backend.install(self.hooks[-1])
                backend.set_stacks(self.stacks)
            for observer in self._observers:
                observer.backend_added(backend)
            self.rearm()

    def attach(self) -> None:
        """A client is there. The stop that an earlier one left behind is over first."""
        parked = self.parked
        if parked is not None:
            parked.over.wait(5 * PATIENCE)
        with self._guard:
            for backend, hooks in zip(self.backends, self.hooks):
                try:
                    backend.install(hooks)
                    backend.set_stacks(self.stacks)
                except own(Exception) as error:
                    self.problems.defect(f"{backend.name} cannot be hooked", error)
            self.attached = True
            self.rearm()

    def detach(self) -> None:
        """The client disconnected: nothing stops any more, every hook comes off, the parked thread continues."""
        with self._guard:
            if not self.attached:
                return
            self.attached = False
            self.goal = self.until = None
            self.entry = self.pausing = False
            self.table = BreakpointTable(lambda: self.known_rank())
            SHOWN.set(False)
            self.kept.clear()
            for observer in self._observers:
                try:
                    observer.detach()
                except own(Exception) as error:
                    self.problems.defect("something that the client asked for is still there", error)
            self.rearm()
            for backend, hooks in zip(self.backends, self.hooks):
                hooks.forget()
                try:
                    backend.set_stacks(False)
                    backend.uninstall()
                except own(Exception) as error:
                    self.problems.defect(f"{backend.name} keeps a hook", error)
        parked = self.parked
        if parked is not None:
            parked.let_go(PATIENCE)

    def abandon(self, trains: Callable[[], None] | None = None) -> None:
        """In a forked child: nothing armed, nobody notified. Locks are left alone: their holders are not here.
        ``trains`` as in ``Backend.abandon``."""
        self.attached = self.deciding = False
        self.parked = None
        self.notify = Notify()
        self.turn.quiet = ()
        for observer in self._observers:
            with suppress(Exception):
                observer.abandon()
        for backend in self.backends:
            with suppress(Exception):
                backend.abandon(trains)
        self._observers.clear()

    def change(self, what: Callable[[], T]) -> T:
        """``what()``, a change of what could stop or of what an observer listens to, and ``rearm`` after it."""
        with self._guard:
            result = what()
            self.rearm()
            return result

    def rearm(self) -> None:
        """Work out whom to tell and what the backends must report, after any change of what could stop."""
        with self._guard:
            self.deciding = (
                self.table.armed or self.goal is not None or self.until is not None or self.pausing or self.entry
            )
            self.notify = Notify(self._observers)
            self.turn.quiet = self.notify.quiet
            wanted = any(observer.arms for observer in self._observers)
            armed = self.attached and (self.deciding or wanted)
            special = self.goal or self.until or self.pausing or self.entry or wanted
            self._passed_over.look_for(*self.table.passing(self.attached and not special))
            for backend in self.backends:
                backend.arm(armed)

    def hook(self, running: Running) -> bool:
        """Have hooked in a call what is asked for. On its thread, or on one parked inside it. Returns whether all its
        gradients are looked at from now on, for values that are not finite."""
        call = running.call
        if self.pausing:
            call.hook(HookPlan(every=True))
        else:
            for ask in self.notify.plan:
                asked = ask(running)
                if asked is not None:
                    call.hook(asked)
                    if asked.every and asked.post:  # nothing more can be asked for
                        break
        goal = self.goal
        if goal is not None:
            wanted = goal.hooking(running.place(Phase.BEGIN))
            if wanted.every or wanted.indices:
                call.hook(HookPlan(every=wanted.every, indices=wanted.indices, contributions=True))
        plans = [table.plan(call.number) for table in (self.table, self.until) if table is not None]
        hooked = max([call.hook(plan) for plan in plans if not plan.empty], default=0)
        if hooked:
            running.may_hit = name_test(plans)
        if not hooked or call.only_screened:
            self._passed_over.learn(call.alike, plans[0])
        return any(plan.screen for plan in plans)

    def passes_over(self, kinds: frozenset[str], alike: Hashable, watched: bool) -> bool:
        """See ``HookSink``. Not while a thread is stopped: another one that comes to a backward waits for it."""
        passed = self._passed_over.possible(watched)
        if not passed or self.turn.taken or any(needs() for needs in self.notify.needs_calls):
            return False
        return self._passed_over.holds(kinds, alike)

    def passes(self, call: BackwardCall) -> bool:
        """Whether a hook passes through on this thread: it is the one that holds the turn, or an expression is being
        evaluated and its backward brought the engine here, on a thread of its own."""
        if self.turn.mine():
            return True
        parked = self.parked
        if parked is None or not parked.busy:
            return False
        return call.parent is not None or any(call is state.call for state in parked.point.calls)

    def next_serial(self) -> int:
        return next(self._serials)

    # ------------------------------------------------------------ deciding

    def check(self, event: HitEvent, condition: Evaluate) -> list[Hit]:
        """Hits of the breakpoints; those of ``until`` have the reason step and no id."""
        hits = self.table.check(event, condition)
        if self.until is not None:
            found = self.until.check(event, condition)
            hits += [Hit(0, hit.spec, StopReason.STEP, error=hit.error) for hit in found]
        return hits

    def watches_values(self, reason: StopReason) -> bool:
        return reason in _VALUES

    def decide(
        self, running: Running, phase: Phase, key: int | None, hits: list[Hit], facts: Callable[[], str]
    ) -> Why | None:
        """Why the thread stops here, or None. Tracepoints are reported on the way, with ``facts``."""
        stopping = [hit for hit in hits if not hit.trace]
        for hit in hits:
            if hit.trace:
                self._trace(running, phase, key, hit, facts())
        if stopping:
            ids = tuple(hit.id for hit in stopping if hit.id)
            for hit in stopping:
                if hit.temporary and hit.id:
                    state = p.BreakpointState(hit.id, True, spec=hit.spec, hits=1, enabled=False, temporary=True)
                    self._outlet.event(p.BreakpointChanged("removed", state))
            return stopping[0].reason, ids, "; ".join(hit.error for hit in stopping if hit.error)
        if phase is Phase.BEGIN and self.entry:
            return StopReason.ENTRY, (), ""
        if self.goal is not None and phase is not Phase.ERROR and self.goal.reached(running.place(phase, key)):
            return StopReason.STEP, (), ""
        if self.pausing and phase is Phase.BEFORE:
            return StopReason.PAUSE, (), ""
        return None

    def _trace(self, running: Running, phase: Phase, key: int | None, hit: Hit, facts: str) -> None:
        point = self.point(running, hit.reason, phase, key, (hit.id,), hit.error, None)
        node = point.stop.node
        where = f"{phase.value} {node.unique_name}" if node else f"backward {phase.value}"
        text = ": ".join(part for part in (where, hit.error or facts) if part)
        for tell in self.notify.trace:
            tell(hit.id, text, point)

    def point(
        self,
        running: Running,
        reason: StopReason,
        phase: Phase,
        key: int | None,
        ids: tuple[int, ...],
        message: str,
        elapsed: float | None,
        evidence: tuple[Evidence, ...] = (),
    ) -> PausedPoint:
        """A place in a running call, described."""
        return point_in_call(running, self.rank, reason, phase, key, ids, message, elapsed, evidence)

    # ------------------------------------------------------------ stopping

    def park(self, point: PausedPoint, running: Running | None) -> None:
        """Announce the stop and stay until asked to continue. The caller holds the turn."""
        self.goal = self.until = None
        self.entry = self.pausing = False
        begun = time.perf_counter_ns()
        key = point.key if point.key is not None else point.around
        place = running.place(point.stop.phase, key) if running else Place(Phase.PYTHON, thread=point.thread)
        parked = Parked(point, place, running)
        resumed = False
        point.kept = self.kept
        chain = running.chain if running is not None else ()
        for around in chain:
            around.state.stopped_ns = begun
        try:
            self.parked = parked
            for tell in self.notify.before_stop:
                tell()
            changed = self.table.take_changed()
            for tell in self.notify.stopped:
                tell(point, changed)
            if not self.attached:  # the client disconnected just now
                parked.resume()
            parked.stay()
            resumed = True
            if running is not None and self.attached:
                self.kept.take(point)
                for tell in self.notify.resumed:
                    tell(running)
        finally:
            self.parked = None
            parked.close()
            if parked.answers is not None:
                forget_stack()
            spent = time.perf_counter_ns() - begun
            if running is not None:
                running.call.stood(spent)
            for around in chain:
                around.state.stopped_ns = 0
                around.state.parked_ns += spent
            if not resumed:
                for tell in self.notify.continued:
                    tell(point.thread)
                self.rearm()
            for over in self.notify.stop_over:
                over()

    def break_at(self, frame: types.FrameType) -> None:
        """``adbg.breakpoint()`` was called in ``frame``: stop at that line, unless no client is there."""
        if self.attached and not self.turn.mine():
            self.turn.take(self._stop_at, frame)

    def _stop_at(self, frame: types.FrameType) -> None:
        if self.attached:
            running, key = next(filter(None, (hooks.at_hand() for hooks in self.hooks)), (None, None))
            self.park(point_at_line(frame, self.backends, running, key, self.rank, self.problems.defect), running)

    # ------------------------------------------------------------ jobs at a stop, and its end

    def ask(self, job: Callable[[Parked], None], refuse: Callable[[AdbgError], None]) -> None:
        """Have the parked thread run ``job``; ``refuse`` hears NotStopped when there is none. One of them is called."""
        parked = self.parked

        def run() -> None:
            if self.parked is parked and parked is not None:
                job(parked)
            else:
                refuse(_running())

        if parked is None or not parked.post(run):
            refuse(_running())

    def resume(self, parked: Parked, kind: Kind | None, spec: str, then: Callable[[], None]) -> None:
        """Set what comes next, and continue; in a job on the parked thread. ``then`` is called when the stop is over.

        Raises:
            CommandError: nothing to finish here, a bad spec, or one that matches no node here; the thread stays.
        """
        place = parked.place
        until = None
        if kind is Kind.FINISH and place.serial == 0:
            raise CommandError("no backward runs here, so there is none to finish", "step goes to the next node")
        if kind is Kind.UNTIL:
            until = BreakpointTable()
            until.set_filters([])
            (state,) = until.replace([p.BreakpointRequest(name=spec, id=1, temporary=True)])
            if not state.verified:
                raise CommandError(state.message)
            running = parked.running  # at a Python line the backward is not known yet
            missing = absent(parse_spec(spec), [outer.call for outer in running.chain]) if running is not None else ""
            if missing:
                force = f"`tbreak {spec}` and `continue` wait for one in a nested or later backward"
                raise CommandError(missing, force)
        with self._guard:
            if self.attached:
                self.until = until
                self.goal = Goal(kind, place) if kind is not None else None
                self.rearm()
        if parked.running is not None:
            ended = 1 if place.phase in (Phase.END, Phase.ERROR) else 0
            for running in parked.running.chain[: len(parked.running.chain) - ended]:
                self.hook(running)
        parked.leave(then)

    def pause(self, on: bool = True) -> None:
        """Stop at the next node of any thread; ``on`` False: no more, if it has not stopped yet."""
        with self._guard:
            if on and self.parked is not None:
                raise CommandError("the program is stopped already", "look around, or continue")
            self.pausing = on
            self.rearm()

    def set_breakpoints(self, requests: Sequence[p.BreakpointRequest]) -> list[p.BreakpointState]:
        return self.change(lambda: self.table.replace(requests))

    def set_filters(self, filters: Sequence[str]) -> list[p.BreakpointState]:
        return self.change(lambda: self.table.set_filters(filters))

    def states_after(self, asked: Sequence[p.BreakpointState]) -> list[p.BreakpointState]:
        """``asked`` as they are now, bad specs included."""
        now = {state.id: state for state in self.table.states()}
        return [now.get(state.id, state) for state in asked]

    def stop_on_entry(self, on: bool) -> None:
        """Stop at the begin of the next backward call."""
        self.change(lambda: setattr(self, "entry", on))

    def set_stacks(self, on: bool) -> None:
        """Forward stacks and module paths of the nodes made from now on."""
        with self._guard:
            self.stacks = on
            if self.attached:
                for backend in self.backends:
                    backend.set_stacks(on)


def _running() -> NotStopped:
    return NotStopped("the program is running", "pause, or set a breakpoint and wait for the stop")

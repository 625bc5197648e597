"""One backend's hooks: what a framework reports, told to the observers and made into decisions of the session.

Runs on autograd threads. Every method is called between two nodes of a training job: an all-hooked node costs a few
microseconds here. Nothing but what the user asked for (KeyboardInterrupt at a stop) is ever raised into the engine.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import threading
import time
from collections.abc import Hashable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from adbg.engine.backends.base import Backend, BackwardCall, Hidden
from adbg.engine.graph.nonfinite import count_nonfinite, evidence_at, total
from adbg.engine.outside import by_handler, own
from adbg.engine.python.expressions import evaluate, node_namespace
from adbg.engine.python.user_code import failed_frame, user_frame
from adbg.engine.session.breakpoints.table import HitEvent
from adbg.engine.session.post_mortem import Raised, error_text, named
from adbg.engine.session.running_call import Running, Slots, Visit
from adbg.engine.session.slot_text import gradients_text, slot_text
from adbg.engine.session.stop_point import Ran
from adbg.engine.session.told_later import ToldLater
from adbg.engine.types import BriefCall, BriefRun, Evidence, Phase

if TYPE_CHECKING:
    from adbg.engine.session.session import Session


_AT_NO_NODE: tuple[int | None, int, Slots, Slots | None, float | None] = (None, 0, (), None, None)


class BackendHooks(ToldLater):
    """The ``HookSink`` that the session installs in ``backend``."""

    def __init__(self, session: Session, backend: Backend) -> None:
        super().__init__(session)
        self._backend = backend
        self._running: dict[int, Running] = {}  # by id of the call, between its begin and its end
        # Calls that were told in short, with the time of their begin, by number while they run.
        self._brief: dict[int, tuple[BriefCall, float]] = {}
        # Exceptions that were shown already: iteration (addresses are used again), address, type, text.
        self._raised = Raised()

    # ---- HookSink

    def backward_begin(self, call: BackwardCall) -> None:
        session = self._session
        if not session.attached or session.passes(call):
            return
        try:
            session.turn.take(self._backward_begin, call)
        except own(Exception) as error:
            session.problems.defect("a hook failed and was passed over", error)

    def node_begin(self, call: BackwardCall, key: int, grad_outputs: Slots) -> Slots | None:
        session = self._session
        if not session.attached or session.passes(call):
            return None
        try:
            return session.turn.take(self._node_begin, call, key, grad_outputs)
        except own(Exception) as error:
            session.problems.defect("a hook failed and was passed over", error)
            return None

    def node_end(self, call: BackwardCall, key: int, grad_inputs: Slots, grad_outputs: Slots) -> Slots | None:
        now = perf_counter_ns()
        session = self._session
        if not session.attached or session.passes(call):
            return None
        try:
            return session.turn.take(self._node_end, call, key, grad_inputs, grad_outputs, now)
        except own(Exception) as error:
            session.problems.defect("a hook failed and was passed over", error)
            return None

    def backward_end(self, call: BackwardCall, error: BaseException | None) -> None:
        now = perf_counter_ns()
        session = self._session
        if not session.attached or session.passes(call):
            self._running.pop(id(call), None)
            session.kept.drop(call)
            return
        try:
            session.turn.take(self._backward_end, call, error, now)
        except own(Exception) as problem:
            session.problems.defect("a hook failed and was passed over", problem)
        finally:
            self._running.pop(id(call), None)
            session.kept.drop(call)
            if call.depth == 0:
                self._raised.clear()

    def passes_over(self, kinds: frozenset[str], alike: Hashable = None, watched: bool = False) -> bool:
        return self._session.passes_over(kinds, alike, watched)

    def brief_begin(self, call: BriefCall) -> None:
        session = self._session
        try:
            if session.attached:
                for tell in session.notify.before_backward:
                    tell()
                self._brief[call.number] = (call, time.time())
                for begin in session.notify.brief_begin:
                    begin(call)
        except own(Exception) as error:
            session.problems.defect("the begin of a backward was not reported", error)

    def brief_end(self, number: int, us: float, error: BaseException | None) -> None:
        session = self._session
        try:
            if session.attached:
                found = self._brief.pop(number, None)
                if found is not None:  # else it was looked into, and its end is told already
                    run = BriefRun(*found, False, us, error_text(error) if error is not None else "")
                    for tell in session.notify.brief_end:
                        tell(run)
        except own(Exception) as problem:  # also of the program's own exception, whose text is asked for
            session.problems.defect("the end of a backward was not reported", problem)

    def node_warning(self, call: BackwardCall, key: int, grad_outputs: Slots, text: str) -> Slots | None:
        """A node is about to do harm that no exception will tell of (Paddle dies of some undefined gradients): the
        ``error`` breakpoint stops before it. Called for calls that were not armed too."""
        session = self._session
        if not session.attached or session.passes(call):
            return None
        try:
            return session.turn.take(self._warned, call, key, grad_outputs, text)
        except own(Exception) as error:
            session.problems.defect("a hook failed and was passed over", error)
            return None

    def _warned(self, call: BackwardCall, key: int, outs: Slots, text: str) -> Slots | None:
        session = self._session
        if not session.attached:
            return None
        running = self._running.get(id(call)) or self._enter(call)
        index = running.state.position = running.state.index_of(key)
        for tell in session.notify.node_warned:
            tell(Visit(running, key, index, outs, None, False))
        frame = user_frame(sys._getframe())
        hits = session.check(
            HitEvent(Phase.ERROR, call.number),
            lambda condition: evaluate(condition, node_namespace(self._backend, call, key, index, outs, None, frame)),
        )
        why = session.decide(running, Phase.ERROR, key, hits, lambda: text)
        if why is None:
            return None
        point = session.point(running, why[0], Phase.BEFORE, key, why[1], text, None)
        point.grad_outputs = list(outs)
        point.frame = frame
        session.park(point, running)
        return tuple(point.grad_outputs) if point.edited else None

    def innermost(self, thread: int) -> Running | None:
        """The innermost call that ``thread`` began and has not ended."""
        mine = [running for running in list(self._running.values()) if running.call.thread == thread]
        return mine[-1] if mine else None

    def at_hand(self) -> tuple[Running, int | None] | None:
        """The call in whose node this thread runs Python code, and that node. Where nothing was armed, its begin and
        those around it are reported now."""
        found = self._backend.at_hand()
        if found is None:
            running = self.innermost(threading.get_ident())
            return None if running is None else (running, None)
        call, key = found
        known = set(self._running)
        entered = self._running.get(id(call)) or self._enter(call)
        for around in [each for each in entered.chain if id(each.call) not in known]:
            if around.call.since:  # what its nodes did is written down: whoever wants it has its say
                self._session.hook(around)
            self._tell_begin(around)
        if key is not None:
            entered.state.position = entered.state.index_of(key)
        return entered, key

    def forget(self) -> None:
        """The client disconnected: what runs now is not followed any more."""
        self._running.clear()
        self._brief.clear()
        self._raised.clear()

    # ---- what happens at each

    def _enter(self, call: BackwardCall) -> Running:
        outer = None
        if call.parent is not None:
            outer = self._running.get(id(call.parent))
            if outer is None:  # begun before anything was armed
                outer = self._enter(call.parent)
        else:  # an outermost call: whatever this thread began earlier is over, also where its end was not reported
            for key in [k for k, r in list(self._running.items()) if r.call.thread == call.thread]:
                self._session.kept.drop(self._running.pop(key).call)
        brief = self._brief.get(call.number)
        if brief is not None:
            for tell in self._session.notify.looked_into:
                tell(brief[0])
        running = self._running[id(call)] = Running(
            self._backend, call, self._session.next_serial(), outer, call.since or perf_counter_ns()
        )
        return running

    def _backward_begin(self, call: BackwardCall) -> None:
        session = self._session
        if session.attached:
            running = self._running.get(id(call)) or self._enter(call)
            if session.turn.waited_ns and len(running.chain) > 1:
                running.chain[-2].wait(session.turn.waited_ns)
            running.screened = session.hook(running)
            if call.truncated:
                session.problems.cut_graph(call.count())
            self._tell_begin(running)
            self._arrive(running, Phase.BEGIN)

    def _tell_begin(self, running: Running) -> None:
        session = self._session
        if running.call.depth == 0:
            for tell in session.notify.before_backward:
                tell()
        self._brief.pop(running.call.number, None)  # its end is told by backward_end
        for begin in session.notify.backward_begin:
            begin(running)

    def _node_begin(self, call: BackwardCall, key: int, outs: Slots) -> Slots | None:
        session = self._session
        running = self._running.get(id(call))
        if running is None or not session.attached:
            return None
        state = running.state
        if session.turn.waited_ns:
            running.wait(session.turn.waited_ns)
        index = state.position = state.index_of(key)
        visit = Visit(running, key, index, outs, *self._measure(outs))
        for tell in session.notify.node_begin:
            tell(visit)
        replaced = self._arrive(running, Phase.BEFORE, visit) if session.deciding else None
        visit.outs = ()  # kept alive, a gradient could not be changed in place by the node
        visit.started_ns = perf_counter_ns() - state.parked_ns
        running.begun[key] = visit
        for tell in session.notify.node_enter:
            tell(visit)
        return replaced

    def _node_end(self, call: BackwardCall, key: int, ins: Slots, outs: Slots, now: int) -> Slots | None:
        session = self._session
        running = self._running.get(id(call))
        if running is None or not session.attached:
            return None
        state = running.state
        visit = running.begun.pop(key, None)
        if visit is None:
            visit = Visit(running, key, state.index_of(key), outs, *self._measure(outs))
        else:
            visit.us = (now - state.parked_ns - visit.started_ns) / 1000
            visit.outs = outs
        if session.turn.waited_ns:  # from ``now`` on: it is no part of this node's time
            running.wait(session.turn.waited_ns)
        visit.ins = ins
        for tell in session.notify.node_leave:
            tell(visit)
        state.position = visit.index
        state.ran[key] = ran = Ran(visit.us, visit.norm, visit.nonfinite)
        if session.goal is not None:  # somebody looks at every node: keep what left it, as text
            ran.grad_inputs = tuple(slot_text(self._backend, value) for value in ins)
            if not running.screened:
                running.spoil(key, count_nonfinite(self._backend, ins))
        for tell in session.notify.node_end:
            tell(visit)
        replaced = self._arrive(running, Phase.AFTER, visit) if session.deciding else None
        if replaced is not None:
            visit.ins = replaced
        for tell in session.notify.node_passed:
            tell(visit)
        return replaced

    def _backward_end(self, call: BackwardCall, error: BaseException | None, now: int) -> None:
        session = self._session
        if not session.attached:
            return
        running = self._running.get(id(call))
        # What a signal handler of the program's raised is no failure of this backward.
        fresh = (
            isinstance(error, Exception)
            and not by_handler(error)
            and not self._raised.again(call.original_error(error), self._backend.iteration)
        )
        if running is None:  # unarmed until now: only an exception is news
            if fresh and error is not None:
                self._failed(self._enter(call), error)
            return
        us = running.state.ran_ns(now) / 1000
        if session.turn.waited_ns:
            running.wait(session.turn.waited_ns)
        if fresh and error is not None:
            self._failed(running, error)
        self._arrive(running, Phase.END)
        for release in session.notify.release:
            release(running, error)
        if call.number in self._brief:  # looked into, but not from its begin on
            self.brief_end(call.number, us, error)
            return
        for tell in session.notify.backward_end:
            tell(running, us, error)

    # ---- deciding

    def _arrive(self, running: Running, phase: Phase, visit: Visit | None = None) -> Slots | None:
        """Decide; park when it is a stop. Returns the edited gradients."""
        session = self._session
        call, backend = running.call, self._backend
        key, index, outs, ins, elapsed = _AT_NO_NODE
        if visit is not None:
            key, index, outs, ins, elapsed = visit.key, visit.index, visit.outs, visit.ins, visit.us
        hits = []
        checked = (outs if phase is Phase.BEFORE else ins) or ()
        if session.table.armed or session.until is not None:
            named = key is None or running.may_hit is None or running.may_hit(call.name(key))
            if not named and session.goal is None and not session.pausing:
                return None
            event = HitEvent(
                phase,
                call.number,
                index,
                node=(lambda: call.describe(key)) if key is not None else None,
                stack=(lambda: call.forward_stack(key)[0]) if key is not None else (),
                nonfinite=lambda: total(count_nonfinite(backend, checked)),
                inherited=lambda: self._inherited(running, phase, key, outs),
                family=running.family,
                leaves=running.leaves,
                key=key,
            )

            def condition(text: str) -> Any:
                names = node_namespace(backend, call, key, index, outs, ins, lambda: user_frame(sys._getframe()))
                return evaluate(text, names)

            hits = session.check(event, condition)
            if key is not None and phase is Phase.AFTER and (event.counted or running.screened):
                running.spoil(key, count_nonfinite(backend, checked) if any(event.nonfinite) else ())
            elif key is not None and phase is Phase.BEFORE and event.counted:
                running.receive(key, event.nonfinite)
        why = session.decide(running, phase, key, hits, lambda: gradients_text(backend, phase, checked, outs))
        if why is None:
            return None
        reason, ids, message = why
        evidence: tuple[Evidence, ...] = ()
        if visit is not None and (session.watches_values(reason) or visit.nonfinite or running.spoilt):
            evidence = self._evidence(running, visit.key, outs, ins)
        point = session.point(running, reason, phase, key, ids, message, elapsed, evidence)
        point.grad_outputs = list(outs) if key is not None else None
        point.grad_inputs = list(ins) if ins is not None else None
        point.frame = user_frame(sys._getframe())
        session.park(point, running)
        if not point.edited:
            return None
        edited = point.grad_outputs if phase is Phase.BEFORE else point.grad_inputs
        if edited is None:
            return None
        if key is not None and phase is Phase.AFTER:
            running.spoil(key, count_nonfinite(backend, edited))
        return tuple(edited)

    def _inherited(self, running: Running, phase: Phase, key: int | None, outs: Slots) -> tuple[int, int]:
        """(NaN, infinite) elements among what the current gradients were made of."""
        if key is None:
            return 0, 0
        if phase is Phase.AFTER and not any(isinstance(value, Hidden) for value in outs):
            return total([*count_nonfinite(self._backend, outs), running.given_inside(key)])
        return total([running.given(key), running.given_inside(key), running.given_from_outside(key)])

    def _evidence(self, running: Running, key: int, outs: Slots, ins: Slots | None) -> tuple[Evidence, ...]:
        given = running.given(key)
        return evidence_at(self._backend, running.call, key, outs, ins or (), given, running.screened, running.spoilt)

    def _failed(self, running: Running, error: BaseException) -> None:
        """An exception leaves a call: stop with the node that failed, once, in the innermost call."""
        session = self._session
        call = running.call
        key, evidence = next(iter(call.failed_nodes(error)), (None, ""))
        frame = failed_frame(call.original_error(error)) or failed_frame(error) or user_frame(sys._getframe())

        def condition(text: str) -> Any:
            index = running.state.index_of(key) if key is not None else 0
            return evaluate(text, node_namespace(self._backend, call, key, index, (), None, frame))

        hits = session.check(HitEvent(Phase.ERROR, call.number), condition)
        text = call.error_text(error)
        why = session.decide(running, Phase.ERROR, key, hits, lambda: text)
        if why is None:
            return
        reason, ids, _ = why
        if key is not None:
            running.state.position = running.state.index_of(key)
        why_it = evidence if evidence and evidence not in text else ""
        message = f"{text} [{why_it}]" if why_it else text
        session.shown.extend(named(each, self._backend) for each in (error, call.original_error(error)))
        point = session.point(running, reason, Phase.ERROR, key, ids, message, None)
        point.stop = dataclasses.replace(point.stop, why=why_it)
        point.error = error
        point.frame = frame
        flowed = call.flowed_in(key, error) if key is not None else None
        point.grad_outputs = list(flowed) if flowed is not None else None
        session.park(point, running)

    def _measure(self, outs: Slots) -> tuple[float | None, bool]:
        """Norm of the first defined incoming gradient, and whether any element of it is not finite."""
        for value in outs if self._session.notify.measures else ():
            if isinstance(value, Hidden):
                return None, False
            if value is not None:
                try:
                    norm = self._backend.norm(value)
                except own(Exception):  # sparse, quantised: no figure, no harm
                    return None, False
                return norm, not math.isfinite(norm) and any(self._backend.nonfinite(value))
        return None, False

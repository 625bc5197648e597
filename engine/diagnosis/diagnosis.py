"""Diagnosis of this process: the detectors, which taps are in for them, and when they are asked.

Optimistic watch, precise look: cheap taps are in always; operators, hooks and every gradient are watched in sampled
iterations (1 to 3, then every power of two from 8 on, some round numbers, and the first three after a new optimizer),
or in each one when it is asked to look deep.

What was switched on while the program runs begins with the end of the next outermost backward: taps are put in between
two statements of the program's, on its own thread, and what detectors are told begins with a whole iteration.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator
from threading import get_ident
from typing import Any

from adbg.engine.backends.base import Backend, HookPlan, Need, Observation, Watcher
from adbg.engine.diagnosis.detector import Detector, known
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.sampling import Sampling
from adbg.engine.outside import own
from adbg.engine.protocol import messages as p
from adbg.engine.session.observers import Observer
from adbg.engine.session.post_mortem import named
from adbg.engine.session.running_call import Running, Visit
from adbg.engine.session.session import Session
from adbg.engine.session.stop_point import PausedPoint

_WATCHED = tuple(name for name, each in vars(Watcher).items() if not name.startswith("_") and callable(each))
_TOLD = (
    "backward_begin", "node_begin", "node_end", "backward_end", "iteration_end", "uncaught", "at_stop", "at_error",
    "end",
)  # fmt: skip
_ASKED = ("at_stop", "at_error", "uncaught")  # told of what nobody watched, too, where somebody asks at a stop
_RESULTS = ("not applicable", "clear", "could not look", "finding")  # the last one counts, of several frameworks


def merged(rows: Iterable[p.Examined]) -> list[p.Examined]:
    """One row a kind: several detectors, or frameworks, may look for the same."""
    found: dict[str, p.Examined] = {}
    for row in rows:
        before = found.get(row.kind)
        if before is None or _RESULTS.index(row.result) > _RESULTS.index(before.result):
            found[row.kind] = row
    return list(found.values())


class Diagnosis(Observer):
    """The detectors of this process, over every framework that it imports. ``send`` takes events for the front end.

    Args:
        only: kinds of findings, empty for all.
        iterations: nothing is watched after so many iterations of the loop and what follows the last; 0: no end.
        running: the program is under way, and this is not one of its threads.
    """

    def __init__(
        self,
        session: Session,
        send: Callable[[Any], None],
        only: Collection[str] = (),
        deep: bool = False,
        iterations: int = 0,
        running: bool = False,
    ) -> None:
        self._session = session
        self._send = send
        self.deep = deep
        self.iterations = iterations
        self.only = frozenset(only)
        self._classes = [each for each in known() if not only or set(each.kinds) & self.only]
        self._of: dict[str, _OfBackend] = {}
        self._late = running
        self._stopping = False
        self._over = False
        self._missed: object = None  # what names an exception of a backward that nobody watched

    @property
    def arms(self) -> bool:
        return not self._over

    @property
    def active(self) -> bool:
        return not self._over

    @property
    def stopping(self) -> bool:
        """It ends with the next outermost backward."""
        return self._stopping and not self._over

    @property
    def iteration(self) -> int:
        """Iterations of the loop that were watched."""
        return sum(of.facts.rounds.count for of in list(self._of.values()))

    def look_closely(self) -> None:
        """In every iteration, from the next on. Any thread."""
        self.deep = True
        for of in list(self._of.values()):
            of.facts.deep = True

    def began(self) -> None:
        """It is an observer now: what is imported from here on is watched from its import on."""
        self._late = False

    def backend_added(self, backend: Backend) -> None:
        of = _OfBackend(Facts(backend, self._found, self.deep, self._send), self._classes, self._failed)
        self._of[backend.name] = of
        if not self._late:
            of.watch()

    def _found(self, finding: p.Finding) -> None:
        if not self.only or finding.kind in self.only:
            self._send(p.Found(finding))

    def _failed(self, which: str, error: BaseException) -> None:
        self._session.problems.defect(f"diagnosis of {which} is off", error)

    def findings(self) -> list[p.Finding]:
        every = [finding for each in list(self._of.values()) for finding in list(each.facts.findings.values())]
        return [finding for finding in every if not self.only or finding.kind in self.only]

    def examined(self) -> list[p.Examined]:
        rows = merged(row for each in list(self._of.values()) for row in each.examined())
        return [row for row in rows if not self.only or row.kind in self.only]

    # ---- backward calls

    def plan(self, running: Running) -> HookPlan | None:
        of = self._of.get(running.backend.name)
        return of.plan() if of is not None else None

    def backward_begin(self, running: Running) -> None:
        of = self._of.get(running.backend.name)
        if of is None or of.at_work:
            return
        if len(running.chain) == 1 and of.next_iteration(running, self.iterations):
            of.facts.at_backward = True
            self._close([of])
        of.tell("backward_begin", running)

    def node_begin(self, visit: Visit) -> None:
        self._of[visit.running.backend.name].tell("node_begin", visit)

    def node_end(self, visit: Visit) -> None:
        self._of[visit.running.backend.name].tell("node_end", visit)

    def backward_end(self, running: Running, us: float, error: BaseException | None) -> None:
        of = self._of.get(running.backend.name)
        if of is None or of.at_work:
            return
        if error is not None and not of.watching:
            self._missed = named(error, running.backend)
        of.tell("backward_end", running, error)
        if len(running.chain) == 1:
            if self._stopping:
                self._close(list(self._of.values()))
            else:
                of.ended()

    # ---- moments

    def look(self, point: PausedPoint) -> None:
        """Somebody asks at a stop."""
        for of in self._of.values():
            of.tell("at_stop", point)
            if point.error is None:
                continue
            if not point.calls:
                of.tell("uncaught", point.error)
            elif point.backend is of.facts.backend:
                of.tell("at_error", _running_at(point), point.error)

    def stop(self, here: bool) -> None:
        """Switch it off: now where this is a thread of the program (``here``), else as its next backward ends."""
        if here:
            self._close(list(self._of.values()))
        else:
            self._stopping = True

    def program_starts(self) -> None:
        """On the thread that will run the script: what is imported already is watched from here on."""
        for of in self._of.values():
            if not of.watching and not self._over:
                of.watch()

    def program_ends(self, error: BaseException | None, interrupted: bool = False) -> None:
        """On the main thread, ``error`` if that ends it; ``interrupted``: Ctrl-C does. Once."""
        if error is not None and not self._over:
            for of in self._of.values():
                of.facts.cut_short = True
                if of.watching and named(error, of.facts.backend) != self._missed:
                    of.tell("uncaught", error)
        self._close(list(self._of.values()), True, interrupted)

    def _close(self, which: Iterable[_OfBackend], last: bool = False, interrupted: bool = False) -> None:
        """On a thread of the program. Said where it was the last, of several frameworks."""
        for of in which:
            of.facts.cut_short = of.facts.cut_short or interrupted or not last
            of.close()
        if self._over or (not last and any(of.watching for of in self._of.values())):
            return
        self._over = True
        self._send(p.DiagnosisEnds(self.examined(), self.iteration, interrupted))
        if not last:
            self._session.change(lambda: None)

    def detach(self) -> None:
        if not self._over:
            self._over = True
            for of in self._of.values():
                of.leave()

    def abandon(self) -> None:
        self.detach()


def _running_at(point: PausedPoint) -> Running:
    """The call at which a thread is parked, as detectors are told of calls."""
    running: Running | None = None
    for serial, state in enumerate(point.calls):
        assert point.backend is not None
        running = Running(point.backend, state.call, serial, running, state.started_ns)
    assert running is not None
    return running


class _OfBackend(Watcher):
    """The detectors of one framework. What one of them raises switches that one off; what one of them computes is not
    told to any of them."""

    def __init__(
        self, facts: Facts, classes: Collection[type[Detector]], failed: Callable[[str, BaseException], None]
    ) -> None:
        self.facts = facts
        self._failed = failed
        self._why: dict[type[Detector], str] = {}
        self._telling: set[int] = set()  # threads on which detectors are at work
        self._over = self.watching = False
        self._sampling = Sampling()
        self._all = list(self._made(classes))
        self._working = list(self._all)
        self._calls: dict[str, list[tuple[Detector, Callable[..., None]]]] = {}
        self._heard: list[Need] = []  # what each wanted as ``_calls`` was made
        self._listen()
        self.taps: Observation = facts.backend.observe(self)

    def _made(self, classes: Collection[type[Detector]]) -> Iterator[Detector]:
        for each in classes:
            try:
                yield each(self.facts)
            except own(Exception) as error:
                self._failed(each.kinds[0], error)

    @property
    def at_work(self) -> bool:
        """A detector computes something on this thread: its own operators and backwards are nobody's business."""
        return get_ident() in self._telling

    def _listen(self) -> None:
        for event in (*_TOLD, *_WATCHED):
            calls = [(each, getattr(each, event)) for each in self._working if each.listens(event)]
            if event == "operator":  # one detector may want them in an iteration in which others do not
                calls = [call for call in calls if Need.OPERATORS in self._needs_of(call[0])]
            self._calls[event] = calls

    def _needs_of(self, detector: Detector) -> Need:
        """What it wants told in the iteration at hand."""
        return detector.needs | detector.sampled if self.facts.sampled else detector.needs

    def tell(self, event: str, *what: Any) -> None:
        calls, me = self._calls[event], get_ident()
        if not calls or me in self._telling or not (self.watching or event in _ASKED) or self._over:
            return
        self._telling.add(me)
        try:
            with self.facts.backend.unseen():
                self.facts.node_lines.tell(event, *what)
                for each, call in tuple(calls):
                    try:
                        call(*what)
                    except own(Exception) as error:
                        self._off(each, error)
        finally:
            self._telling.discard(me)

    def _off(self, detector: Detector, error: BaseException) -> None:
        self._why[type(detector)] = f"it failed: {type(error).__name__}: {error}"
        if detector in self._working:
            self._working.remove(detector)
        self._listen()
        self._failed(detector.kinds[0], error)

    # ---- iterations

    def watch(self) -> None:
        """From now on; on a thread of the program, between two iterations."""
        self.watching = True
        self.facts.warned.put_in()
        self.facts.backend.read_unseen(True)
        self.facts.before = self.facts.backend.iteration
        self._sample(1)

    def _sample(self, iteration: int) -> None:
        """Have the taps in for the iteration that ends with that backward."""
        self.facts.sampled = self.facts.deep or self._sampling.holds(iteration)
        self._have()

    def _have(self) -> None:
        """Have the taps in that the detectors need now."""
        self.facts.other_needs = False
        needs = [self._needs_of(each) for each in self._working]
        if needs != self._heard:  # else who is told what is as before; to find out takes 0.2 ms
            self._heard = needs
            self._listen()
        self._want(functools.reduce(operator.or_, needs, Need.NOTHING))

    def _want(self, needs: Need) -> None:
        try:
            self.taps.want(needs)
        except own(Exception) as error:
            self._failed(f"what {self.facts.backend.name} does", error)

    def next_iteration(self, running: Running, most: int) -> bool:
        """An outermost backward begins. True where it is one too many: ``most`` iterations were asked for."""
        if not self.watching:
            return False
        rounds = self.facts.rounds
        if most and rounds.count >= most and rounds.opens(running):
            return True
        if self.facts.iteration:
            self.tell("iteration_end")
        self.facts.iteration += 1
        rounds.begins(running)
        return False

    def ended(self) -> None:
        """An outermost backward ended: what comes now belongs to the steps, and then to the next iteration."""
        if self._over:
            return
        if self.watching:
            self._sample(self.facts.iteration + 1)
        else:
            self.watch()

    def plan(self) -> HookPlan | None:
        if not self.watching or self.at_work:
            return None
        gradients = self.facts.sampled and any(each.gradients for each in self._working)
        screens = any(each.screens for each in self._working)
        if gradients:
            return HookPlan(every=True, screen=screens)
        return HookPlan(screen=True) if screens else None

    def close(self) -> None:
        """The last moment to tell; on a thread of the program."""
        if self.watching:
            if self.facts.iteration:
                self.tell("iteration_end")
            self.tell("end")
        self.leave()

    def leave(self) -> None:
        """Without another word."""
        self.watching = False
        self.facts.warned.take_out()
        self.facts.backend.read_unseen(False)
        if not self._over:
            self._over = True
            self._want(Need.NOTHING)
            for each in self._all:
                each.left()

    def examined(self) -> Iterator[p.Examined]:
        told = {finding.kind for finding in list(self.facts.findings.values())}
        for each in self._all:
            why, applied = self._why.get(type(each), ""), True
            if not why:
                try:
                    why, applied = each.why_not(), each.applied()
                except own(Exception) as error:
                    why = f"it failed: {type(error).__name__}: {error}"
            why = why or self.taps.why_not(each.needs | each.sampled)
            for kind in each.kinds:
                result = "finding" if kind in told else "could not look" if why else "clear"
                if result == "clear" and not applied:
                    result = "not applicable"
                yield p.Examined(kind, result, why if result == "could not look" else "")

    # ---- what the taps tell

    def operator(self, call: Any) -> None:
        self.tell("operator", call)

    def optimizer(self, event: Any) -> None:
        if event.what == "made" and not self.at_work:
            self._sampling.optimizer_made(self.facts.iteration)
        self.tell("optimizer", event)

    @property
    def deaf(self) -> bool:
        """Between sampled iterations nobody looks at what an optimizer computes."""
        return self.facts.stepping and not self.facts.sampled

    def module_begin(self, call: Any) -> None:
        self.tell("module_begin", call)
        if self.facts.other_needs:
            self._have()

    def module_end(self, call: Any) -> None:
        self.tell("module_end", call)
        if self.facts.other_needs:
            self._have()

    def function(self, call: Any) -> None:
        self.tell("function", call)

    def hook(self, call: Any) -> None:
        self.tell("hook", call)

    def recompute(self, call: Any) -> None:
        self.tell("recompute", call)

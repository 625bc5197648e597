"""Diagnosis of this process: the detectors, which taps are in for them, and when they are asked.

Optimistic watch, precise look: cheap taps are in always; operators, hooks and every gradient are watched in sampled
iterations (1 to 3, then every power of two from 8 on, some round numbers, and the first three after a new optimizer),
or in each one when it is asked to look deep.

What was switched on while the program runs begins with the end of the next outermost backward: taps are put in between
two statements of the program's, on its own thread, and what detectors are told begins with a whole iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from adbg.engine.backends.base import Backend, HookPlan
from adbg.engine.diagnosis.backend_diagnosis import BackendDiagnosis
from adbg.engine.diagnosis.detector import known
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.made_nodes import MadeNodes
from adbg.engine.protocol import messages as p
from adbg.engine.session.observers import Observer
from adbg.engine.session.post_mortem import named
from adbg.engine.session.running_call import Running, Visit
from adbg.engine.session.session import Session
from adbg.engine.session.stop_point import PausedPoint

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
        self._of: dict[str, BackendDiagnosis] = {}
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
        nodes = MadeNodes()

        def found(finding: p.Finding) -> None:
            self._found(nodes.completed(finding))

        of = BackendDiagnosis(Facts(backend, found, self.deep, self._send), nodes, found, self._classes, self._failed)
        self._of[backend.name] = of
        if not self._late:
            of.watch()

    def _found(self, finding: p.Finding) -> None:
        if not self.only or finding.kind in self.only:
            self._send(p.Found(finding))

    def _failed(self, which: str, error: BaseException) -> None:
        self._session.problems.defect(f"diagnosis of {which} is off", error)

    def findings(self) -> list[p.Finding]:
        every = [
            each.nodes.completed(one) for each in list(self._of.values()) for one in list(each.facts.findings.values())
        ]
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
        of.read_nodes(running)

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

    def _close(self, which: Iterable[BackendDiagnosis], last: bool = False, interrupted: bool = False) -> None:
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

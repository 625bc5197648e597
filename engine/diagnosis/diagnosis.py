"""Diagnosis of this process: the detectors, which taps are in for them, and when they are asked.

Optimistic watch, precise look: cheap taps are in always; operators, hooks and every gradient are watched in sampled
iterations (1 to 3, then every power of two from 8 on), or in each one when it is asked to look deep.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from adbg.engine.backends.base import Backend, HookPlan, Need, Observation, Watcher
from adbg.engine.diagnosis.detector import Detector, known
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.outside import own
from adbg.engine.protocol import messages as p
from adbg.engine.session.observers import Observer
from adbg.engine.session.running_call import Running, Visit
from adbg.engine.session.session import Session
from adbg.engine.session.stop_point import PausedPoint

_WATCHED = tuple(name for name in vars(Watcher) if not name.startswith("_"))
_TOLD = ("backward_begin", "node_begin", "node_end", "backward_end", "iteration_end", "uncaught", "at_stop", "end")


def is_sampled(iteration: int) -> bool:
    """Whether the iteration that ends with the ``iteration``-th outermost backward is looked at closely."""
    return iteration <= 3 or (iteration >= 8 and iteration & (iteration - 1) == 0)


class Diagnosis(Observer):
    """The detectors of this process, over every framework that it imports. ``send`` takes events for the front end."""

    def __init__(
        self, session: Session, send: Callable[[Any], None], only: Collection[str] = (), deep: bool = False
    ) -> None:
        self._session = session
        self._send = send
        self._deep = deep
        self._classes = [each for each in known() if not only or set(each.kinds) & set(only)]
        self._only = frozenset(only)
        self._of: dict[str, _OfBackend] = {}
        self._over = False

    @property
    def arms(self) -> bool:
        return not self._over

    @property
    def active(self) -> bool:
        return not self._over

    def backend_added(self, backend: Backend) -> None:
        facts = Facts(backend, self._found, self._deep)
        self._of[backend.name] = _OfBackend(facts, self._classes, self._failed)

    def _found(self, finding: p.Finding) -> None:
        if not self._only or finding.kind in self._only:
            self._send(p.Found(finding))

    def _failed(self, which: str, error: BaseException) -> None:
        self._session.problems.defect(f"diagnosis of {which} is off", error)

    def findings(self) -> list[p.Finding]:
        every = [finding for each in self._of.values() for finding in each.facts.findings.values()]
        return [finding for finding in every if not self._only or finding.kind in self._only]

    def examined(self) -> list[p.Examined]:
        return [row for each in self._of.values() for row in each.examined()]

    # ---- backward calls

    def plan(self, running: Running) -> HookPlan | None:
        of = self._of.get(running.backend.name)
        return of.plan() if of is not None else None

    def backward_begin(self, running: Running) -> None:
        of = self._of.get(running.backend.name)
        if of is None:
            return
        if len(running.chain) == 1:
            of.next_iteration()
        of.tell("backward_begin", running)

    def node_begin(self, visit: Visit) -> None:
        self._of[visit.running.backend.name].tell("node_begin", visit)

    def node_end(self, visit: Visit) -> None:
        self._of[visit.running.backend.name].tell("node_end", visit)

    def backward_end(self, running: Running, us: float, error: BaseException | None) -> None:
        of = self._of.get(running.backend.name)
        if of is None:
            return
        of.tell("backward_end", running, error)
        if len(running.chain) == 1:
            of.ended()

    # ---- moments

    def look(self, point: PausedPoint) -> None:
        """Somebody asks at a stop."""
        for of in self._of.values():
            of.tell("at_stop", point)

    def program_ends(self, error: BaseException | None) -> None:
        """On the main thread, ``error`` if that ends it. Once."""
        if self._over:
            return
        for of in self._of.values():
            if error is not None:
                of.tell("uncaught", error)
            of.close()
        self._over = True
        self._send(p.DiagnosisEnds(self.examined()))

    def detach(self) -> None:
        if not self._over:
            self._over = True
            for of in self._of.values():
                of.taps.close()

    def abandon(self) -> None:
        self.detach()


class _OfBackend(Watcher):
    """The detectors of one framework. What one of them raises switches that one off."""

    def __init__(
        self, facts: Facts, classes: Collection[type[Detector]], failed: Callable[[str, BaseException], None]
    ) -> None:
        self.facts = facts
        self._failed = failed
        self._why: dict[type[Detector], str] = {}
        self._all = [each(facts) for each in classes]
        self._working = list(self._all)
        self._calls: dict[str, list[tuple[Detector, Callable[..., None]]]] = {}
        self._listen()
        self.taps: Observation = facts.backend.observe(self)
        self._sample(1)

    def _listen(self) -> None:
        for event in (*_TOLD, *_WATCHED):
            plain = getattr(Detector, event)
            calls = [(each, getattr(each, event)) for each in self._working if getattr(type(each), event) is not plain]
            self._calls[event] = calls

    def tell(self, event: str, *what: Any) -> None:
        for each, call in tuple(self._calls[event]):
            try:
                call(*what)
            except own(Exception) as error:
                self._why[type(each)] = f"{type(error).__name__}: {error}"
                self._working.remove(each)
                self._listen()
                self._failed(each.kinds[0], error)

    # ---- iterations

    def _sample(self, iteration: int) -> None:
        """Have the taps in for the iteration that ends with that backward."""
        self.facts.sampled = self.facts.deep or is_sampled(iteration)
        needs = Need.NOTHING
        for each in self._working:
            needs |= each.needs
            if self.facts.sampled:
                needs |= each.sampled
        self.taps.want(needs)

    def next_iteration(self) -> None:
        if self.facts.iteration:
            self.tell("iteration_end")
        self.facts.iteration += 1

    def ended(self) -> None:
        """An outermost backward ended: what comes now belongs to the steps, and then to the next iteration."""
        self._sample(self.facts.iteration + 1)

    def plan(self) -> HookPlan | None:
        gradients = self.facts.sampled and any(each.gradients for each in self._working)
        screens = any(each.screens for each in self._working)
        if gradients:
            return HookPlan(every=True, screen=screens)
        return HookPlan(screen=True) if screens else None

    def close(self) -> None:
        if self.facts.iteration:
            self.tell("iteration_end")
        self.tell("end")
        self.taps.close()

    def examined(self) -> list[p.Examined]:
        told = {finding.kind for finding in self.facts.findings.values()}
        rows = []
        for each in self._all:
            why = self._why.get(type(each)) or each.why_not()
            for kind in each.kinds:
                result = "finding" if kind in told else "could not look" if why else "clear"
                if result == "clear" and not each.applied():
                    result = "not applicable"
                rows.append(p.Examined(kind, result, why if result == "could not look" else ""))
        return rows

    # ---- what the taps tell

    def operator(self, call: Any) -> None:
        self.tell("operator", call)

    def optimizer(self, event: Any) -> None:
        self.tell("optimizer", event)

    def module_begin(self, call: Any) -> None:
        self.tell("module_begin", call)

    def module_end(self, call: Any) -> None:
        self.tell("module_end", call)

    def function(self, call: Any) -> None:
        self.tell("function", call)

    def hook(self, call: Any) -> None:
        self.tell("hook", call)

    def recompute(self, call: Any) -> None:
        self.tell("recompute", call)

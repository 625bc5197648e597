"""The detectors of one framework in this process: when each is asked, and what is watched for them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterator
from threading import get_ident
from typing import Any

from adbg.engine.backends.base import HookPlan, Need, Observation, Watcher
from adbg.engine.diagnosis.detector import Detector
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.made_nodes import MadeNodes
from adbg.engine.diagnosis.sampling import Sampling
from adbg.engine.outside import own
from adbg.engine.protocol import messages as p
from adbg.engine.session.running_call import Running

_WATCHED = tuple(name for name, each in vars(Watcher).items() if not name.startswith("_") and callable(each))
_TOLD = (
    "backward_begin", "node_begin", "node_end", "backward_end", "iteration_end", "uncaught", "at_stop", "at_error",
    "end",
)  # fmt: skip
_ASKED = ("at_stop", "at_error", "uncaught")  # told of what nobody watched, too, where somebody asks at a stop


class BackendDiagnosis(Watcher):
    """The detectors of one framework. What one of them raises switches that one off; what one of them computes is not
    told to any of them."""

    def __init__(
        self,
        facts: Facts,
        nodes: MadeNodes,
        found: Callable[[p.Finding], None],
        classes: Collection[type[Detector]],
        failed: Callable[[str, BaseException], None],
    ) -> None:
        self.facts = facts
        self.nodes = nodes
        facts.made_in = nodes.made_in
        self._found = found
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
            if event in ("operator", "composite"):  # one detector may want them in an iteration in which others do not
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

    def read_nodes(self, running: Running) -> None:
        """Findings that were told of an operator get its node, which is in the graph that runs now."""
        if not (self.watching and self.facts.sampled) or self._over:
            return
        try:
            new = self.nodes.read(running)
        except own(Exception) as error:
            self._failed("nodes of findings", error)
            return
        for finding in list(self.facts.findings.values()) if new else ():
            if finding.node is None and self.nodes.completed(finding).node is not None:
                self._found(finding)

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

    def composite(self, call: Any) -> None:
        self.tell("composite", call)

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

    def loader(self, event: Any) -> None:
        self.tell("loader", event)

    def worker_begins(self) -> None:
        """In a child that was forked, which adbg has left: not by ``tell``."""
        for each in self._working:
            each.worker_begins()

"""Where gradients are clipped, and whether that acts."""

from __future__ import annotations

import collections
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from adbg.engine.diagnosis.detector import OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.numbers.singular import outgrown
from adbg.engine.diagnosis.detectors.training.loop import LoopDetector, gradient_commands
from adbg.engine.diagnosis.detectors.training.source import place
from adbg.engine.diagnosis.ledger import Optimizer
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

if TYPE_CHECKING:
    from adbg.engine.diagnosis.facts import Facts

_NEAR = 100  # a limit that many times larger than every norm limits nothing
_MUCH = 10  # gradients that many times above the limit: without it, the steps are another program's


@detector("clipping-order")
class Clipping(LoopDetector):
    """Gradients that are clipped where it has no effect: before backward has made them, after the step has used them,
    or of nothing at all; that are clipped while a gradient scaler still has them multiplied, so that the limit is as
    many times too small; and, as a note, clipping that acts at every step, or whose limit is never come near (of Paddle
    also ``grad_clip=`` of an optimizer).

    Evidence: the order of backward, clipping and step in several iterations; the norms that were clipped, and those
    that the step used. Where these were ten times the limit and more, numbers that outgrow their range, and steps that
    do, follow from it.
    Mistaken for: a norm that is only measured (an infinite limit: not told), gradients that the program changes itself
    between clipping and step by another factor each time, another optimizer that steps before the clipping (not
    told).
    Cost: none; of ``grad_clip=`` a norm per gradient in its first 64 calls.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._since: list[str] = []  # what happened since the last backward
        self._useful = False  # a clip came between backward and step
        self._late = 0
        self._late_limit = math.inf
        self._by_norm = True  # no element is limited by itself
        self._told = 0
        self._used: dict[int, float] = {}  # id of an optimizer -> the largest norm of all gradients that a step used
        self._line: SourceLine | None = None
        self._step: SourceLine | None = None
        self._before = False  # the clip came before anything was stepped since it ran
        self._calls = 0  # that clipped fresh gradients
        self._acts = 0  # of these, those whose norm was above the limit
        self._norms: collections.deque[float] = collections.deque(maxlen=5)
        self._largest = 0.0
        self._empty = 0
        self._fresh = False
        self._clipped: dict[int, float] = {}  # id of a tensor -> norm of its gradient as clipping left it
        self._factors: list[float] = []  # by which gradients were divided between clipping and step
        self._limit = math.inf  # the last one
        self._lowest = math.inf
        facts.unclipped = self._asked

    def begins(self, running: Running) -> None:
        self._fresh = True  # no optimizer stepped since
        self._clipped.clear()

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        if event.what == "step" and optimizer is not None and self._clipped:
            self._compare(optimizer)
        if event.what == "step" and optimizer is not None:
            self._note_used(optimizer)
        elif event.what == "stepped":
            self._fresh = False
            self._step = event.line
        elif event.what == "clipped" and event.optimizer is not None and event.limit is not None:
            self._of_optimizer(event, optimizer)
        elif event.what == "clipped" and event.limit is not None and math.isfinite(event.limit):
            fresh = self._fresh or self._waits(event)
            if fresh:
                self._useful = True
                self._keep()
            elif self.ledger.close:  # else nobody looked which gradients came
                self._late += 1
                self._late_limit = event.limit
                self._by_norm = event.norm is not None
            if self._line is None or not fresh:
                self._line = event.line
            if event.norm is not None and fresh:
                self._count(event.norm, event.limit)
                self._empty += event.norm == 0 and self._gave()

    def _of_optimizer(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        """``grad_clip=`` of Paddle's optimizers: always in its place, whether or not it acts."""
        self._useful = True
        self._line = (optimizer.made if optimizer is not None else None) or event.line
        if event.norm is not None and event.limit is not None and math.isfinite(event.limit):
            self._count(event.norm, event.limit)

    def _count(self, norm: float, limit: float) -> None:
        self._calls += 1
        self._acts += norm > limit
        self._norms.append(norm)
        self._largest = max(self._largest, norm)
        self._limit = limit
        self._lowest = min(self._lowest, limit)

    def _waits(self, event: OptimizerEvent) -> bool:
        """Whether one of its tensors has a gradient that its own optimizer is still to use, whatever other optimizers
        stepped since. Of an iterator nobody knows what is in it: any tensor of an optimizer then."""
        given = set(map(id, event.tensors))
        held = [each for optimizer in self.ledger.optimizers.values() for each in optimizer.held]
        known = [each for each in held if id(each.ref()) in given]
        return any(each.received and each.ref() is not None for each in known or held)

    def _keep(self) -> None:
        if self.ledger.close and len(self._factors) < 10:
            held = [each for optimizer in self.ledger.optimizers.values() for each in optimizer.held]
            norms = {id(each.ref()): self.ledger.norm(each) for each in held}
            self._clipped = {key: norm for key, norm in norms.items() if norm and math.isfinite(norm)}

    def _compare(self, optimizer: Optimizer) -> None:
        """A gradient scaler divides all gradients by the same number, before the optimizer's own step."""
        factors = [
            self._clipped[key] / held.at_step for held in optimizer.held
            if held.at_step and (key := id(held.ref())) in self._clipped
        ]  # fmt: skip
        if factors and min(factors) >= 2 and max(factors) < min(factors) * 1.01:
            self._factors.append(sum(factors) / len(factors))
        elif factors:
            self._factors.append(1.0)

    def _note_used(self, optimizer: Optimizer) -> None:
        """What the steps used until numbers were not finite any more; of an element, where each is limited."""
        if not self.ledger.close or any(each.kind == "nonfinite" for each in self.facts.findings.values()):
            return
        norm = math.hypot(*(held.at_step for held in optimizer.held if held.at_step))
        if math.isfinite(norm):
            self._used[optimizer.key] = max(norm, self._used.get(optimizer.key, 0.0))

    def _asked(self) -> int | None:
        """Numbers have outgrown their range: the finding that says why, if these are the weights' own steps."""
        if self._useful or not self._late or not self._far_beyond():
            return None
        return self._tell_late() if self._late >= 2 else 0

    def _far_beyond(self) -> bool:
        norm = max(self._used.values(), default=0.0)
        if not self._by_norm:  # of clip_grad_value_: at least one element is as large
            held = [each for optimizer in self.ledger.optimizers.values() for each in optimizer.held]
            norm /= math.sqrt(max(1, sum(math.prod(each.shape) for each in held)))
        return norm >= _MUCH * self._late_limit

    def _fold(self, told: int) -> None:
        """What the unclipped gradients led to: the weights, and then the numbers that are computed of them, outgrew
        their range."""
        for each in list(self.facts.findings.values()):
            if outgrown(each):
                self.facts.tell(replace(each, victim_of=told))

    def _gave(self) -> bool:
        return any(held.ended for each in self.ledger.optimizers.values() for held in each.held)

    def end(self) -> None:
        stepped = sum(each.steps for each in self.ledger.optimizers.values())
        if self._late >= 2 and not self._useful and stepped:
            told = self._tell_late()
            if self._far_beyond():
                self._fold(told)
            return
        if self._told:
            self._take_back()
        if len(self._factors) >= 2 and min(self._factors) >= 2:
            self._tell_scaled()
        elif self._empty >= 2 and self._empty == self._calls:
            text = "clipping is given no gradients (an iterator that was used up before?): it does nothing"
            evidence = [f"norm 0 at all {self._empty} calls, while gradients are not zero"]
            self._fold(self._tell("error", 0.9, text, evidence))
        elif self._calls >= 10 and self._acts == self._calls:
            shown = ", ".join(f"{norm:.3g}" for norm in self._norms)
            text = f"clipping acts at every one of {self._calls} steps: it sets the size of the steps, not a limit"
            self._tell("note", 0.3, text, [f"norms before it: {shown}"])
        elif self._calls >= 10 and self._largest * _NEAR < self._lowest:
            text = f"clipping never acts: no gradient comes within a {_NEAR}th of its limit"
            evidence = [f"largest norm of {self._calls}: {self._largest:.3g}, limit {self._lowest:.3g}"]
            self._tell("note", 0.2, text, evidence)

    def _tell_late(self) -> int:
        text = "gradients are clipped outside of backward and step: each step uses them unclipped"
        evidence = [
            f"clipping in {place(self._line)} ran {self._late} times, each time with no backward between the last "
            "step and it",
            f"backward is called in {place(self.ledger.backward_line)}, the step in {place(self._step)}",
        ]
        known = self.facts.findings.get(self._told)
        if known is not None:
            return self.facts.tell(replace(known, evidence=evidence))
        self._told = self._tell("error", 0.92, text, evidence)
        return self._told

    def _take_back(self) -> None:
        """Later ones came in time."""
        for each in list(self.facts.findings.values()):
            if each.victim_of == self._told:
                self.facts.tell(replace(each, victim_of=None))
        self.facts.take_back(self._told)

    def _tell_scaled(self) -> None:
        by = self._factors[-1]
        shown = ", ".join(f"{factor:.6g}" for factor in self._factors[-4:])
        evidence = [f"between clipping and step each gradient was divided by the same number: {shown}"]
        if self._norms:
            last = self._norms[-1]
            evidence.append(f"norm before clipping {last:.4g}, of the true gradient {last / by:.4g}: the limit of "
                            f"{self._limit:.4g} is one of {self._limit / by:.3g}")  # fmt: skip
        self._tell(
            "error", 0.9,
            f"gradients are clipped while they are still multiplied by the loss scale ({by:.6g}): unscale_() of the "
            "scaler has to come before", evidence,
        )  # fmt: skip

    def _tell(self, severity: str, confidence: float, text: str, evidence: list[Any]) -> int:
        return self.facts.tell(
            Finding(
                0, "clipping-order", severity, confidence, text, cause=self.facts.cause(self._line), evidence=evidence,
                next=gradient_commands(self),
            )
        )  # fmt: skip

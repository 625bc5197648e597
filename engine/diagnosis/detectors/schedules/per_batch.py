"""Schedules that count epochs, and are stepped in each batch: all that they do is over as the run begins."""

from __future__ import annotations

import ast
import os
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from adbg.engine.diagnosis.detector import OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.earlier.together import calls_now
from adbg.engine.diagnosis.detectors.training.loop import LoopDetector, rate_commands
from adbg.engine.diagnosis.detectors.training.source import place
from adbg.engine.diagnosis.ledger import Optimizer
from adbg.engine.diagnosis.source import called_name, inside, loops_around, nodes_of, scope_at
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

if TYPE_CHECKING:
    from adbg.engine.diagnosis.facts import Facts

_STEPS = 60  # of an optimizer, from which on a part of them is a small one
_PART = 0.1  # of them, within which all is over
_PART_IN_LOOPS = 0.2  # where the line is called in two loops: milestones of late epochs
_MILESTONES = 4  # falls; a rate that falls at each step is counted in steps
_LOW = 0.05  # of the highest rate: what is left for the rest of the run


@dataclass(slots=True)
class _Scheduler:
    ref: weakref.ref[Any]
    kind: str
    made: SourceLine | None
    optimizer: int = 0
    stepped: int = 0
    line: SourceLine | None = None
    lines: set[SourceLine | None] = field(default_factory=set)  # that step it; the last is ``line``
    loops: int = 0  # that the line is in, those of its callers among them


@detector("zero-learning-rate")
class StepsInBatches(LoopDetector):
    """A schedule with milestones in epochs is stepped after every batch: the rate falls to a small part of its first
    within the first epoch, stays there, and the run hardly learns.

    Evidence: the rates, at which step they fell last, how often optimizer and scheduler stepped, and the two loops, of
    epochs and of batches, that the line is called in.
    Mistaken for: a warm-up or a search of rates (these rise), a schedule that goes on falling (another finding), rates
    that are set by hand (no scheduler steps, not told), a phase of high rates on purpose. A warning; a note where the
    line is called in one loop alone, so that a step may be an epoch.
    Cost: none.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._schedulers: dict[int, _Scheduler] = {}

    def applied(self) -> bool:
        return bool(self._schedulers)

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        scheduler = event.scheduler
        if scheduler is None or event.what not in ("scheduler", "scheduled"):
            return
        known = self._schedulers.get(id(scheduler))
        if known is None or known.ref() is not scheduler:
            if known is not None:
                self._ended(known)  # another one has its place in memory
            made = event.line if event.what == "scheduler" else None
            known = _Scheduler(weakref.ref(scheduler), type(scheduler).__name__, made)
            self._schedulers[id(scheduler)] = known
        if event.optimizer is not None:
            known.optimizer = id(event.optimizer)
        if event.what == "scheduled":
            known.stepped += 1
            if event.line != known.line:
                known.loops = _loops(known.made)
            known.line = event.line
            known.lines.add(event.line)

    def end(self) -> None:
        for known in self._schedulers.values():
            self._ended(known)

    def _ended(self, known: _Scheduler) -> None:
        owner = self.ledger.optimizers.get(known.optimizer)
        if owner is None and len(self.ledger.optimizers) == 1:  # Paddle's know no optimizer
            owner = next(iter(self.ledger.optimizers.values()))
        if owner is not None:
            self._judge(known, owner)

    def _judge(self, known: _Scheduler, owner: Optimizer) -> None:
        rates = [high for _, high in owner.rates]
        if len(rates) < _STEPS or known.stepped < 0.9 * len(rates) or len(known.lines) > 1 or rates[0] <= 0:
            return
        falls = [at for at in range(1, len(rates)) if rates[at] != rates[at - 1]]
        steps_down = all(rates[at] < rates[at - 1] for at in falls)
        epochs = known.loops > 1
        part = _PART_IN_LOOPS if epochs and len(falls) <= _MILESTONES else _PART
        if not falls or not steps_down or falls[-1] > part * len(rates) or rates[-1] > _LOW * rates[0]:
            return
        facts, last = self.facts, falls[-1]
        advice = "; step it per epoch, or give it numbers of batches" if epochs else ", right if that is an epoch"
        facts.tell(
            Finding(
                0, "zero-learning-rate", "warning" if epochs else "note", 0.8 if epochs else 0.45,
                f"the learning rate of {owner.kind} falls from {rates[0]:.3g} to {rates[-1]:.3g} within its first "
                f"{last} of {len(rates)} steps, and stays there: {known.kind} counts its own steps, and steps once for "
                f"each of the optimizer's{advice}",
                cause=facts.cause(known.line or known.made),
                evidence=[
                    f"the rate changed at steps {', '.join(str(at + 1) for at in falls[:6])}"
                    f"{', …' if len(falls) > 6 else ''}, and not in the {len(rates) - last} steps after these",
                    f"{known.kind}, made at {place(known.made)}, stepped {known.stepped} times in {place(known.line)}, "
                    f"{owner.kind} {len(rates)}",
                ],
                next=rate_commands(self, owner),
            )
        )  # fmt: skip


def _loops(made: SourceLine | None) -> int:
    """How many loops the step of a scheduler is called in, now: up to the function that makes it, or calls what does;
    of that one's those that do not make it anew (a run for each seed)."""
    makers = _makers(made) if made is not None else set()
    found = 0
    for code, line in calls_now():
        file = os.path.abspath(code.co_filename)
        every = loops_around(file, line)
        here = made is not None and (file, code.co_name) == (made.file, made.function)
        at = made.line if here and made is not None else _called_at(file, line, makers)
        if at is not None:
            return found + max(0, every - loops_around(file, at))
        found += every
    return found


def _makers(made: SourceLine) -> set[str]:
    """The function that makes it, and the class that this is a method of."""
    kinds = [
        each.name for each in nodes_of(made.file)
        if isinstance(each, ast.ClassDef) and each.lineno <= made.line <= (each.end_lineno or 0)
    ]  # fmt: skip
    return {*kinds, made.function}


def _called_at(file: str, line: int, makers: set[str]) -> int | None:
    """Where the function that a line is in calls one of these."""
    scope = scope_at(file, line)
    calls = (node for node in (inside(scope) if scope is not None else ()) if isinstance(node, ast.Call))
    return next((node.lineno for node in calls if called_name(node) in makers), None)

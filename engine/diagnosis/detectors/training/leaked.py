"""Gradients that a loss of one network leaves in another, through which it was computed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adbg.engine.diagnosis.detector import OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.training.leaves import tensors_of
from adbg.engine.diagnosis.detectors.training.loop import LoopDetector, gradient_commands, norms
from adbg.engine.diagnosis.detectors.training.source import place
from adbg.engine.diagnosis.ledger import Held, Optimizer
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

if TYPE_CHECKING:
    from adbg.engine.diagnosis.facts import Facts

_MOST_NODES = 20_000  # a larger graph is not searched for leaves
_ENOUGH = 3  # steps in a row


@dataclass(slots=True)
class _Left:
    """Since the last step of an optimizer: what the loss of ``other`` left in what it holds. ``norms``: of the
    gradients of what it holds, as that backward ended. ``used``: the other one has stepped. ``joined``: the optimizer's
    own backward has added to it."""

    other: int
    line: SourceLine | None
    norms: list[float | None]
    used: bool = False
    joined: SourceLine | None = None


@dataclass(slots=True)
class _Row:
    """Steps in a row that took such gradients."""

    steps: int = 0
    told: int = 0
    cleared: SourceLine | None = None  # where the optimizer's gradients were cleared last


@detector("zero-grad")
class LeakedGradients(LoopDetector):
    """Two networks, two optimizers (a generator and its discriminator, an actor and its critic): the loss of one is
    computed through the other and leaves its gradients there, they are not cleared before the other one's own backward,
    and its step takes both.

    Evidence: the norms of the gradients as the one backward ended, as the next began, and as the step took them.
    Mistaken for: losses that are meant to add up in a part that several of them share. Told only where the other
    network lies upstream of all that the step is for (its loss went *through* that) and had stepped by then, while
    the backward before the step reached nothing of it; in every step that was followed. A warning, for a head that is
    meant to learn from both looks the same.
    Cost: the leaves of the graphs that reach several optimizers, in iterations that are followed closely.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._left: dict[int, _Left] = {}  # of the optimizer in whose tensors they lie
        self._rows: dict[int, _Row] = {}
        self._through: dict[tuple[SourceLine | None, int, int], bool] = {}  # (line, optimizer, other) -> upstream

    def begins(self, running: Running) -> None:
        for key in tuple(self._left):
            optimizer = self.ledger.optimizers.get(key)
            here = [held.begun for held in optimizer.held] if optimizer is not None and self.ledger.close else []
            if here != self._left[key].norms and self._left[key].joined is None:
                del self._left[key]  # cleared since, or changed by hand

    def ends(self, running: Running) -> None:
        if not self.ledger.close:
            self._left.clear()
            return
        reached = [each for each in self.ledger.optimizers.values() if any(map(_given, each.held))]
        line = running.call.location
        for optimizer in reached:
            left = self._left.get(optimizer.key)
            others = [each for each in reached if each is not optimizer]
            if left is not None:
                if others:
                    del self._left[optimizer.key]
                elif left.used:
                    left.joined = line
            elif any(held.begun for held in optimizer.held):
                continue  # of the step before: never cleared, which is told as such
            elif len(others) == 1 and self._goes_through(running, optimizer, others[0]):
                self._left[optimizer.key] = _Left(others[0].key, line, [held.ended for held in optimizer.held])

    def _goes_through(self, running: Running, optimizer: Optimizer, other: Optimizer) -> bool:
        """All that the other one holds lies after all that this one does, on the way of the gradient."""
        call = running.call
        which = call.location, optimizer.key, other.key
        if which not in self._through:
            if call.truncated or call.count() > _MOST_NODES or len(self._through) > 64:
                return False
            order = [id(tensor) for tensor in tensors_of(call)]
            ours, theirs = _places(order, optimizer), _places(order, other)
            self._through[which] = bool(ours and theirs) and ours[-1] < theirs[0]
        return self._through[which]

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        if event.what == "step" and optimizer is not None:
            for left in self._left.values():
                left.used = left.used or left.other == optimizer.key
            self._step(optimizer)
        elif event.what == "zeroed" and optimizer is not None:
            self._rows.setdefault(optimizer.key, _Row()).cleared = event.line

    def _step(self, optimizer: Optimizer) -> None:
        left, row = self._left.pop(optimizer.key, None), self._rows.setdefault(optimizer.key, _Row())
        if left is None or left.joined is None:
            # What was not followed says nothing; the first step has none before it that could have left any.
            if self.ledger.close and not optimizer.blind and optimizer.steps:
                row.steps = 0
                if row.told:
                    self.facts.take_back(row.told)
                    row.told = 0
            return
        row.steps += 1
        if row.steps >= _ENOUGH and not row.told:
            row.told = self._tell(optimizer, left, row)

    def _tell(self, optimizer: Optimizer, left: _Left, row: _Row) -> int:
        other = self.ledger.optimizers[left.other]
        shown = [(held, norm) for held, norm in zip(optimizer.held, left.norms) if norm][:3]
        clearing = self.facts.backend.clearing
        evidence = [
            f"gradient of {held.name}: norm {norms([norm])} as the other loss left it, {norms([held.begun])} "
            f"as its own backward began, {norms([held.at_step])} at the step"
            for held, norm in shown
        ]
        evidence += [
            f"left by the backward in {place(left.line)}, which goes through them to "
            f"{self.facts.some([held.name for held in other.held])}",
            f"its own backward in {place(left.joined)} adds to that, and {place(optimizer.step_line)} steps with both",
        ]
        if row.cleared is not None:
            evidence.append(f"cleared in {place(row.cleared)}, before the other loss")
        evidence.append(f"so it was at {row.steps} steps in a row: {clearing} belongs right before its own backward")
        return self.facts.tell(
            Finding(
                0, "zero-grad", "warning", 0.8,
                f"{optimizer.kind} steps with gradients of another loss too: the one that trains "
                f"{self.facts.some([held.name for held in other.held])} leaves its gradients in "
                f"{self.facts.some([held.name for held, _ in shown])}, and nothing clears them before its own backward",
                cause=self.facts.cause(row.cleared or left.joined), evidence=evidence,
                next=gradient_commands(self),
            )
        )  # fmt: skip


def _given(held: Held) -> bool:
    """The backward that ends has added to it, if only the opposite of what was there."""
    return bool(held.ended or held.begun) and held.ended != held.begun


def _places(order: Iterable[int], optimizer: Optimizer) -> list[int]:
    ids = {id(held.ref()) for held in optimizer.held}
    return [at for at, each in enumerate(order) if each in ids]

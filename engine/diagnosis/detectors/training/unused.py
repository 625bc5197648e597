"""Gradients of one backward that are cleared before the next one of the same line, which alone the step uses."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from adbg.engine.diagnosis.detector import OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.training.loop import LoopDetector, gradient_commands, norms
from adbg.engine.diagnosis.detectors.training.source import place
from adbg.engine.diagnosis.ledger import Held, Optimizer
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

if TYPE_CHECKING:
    from adbg.engine.diagnosis.facts import Facts

_ENOUGH = 3  # steps in a row
_SAME = 1e-3  # relative: what clipping scales, it scales alike


@dataclass(slots=True)
class _Since:
    """Since an optimizer's last step: the lines of the backwards that added to what it holds, the lines that cleared
    between two of them, the norms of the first weights as each began."""

    backwards: list[SourceLine | None] = field(default_factory=list)
    clears: list[SourceLine | None] = field(default_factory=list)
    weights: set[tuple[float, ...]] = field(default_factory=set)
    thrown: list[float | None] = field(default_factory=list)  # norms of the first gradient that were cleared
    spoilt: bool = False


@detector("cleared-gradients")
class ClearedInBetween(LoopDetector):
    """Of several backwards of one line before a step, all but the last are cleared unused: zero_grad stands within the
    loop over micro-batches.

    Evidence: how many backwards there were, where they were cleared, the norms that were thrown away.
    Mistaken for: gradients that the program itself uses in between, which no event tells of. Passed over where the
    weights changed meanwhile (SAM, inner loops), where the step takes other gradients than the last backward left
    (gradient surgery; clipping scales all alike), where another optimizer stepped on one of them (a generator's loss,
    through the critic), where a batch is cleared once more than the others (left out on purpose), where a loss or a
    gradient is not finite, and where backward runs within the step (closures of LBFGS). Told where it was so at three
    steps in a row; a warning.
    Cost: as zero-grad, and the norms of two weights.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._since: dict[int, _Since] = {}
        self._rows: dict[int, int] = {}  # steps in a row
        self._told: set[int] = set()
        self._stepping: set[int] = set()

    def begins(self, running: Running) -> None:
        for key, optimizer in self.ledger.optimizers.items():
            since = self._since.setdefault(key, _Since())
            if not self.ledger.close or key in self._stepping:
                since.spoilt = True
            elif key not in self._told and not since.spoilt:
                since.weights.add(self._weights(optimizer))

    def ends(self, running: Running) -> None:
        for key, optimizer in self.ledger.optimizers.items():
            since = self._since.get(key)
            if since is not None and not since.spoilt and any(held.received for held in optimizer.held):
                since.backwards.append(running.call.location)
                first = next(held for held in optimizer.held if held.received)
                since.thrown.append(first.ended)
                since.spoilt = not self._is_finite(running, optimizer)

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        if event.what == "zeroed":
            cleared = {id(tensor) for tensor in event.tensors}
            for key, each in self.ledger.optimizers.items():
                since = self._since.get(key)
                whole = each is optimizer or all(id(held.ref()) in cleared for held in each.held)
                if whole and since is not None and since.backwards:
                    # Cleared once more than the loop does: a batch that is left out on purpose.
                    since.spoilt = since.spoilt or len(since.clears) == len(since.backwards)
                    since.clears += [event.line] * (len(since.backwards) - len(since.clears))
        elif event.what == "step" and optimizer is not None:
            self._stepping.add(optimizer.key)
            self._judge(optimizer, self._since.pop(optimizer.key, _Since()))
            for since in self._since.values():  # what they got was of this one's loss
                since.spoilt = True
        elif event.what == "stepped" and optimizer is not None:
            self._stepping.discard(optimizer.key)

    def _is_finite(self, running: Running, optimizer: Optimizer) -> bool:
        """What is not, the loss or a gradient, is left out on purpose."""
        backend = self.facts.backend
        roots = [each for each in running.call.root_values() or () if backend.is_tensor(each)]
        return all(math.isfinite(backend.norm(each)) for each in roots) and all(
            math.isfinite(held.ended) for held in optimizer.held if held.ended is not None
        )

    def _weights(self, optimizer: Optimizer) -> tuple[float, ...]:
        tensors = (held.ref() for held in optimizer.held[:2])
        return tuple(self.facts.backend.norm(tensor) for tensor in tensors if tensor is not None)

    def _judge(self, optimizer: Optimizer, since: _Since) -> None:
        key, times = optimizer.key, len(since.backwards)
        if key in self._told:
            return
        only_last = not since.spoilt and len(since.clears) == times - 1 > 0 and len(set(since.backwards)) == 1
        if only_last and len(since.weights) == 1 and _as_it_was(optimizer.held):
            self._rows[key] = self._rows.get(key, 0) + 1
        else:
            self._rows[key] = 0
        if self._rows[key] >= _ENOUGH:
            self._told.add(key)
            self._tell(optimizer, since)

    def _tell(self, optimizer: Optimizer, since: _Since) -> None:
        clearing, times = self.facts.backend.clearing, len(since.backwards)
        line = since.clears[0]
        evidence = [
            f"before each step {times} backwards ran in {place(since.backwards[0])}, and {clearing} in {place(line)} "
            f"came between them, at {_ENOUGH} steps in a row",
            f"norms of the first gradient that were cleared: {norms(since.thrown[:-1][:4])}; that the step takes: "
            f"{norms(since.thrown[-1:])}",
            "right where the program reads these gradients itself before they are cleared",
        ]
        self.facts.tell(
            Finding(
                0, "cleared-gradients", "warning", 0.8,
                f"{clearing} clears the gradients of {times - 1} of {times} backwards before {optimizer.kind} steps: "
                f"only the last of them counts",
                cause=self.facts.cause(line), evidence=evidence, next=gradient_commands(self),
            )
        )  # fmt: skip


def _as_it_was(every: list[Held]) -> bool:
    """The step takes what the last backward left, or all of it scaled alike."""
    ratios = [held.at_step / held.ended for held in every if held.ended and held.at_step is not None]
    return bool(ratios) and min(ratios) > 0 and max(ratios) - min(ratios) <= _SAME * max(ratios)

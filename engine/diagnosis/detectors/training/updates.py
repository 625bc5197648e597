"""What the steps do to the weights."""

from __future__ import annotations

import itertools
import math
import zlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from adbg.engine.diagnosis.detector import OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.training.loop import LoopDetector, rate_commands, weight_commands
from adbg.engine.diagnosis.detectors.training.source import between
from adbg.engine.diagnosis.ledger import Held, Optimizer
from adbg.engine.outside import own
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

if TYPE_CHECKING:
    from adbg.engine.diagnosis.facts import Facts

_MOST = 8  # tensors of one optimizer
_ELEMENTS = 1 << 20  # of one of them
_VANISHED = 1e-6  # norm of a gradient; a usual rate times that is below half a unit in the last place of f32
_WRITES = r"load_state_dict|set_state_dict|set_dict|\.data\s*=(?!=)|\.data\.copy_|\.copy_\(|set_value\("


@dataclass(slots=True)
class _Weights:
    """Hashes of some tensors. ``before`` and ``after`` the last step, by place in what the optimizer holds."""

    before: dict[int, int] = field(default_factory=dict)
    after: dict[int, int] = field(default_factory=dict)
    restored: int = 0  # steps in a row that were undone before the next one
    unmoved: int = 0  # steps, of those looked at, that changed no bit, of finite gradients that are not zero
    looked: int = 0
    told: bool = False
    still: int = 0  # the finding that says so
    small: bool = False  # and its gradients are very small


@detector("lost-update")
class LostUpdate(LoopDetector):
    """Steps that change nothing in the end: the weights are overwritten before the next step with what they were, or
    each change is too small for the type of the weights to show it.

    Evidence: hashes of the weights before and after each step, and before the next.
    Mistaken for: weights that are exchanged for an evaluation and back (not told: the next step finds them as the last
    left them), meta learning that takes inner steps back (not told where the outer step changes the same weights).
    Cost: a hash of up to eight tensors around the steps of the first ten and the sampled iterations.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._weights: dict[int, _Weights] = {}
        self._loaded: SourceLine | None = None

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        if event.what == "loaded" and self.ledger.backwards:
            self._loaded = event.line
        if optimizer is None or event.what not in ("step", "stepped"):
            return
        known = self._weights.setdefault(optimizer.key, _Weights())
        if known.told or not self.ledger.close:
            known.before, known.after = {}, {}
            return
        hashes = self._hashes(optimizer)
        if event.what == "step":
            self._restored(optimizer, known, hashes)
            known.before = hashes
        else:
            known.after = hashes
            self._unmoved(optimizer, known, event)

    def _hashes(self, optimizer: Optimizer) -> dict[int, int]:
        found: dict[int, int] = {}
        for place_, held in enumerate(optimizer.held):
            tensor = held.ref()
            if tensor is None or held.frozen or math.prod(held.shape) > _ELEMENTS:
                continue
            value = _Hash()
            try:
                self.facts.backend.feed_bits(tensor, value.put)
            except own(Exception):  # without data, or of a kind that gives no memory
                continue
            found[place_] = value.value
            if len(found) == _MOST:
                break
        return found

    def _restored(self, optimizer: Optimizer, known: _Weights, now: dict[int, int]) -> None:
        moved = [at for at in known.after if known.before.get(at) != known.after[at]]
        undone = [at for at in moved if now.get(at) == known.before.get(at)]
        if not moved or len(undone) < len(moved):
            known.restored = 0
            return
        known.restored += 1
        if known.restored == 2:
            known.told = True
            line = self._loaded or between(optimizer.step_line, self._end(), _WRITES)
            names = self.facts.some([optimizer.held[at].name for at in undone])
            self.facts.tell(
                Finding(
                    0, "lost-update", "error", 0.9,
                    f"what {optimizer.kind} steps is overwritten before the next step: {names} are back at what they "
                    "were",
                    cause=self.facts.cause(line or optimizer.step_line),
                    evidence=[
                        f"hash of {optimizer.held[at].name}: {known.before[at]:08x} before the step, "
                        f"{known.after[at]:08x} after it, {now[at]:08x} before the next" for at in undone[:3]
                    ],
                    next=weight_commands(self, optimizer.held[undone[0]]),
                )
            )  # fmt: skip

    def _end(self) -> SourceLine | None:
        """Far below the step, in its file."""
        for optimizer in self.ledger.optimizers.values():
            if optimizer.step_line is not None:
                return SourceLine(optimizer.step_line.file, 1 << 30, "")
        return None

    def _unmoved(self, optimizer: Optimizer, known: _Weights, event: OptimizerEvent) -> None:
        moving = [
            at for at in known.after
            if at in known.before and (norm := optimizer.held[at].at_step) and math.isfinite(norm)
        ]  # fmt: skip
        rate = max(event.rates, default=0.0)
        if not moving or not rate:
            return
        still = [at for at in moving if known.before[at] == known.after[at]]
        sizes = {at: math.prod(optimizer.held[at].shape) for at in moving}
        most = sum(sizes[at] for at in still) >= 0.8 * sum(sizes.values())  # a bias that began at 0 shows any change
        known.unmoved = known.unmoved + 1 if most else 0
        if known.unmoved != 3:
            return
        known.told = True
        shown = [optimizer.held[at] for at in still]
        kinds = sorted({self._dtype(held) for held in shown})
        told = self.facts.tell(
            Finding(
                0, "lost-update", "error", 0.85,
                f"no step of {optimizer.kind} changes a bit of {self.facts.some([held.name for held in shown])}: the "
                f"change is too small for {' and '.join(kinds)} (learning rate {rate:g})",
                cause=self.facts.cause(optimizer.made),
                evidence=[
                    f"{held.name}: gradient of norm {held.at_step:.3g}, weight of norm "
                    f"{self.facts.backend.norm(held.ref()):.3g}, the same bits after each of the 3 steps looked at"
                    for held in shown[:3]
                ],
                next=[*weight_commands(self, shown[0]), *rate_commands(self, optimizer)[1:]],
            )
        )  # fmt: skip
        known.still = told
        known.small = max(held.at_step or 0.0 for held in shown) < _VANISHED

    def end(self) -> None:
        """Gradients that vanish on their way, and then change nothing: one finding. Those that explode have a user
        choose a rate at which nothing moves."""
        causes = {each.kind: each.id for each in self.facts.findings.values()}
        for known in self._weights.values():
            told = self.facts.findings.get(known.still)
            cause = causes.get("exploding", causes.get("vanishing") if known.small else None)
            if told is not None and cause is not None:
                self.facts.tell(replace(told, severity="warning", victim_of=cause))

    def _dtype(self, held: Held) -> str:
        return self.facts.backend.meta(held.ref()).dtype or "its type"


@detector("large-update")
class LargeUpdate(LoopDetector):
    """Steps that are larger than the weights themselves, before the loss stops being finite: a learning rate that is
    too large.

    Evidence: the norms of the weights before and after each of the last steps.
    Mistaken for: gradients that are wrong for another reason; weights that began at zero (not told).
    Cost: norms of up to eight weights a step.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._course: dict[int, list[float]] = {}
        self._told = False

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        if optimizer is None or self._told or event.what not in ("step", "stepped"):
            return
        course = self._course.setdefault(optimizer.key, [])
        if event.what == "step" and course:
            return
        total = math.sqrt(sum(self._norm(held) ** 2 for held in optimizer.held[:_MOST]))
        course.append(total)
        del course[:-12]

    def _norm(self, held: Held) -> float:
        tensor = held.ref()
        norm = self.facts.backend.norm(tensor) if tensor is not None else 0.0
        return norm if norm < 1e150 else math.inf

    def begins(self, running: Running) -> None:
        values = running.call.root_values()
        if self._told or len(values) != 1 or math.isfinite(self.facts.backend.norm(values[0])):
            return
        self._judge()

    def _judge(self) -> None:
        for key, course in self._course.items():
            finite = [value for value in course if math.isfinite(value)]
            if len(finite) < 2 or finite[0] <= 0:
                continue
            jumps = [after / before for before, after in itertools.pairwise(finite) if before > 0]
            if finite[-1] < 100 * min(finite) or max(jumps, default=0) < 2:
                continue
            optimizer = self.ledger.optimizers[key]
            self._told = True
            rate = optimizer.rates[-1][1] if optimizer.rates else 0.0
            shown = ", ".join(f"{value:.3g}" for value in course)
            self.facts.tell(
                Finding(
                    0, "large-update", "error", 0.8,
                    f"training diverges: the steps of {optimizer.kind} are larger than the weights themselves "
                    f"(learning rate {rate:g}), until the loss is not finite",
                    cause=self.facts.cause(optimizer.made),
                    evidence=[f"norm of the weights over the last steps: {shown}", "the loss is not finite now"],
                    next=[*weight_commands(self, optimizer.held[0]), *rate_commands(self, optimizer)[1:]],
                )
            )  # fmt: skip


class _Hash:
    def __init__(self) -> None:
        self.value = 0

    def put(self, data: Any) -> None:
        self.value = zlib.crc32(data, self.value)

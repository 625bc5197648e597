"""What the steps do to the weights."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from adbg.engine.diagnosis.detector import OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.numbers.singular import outgrown
from adbg.engine.diagnosis.detectors.training.bits import at_bounds, hashes_of
from adbg.engine.diagnosis.detectors.training.loop import LoopDetector, rate_commands, weight_commands
from adbg.engine.diagnosis.detectors.training.source import between, named
from adbg.engine.diagnosis.ledger import Held, Optimizer
from adbg.engine.diagnosis.source import RATE, argument_line, rate_line
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.session.stop_point import PausedPoint
from adbg.engine.types import SourceLine

if TYPE_CHECKING:
    from adbg.engine.diagnosis.facts import Facts

_MOST = 8  # tensors of one optimizer
_SURE = 4  # times that a step was undone before the next one, for certainty: of five steps
_VANISHED = 1e-6  # norm of a gradient; a usual rate times that is below half a unit in the last place of f32
_PLAIN = frozenset({"SGD", "Momentum"})  # whose steps are as large as the gradient is
_MANY = 4  # losses that add up
_OUTGROWN = 1e4  # times that weights have grown within a few steps
_BEYOND = 1e12  # norm of a gradient of which no training makes use: the square of a few in f32 is infinite
_WRONG = ("uninitialised", "nonfinite", "wrong-derivative", "function-contract")  # gradients are, then steps are
_CLAMPS = r"\b(clamp|clip)(_min|_max)?_?\(|\b(relu_?|maximum|minimum|hardtanh_?)\("
_WRITES = r"load_state_dict|set_state_dict|set_dict|\.data\s*=(?!=)|\.data\.copy_|\.copy_\(|set_value\("
_FADED = 1e-5  # of the highest rate: what its schedule has come to, of which "zero-learning-rate" tells


@dataclass(slots=True)
class _Weights:
    """Hashes of some tensors. ``before`` and ``after`` the last step, by place in what the optimizer holds."""

    before: dict[int, int] = field(default_factory=dict)
    after: dict[int, int] = field(default_factory=dict)
    used: bool = False  # a backward found the weights as the last step had left them
    stood: int = 0  # steps that the next one found, or a backward after them
    restored: int = 0  # steps in a row that were undone before the next one, and that no backward saw
    undone: int = 0  # the finding that says so
    unmoved: int = 0  # steps, of those looked at, that changed no bit, of finite gradients that are not zero
    proof: list[str] = field(default_factory=list)  # hashes, of the last step that was undone
    names: list[str] = field(default_factory=list)
    next: list[str] = field(default_factory=list)
    bounded: bool = False  # all that was undone is at a bound
    still: int = 0  # the finding that says so
    held: Finding | None = None  # the same, not told yet: it seems to follow from another one, which is told at the end
    small: bool = False  # and its gradients are very small
    highest: float = 0.0  # learning rate
    beyond: bool = False  # a gradient was beyond any reason: what steps do from then on comes of that


@detector("lost-update")
class LostUpdate(LoopDetector):
    """Steps that change nothing in the end: the weights are overwritten before the next step with what they were, or
    each change is too small for the type of the weights to show it.

    Evidence: hashes of the weights before and after each step, at each backward, and before the next.
    Mistaken for: weights that are exchanged for an evaluation and back (not told: the next step finds them as the last
    left them), meta learning that takes inner steps back (not told where the outer step changes the same weights),
    dual averaging, which steps from the first weights by the sum of all gradients (not told: a backward runs with what
    was stepped), a search for a rate and a line search, which take steps back (not told: other steps stand), a clamp
    that holds weights at a bound, where the loss wants them beyond it (a note). Gradients that vanish or explode with
    depth, and then change nothing: a consequence, which is told after its cause, as it is where gradients are wrong.
    Not told once a gradient was beyond any reason (above 1e12), or the optimizer keeps what is not finite.
    Cost: a hash of up to eight tensors at the backwards and around the steps of the first ten and the sampled
    iterations.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._weights: dict[int, _Weights] = {}
        self._loaded: SourceLine | None = None

    def begins(self, running: Running) -> None:
        """What is undone after a backward was of use: dual averaging goes back to the first weights for each step."""
        for key, known in self._weights.items():
            optimizer = self.ledger.optimizers.get(key)
            if known.after and not known.used and optimizer is not None:
                known.used = known.after == self._hashes(optimizer) != known.before

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        if event.what == "loaded" and self.ledger.backwards:
            self._loaded = event.line
        if optimizer is None or event.what not in ("step", "stepped"):
            return
        known = self._weights.setdefault(optimizer.key, _Weights())
        if event.what == "step" and known.after:
            now = self._hashes(optimizer)
            self._compare(optimizer, known, now)
            known.before, known.after, known.used = now, {}, False
        elif event.what == "step":
            known.before = self._hashes(optimizer) if self.ledger.close else {}
        elif known.before and self.ledger.close:
            known.after = self._hashes(optimizer)
            self._unmoved(optimizer, known, event)

    def _hashes(self, optimizer: Optimizer) -> dict[int, int]:
        return hashes_of(self.facts, (held.ref() if not held.frozen else None for held in optimizer.held))

    def _compare(self, optimizer: Optimizer, known: _Weights, now: dict[int, int]) -> None:
        """The weights as the last step found them, left them, and as the next one finds them."""
        moved = [at for at in known.after if at in known.before and known.before[at] != known.after[at]]
        undone = [at for at in moved if now.get(at) == known.before.get(at)]
        if not moved:
            return
        # Where gradients are cleared, the weights that a backward saw are of no use: each step begins at the old ones.
        summed = known.used and any(held.received and not held.cleared for held in optimizer.held)
        if summed and len(undone) == len(moved):
            optimizer.rewound += 1
        if summed or len(undone) < len(moved):
            known.stood, known.restored = known.stood + 1, 0
            if known.undone:
                self.facts.take_back(known.undone)
                known.undone = 0
            return
        known.restored += 1
        known.proof = [
            f"hash of {optimizer.held[at].name}: {known.before[at]:08x} before the step, "
            f"{known.after[at]:08x} after it, {now[at]:08x} before the next" for at in undone[:3]
        ]  # fmt: skip
        known.names = [optimizer.held[at].name for at in undone]
        known.bounded = all(at_bounds(self.facts, optimizer.held[at].ref()) for at in undone)
        known.next = weight_commands(self, optimizer.held[undone[0]])
        if known.restored == _SURE and not known.stood:
            self._tell_undone(optimizer, known)

    def _tell_undone(self, optimizer: Optimizer, known: _Weights) -> None:
        """Of all steps that were looked at."""
        line = self._loaded or between(optimizer.step_line, self._end(), _WRITES)
        severity, confidence, evidence = "error", 0.9, list(known.proof)
        if known.bounded and optimizer.step_line is not None and named(optimizer.step_line.file, _CLAMPS):
            severity, confidence = "note", 0.4
            line = between(optimizer.step_line, self._end(), _CLAMPS) or line
            evidence.append("each of their elements is at one of two values, and the program clamps: right where the "
                            "loss wants them beyond that bound")  # fmt: skip
        elif known.restored < _SURE:
            severity, confidence = "warning", 0.75
            evidence.append(f"{known.restored} steps were undone, all that were looked at: more would make it certain")
        known.undone = self.facts.tell(
            Finding(
                0, "lost-update", severity, confidence,
                f"what {optimizer.kind} steps is overwritten before the next step: {self.facts.some(known.names)} are "
                "back at what they were",
                cause=self.facts.cause(line or optimizer.step_line), evidence=evidence, next=known.next,
            )
        )  # fmt: skip

    def _end(self) -> SourceLine | None:
        """Far below the step, in its file."""
        for optimizer in self.ledger.optimizers.values():
            if optimizer.step_line is not None:
                return SourceLine(optimizer.step_line.file, 1 << 30, "")
        return None

    def _finite(self, held: Held) -> bool:
        tensor = held.ref()
        return tensor is not None and math.isfinite(self.facts.backend.norm(tensor))

    def _keeps_finite(self, optimizer: Optimizer, held: Held) -> bool:
        """Not what squares of too large gradients leave behind: divided by that, no gradient changes anything."""
        owner, tensor, backend = optimizer.ref and optimizer.ref(), held.ref(), self.facts.backend
        if owner is None or tensor is None:
            return True
        kept = backend.keeping.optimizer_state(owner, tensor)[1].values()
        return all(math.isfinite(backend.norm(each)) or not any(backend.nonfinite(each))
                   for each in kept if backend.is_tensor(each))  # fmt: skip

    def _unmoved(self, optimizer: Optimizer, known: _Weights, event: OptimizerEvent) -> None:
        norms = [optimizer.held[at].at_step or 0.0 for at in known.after]
        known.beyond = known.beyond or any(_BEYOND < each < math.inf for each in norms)
        if known.beyond or not all(map(math.isfinite, norms)):
            known.unmoved = 0
            return
        moving = [
            at for at in known.after
            if at in known.before and (norm := optimizer.held[at].at_step) and math.isfinite(norm)
        ]  # fmt: skip
        rate = max(event.rates, default=0.0)
        known.highest = max(known.highest, rate)
        if not moving or rate <= known.highest * _FADED or "LBFGS" in optimizer.kind:
            return  # that one stays where its search along a line finds nothing lower
        still = [at for at in moving if known.before[at] == known.after[at]]
        if any(not self._finite(optimizer.held[at]) for at in still):
            return  # NaN plus anything is that NaN
        sizes = {at: math.prod(optimizer.held[at].shape) for at in moving}
        most = sum(sizes[at] for at in still) >= 0.8 * sum(sizes.values())  # a bias that began at 0 shows any change
        known.unmoved = known.unmoved + 1 if most else 0
        if known.unmoved != 3 or known.still or known.held is not None:
            return
        shown = [optimizer.held[at] for at in still]
        if not all(self._keeps_finite(optimizer, held) for held in shown):
            known.beyond = True
            return
        kinds = sorted({self._dtype(held) for held in shown})
        known.small = max(held.at_step or 0.0 for held in shown) < _VANISHED
        found = Finding(
            0, "lost-update", "error", 0.85,
            f"no step of {optimizer.kind} changes a bit of {self.facts.some([held.name for held in shown])}: the "
            f"change is too small for {' and '.join(kinds)} (learning rate {rate:g})",
            cause=self.facts.cause(argument_line(optimizer.made, optimizer.kind, RATE)),
            evidence=[
                f"{held.name}: gradient of norm {held.at_step:.3g}, weight of norm "
                f"{self.facts.backend.norm(held.ref()):.3g}, the same bits after each of the 3 steps looked at"
                for held in shown[:3]
            ],
            next=[*weight_commands(self, shown[0]), *rate_commands(self, optimizer)[1:]],
        )  # fmt: skip
        so_far = self.facts.with_depth()
        if "exploding" in so_far or (known.small and "vanishing" in so_far):
            known.held = replace(found, iteration=self.facts.iteration)
        else:
            known.still = self.facts.tell(found)

    def at_stop(self, point: PausedPoint) -> None:
        self._tell_held()

    def _tell_held(self) -> None:
        for known in self._weights.values():
            if known.held is not None:
                known.still, known.held = self.facts.tell(known.held), None

    def end(self) -> None:
        for key, known in self._weights.items():
            optimizer = self.ledger.optimizers.get(key)
            if known.restored >= 2 and not known.stood and not known.undone and optimizer is not None:
                self._tell_undone(optimizer, known)
        self._explain()

    def _explain(self) -> None:
        """Gradients that vanish on their way, and then change nothing: one finding. Those that explode have a user
        choose a rate at which nothing moves; those that are wrong may do anything."""
        causes = {each.kind: each.id for each in self.facts.findings.values()}
        wrong = [each for each in self.facts.findings.values() if each.kind in _WRONG and each.severity == "error"]
        for known in self._weights.values():
            told = known.held or self.facts.findings.get(known.still)
            small = causes.get("vanishing", causes.get("zero-gradient")) if known.small else None
            cause = wrong[0].id if wrong else causes.get("exploding", small)
            if told is not None and cause is not None:
                known.held = replace(told, severity="warning", victim_of=cause)
        self._tell_held()

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
        self._held: Finding | None = None  # not told yet: of what it follows is known with the next step
        self._grown = False  # the weights have, by so much that what is computed of them overflows
        self._id = 0
        self._kind = ""  # of the optimizer

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
            self._told, self._kind = True, optimizer.kind
            self._grown = finite[-1] > _OUTGROWN * min(finite)
            rate = optimizer.rates[-1][1] if optimizer.rates else 0.0
            shown = ", ".join(f"{value:.3g}" for value in course)
            found = Finding(
                0, "large-update", "error", 0.8,
                f"training diverges: the steps of {optimizer.kind} are larger than the weights themselves "
                f"(learning rate {rate:g}), until the loss is not finite",
                cause=self.facts.cause(rate_line(optimizer.made, optimizer.kind, RATE)),
                evidence=[f"norm of the weights over the last steps: {shown}", "the loss is not finite now"],
                next=[*weight_commands(self, optimizer.held[0]), *rate_commands(self, optimizer)[1:]],
            )  # fmt: skip
            why = self.facts.unclipped()
            if why == 0:
                self._held = replace(found, iteration=self.facts.iteration)
            else:
                self._id = self.facts.tell(replace(found, victim_of=why))

    def iteration_end(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._id = self.facts.tell(replace(held, victim_of=self.facts.unclipped() or None))
        for each in list(self.facts.findings.values()) if self._id and self._grown else ():
            if each.kind == "nonfinite" and outgrown(each) and each.cause != self.facts.findings[self._id].cause:
                self.facts.tell(replace(each, victim_of=self._id))

        if self._id:
            self._blame_sum()

    def _blame_sum(self) -> None:
        """Of plain descent whose losses add up undivided, the steps are as many times too large."""
        found = list(self.facts.findings.values())
        summed = next((each for each in found if each.kind == "undivided" and each.severity == "note"), None)
        large = self.facts.findings.get(self._id)
        count = re.match(r"(\d+) losses", summed.message) if summed is not None else None
        many = int(count[1]) if count is not None else 0
        if summed is None or large is None or large.victim_of is not None or many < _MANY or self._kind not in _PLAIN:
            return
        message = summed.message.partition(": ")[0]
        self.facts.tell(
            replace(
                summed, severity="error", confidence=0.75,
                message=f"{message}: the step is that many times larger, and training diverges; divide each by {many}",
                evidence=[*summed.evidence, *large.evidence],
            )
        )  # fmt: skip
        self.facts.tell(replace(large, victim_of=summed.id))

    def at_stop(self, point: PausedPoint) -> None:
        self.iteration_end()

    def end(self) -> None:
        self.iteration_end()

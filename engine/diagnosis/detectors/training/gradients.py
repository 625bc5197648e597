"""What becomes of the gradients between a backward and a step."""

from __future__ import annotations

import collections
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from adbg.engine.diagnosis.detector import OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.earlier.together import Place, calls_now
from adbg.engine.diagnosis.detectors.training.clearing import Clearing, Clearings, in_vain
from adbg.engine.diagnosis.detectors.training.loop import LoopDetector, norms, stands_above
from adbg.engine.diagnosis.detectors.training.source import between, place, switched_off, uncalled
from adbg.engine.diagnosis.ledger import Held, Moment, Optimizer
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

if TYPE_CHECKING:
    from adbg.engine.diagnosis.facts import Facts

_ADDED_UP = 12  # backwards
_HALF = 65504.0  # float16's largest
_TIMES = 4.0  # as large as a gradient was before
_LEARNT = 8  # steps, the callers of whose backwards are remembered
_CLEARS = r"\.grad\s*=(?!=)|\.grad\.(zero_|fill_|mul_|copy_|scale_|set_value)|clear_grad|zero_grad"


@detector("zero-grad")
class ZeroGrad(LoopDetector):
    """Gradients that are never cleared between two steps of the optimizer that uses them, so that each step also takes
    those of the steps before.

    Evidence: the norm of .grad at each step, and that every backward found it as the last step left it.
    Mistaken for: gradient accumulation (cleared once per step: not told), two optimizers that clear each other's
    gradients (not told: what counts is each parameter, between steps of its own optimizer), dual averaging (a note).
    Cost: norms of the gradients in the first ten iterations and around the sampled ones.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._told: dict[int, int] = {}  # optimizer -> id of the finding
        self._seen: dict[int, int] = {}  # steps that used gradients of earlier ones, as far as they were followed
        self._clearings = Clearings()

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        if event.what == "zeroed":
            self._clearings.note(event)
        if event.what == "stepped" and optimizer is not None:
            most = max((held.stale for held in optimizer.held), default=0)
            if optimizer.at_once:
                self._seen[optimizer.key] = self._seen.get(optimizer.key, 0) + (most > 0)
            if most >= 2 and optimizer.key not in self._told:
                self._tell(optimizer, most, 0.95)

    def end(self) -> None:
        for key, optimizer in self.ledger.optimizers.items():
            most = max((held.stale for held in optimizer.held), default=0)
            if key not in self._told and most == 1 and optimizer.steps == 2:
                self._tell(optimizer, 1, 0.75)
            elif key in self._told and most >= 2:
                self._goes_on(optimizer)

    def _meant(self, zeroed: list[Moment], optimizer: Optimizer) -> Clearing | None:
        """The call that clears another optimizer only, and was meant for this one too: asked of an object that holds
        both, or where one line steps both of them."""
        for moment in reversed(zeroed):
            found = self._clearings.of(moment.optimizer, moment.line)
            other = self.ledger.optimizers.get(moment.optimizer)
            together = other is not None and other.step_line is not None and other.step_line == optimizer.step_line
            if found is not None and (together or optimizer.key in found.holds):
                return found
        return None

    def _with(self, optimizer: Optimizer) -> list[Held]:
        """What other optimizers were given, which the same line steps."""
        others = [each for each in self.ledger.optimizers.values() if each is not optimizer]
        same = [each for each in others if each.step_line is not None and each.step_line == optimizer.step_line]
        return [held for each in same for held in each.held if held.total]

    def _other_module(self, stale: list[Held], others: list[Held]) -> SourceLine | None:
        """The line that clears a module, and is to clear ``stale`` too: it reaches all that is stepped with them."""
        left, cleared = ({id(held.ref()) for held in each} for each in (stale, others))
        return self._clearings.beside(left, cleared)

    def _goes_on(self, optimizer: Optimizer) -> None:
        """It was told after two steps, and none that was followed since was another."""
        told = self.facts.findings.get(self._told[optimizer.key])
        seen, steps = self._seen[optimizer.key], optimizer.steps
        if told is None or seen <= 2 or seen < optimizer.followed - 1:
            return
        looked = f"so it was at all {seen} steps that were followed, of {steps}"
        message = told.message.rpartition(" add up over ")[0] + f" add up over {steps} steps, the whole run"
        self.facts.tell(replace(told, message=message, evidence=[*told.evidence, looked]))

    def _tell(self, optimizer: Optimizer, most: int, confidence: float) -> None:
        stale = [held for held in optimizer.held if held.stale]
        received = [held for held in optimizer.held if held.total]
        names = self.facts.some([held.name for held in stale])
        zeroed = [moment for moment in self.ledger.moments if moment.what == "zeroed"]
        what = self.facts.backend.clearing
        line, forgotten, wrong = optimizer.step_line, None, None
        if not zeroed and line is not None:
            forgotten = uncalled(line.file, what.partition("(")[0])
        if forgotten is not None:
            text = f"gradients are never cleared ({what} is named but not called: its parentheses are missing)"
        elif not zeroed:
            text = f"gradients are never cleared ({what} is never called)"
        elif len(stale) < len(received):
            text = f"{what} does not reach all parameters that {optimizer.kind} steps"
            if (forgotten := self._other_module(stale, [held for held in received if not held.stale])) is not None:
                text += f": {place(forgotten)} clears others"
        elif all(moment.optimizer not in (0, optimizer.key) for moment in zeroed):
            text = f"{what} is called, but of another optimizer"
            off = switched_off(line, what.partition("(")[0]) if line is not None else None
            if off is not None:
                forgotten = off[0]
                text += f": {off[1]} leaves it out where it is called without that argument"
            elif (wrong := self._meant(zeroed, optimizer)) is not None:
                forgotten = wrong.line
                text += f": {place(wrong.line)} does not reach {optimizer.kind}"
            elif (forgotten := in_vain(self.ledger.moments, optimizer.key)) is not None:
                text += f": what {place(forgotten)} clears is not stepped before it is cleared again"
        elif (forgotten := self._other_module(stale, self._with(optimizer))) is not None:
            text = f"{what} is called, but of a module with other parameters than {optimizer.kind} steps, at "
            text += place(forgotten)
        else:
            text = f"{what} is not called between steps of {optimizer.kind}"
        evidence = [f"norm of the gradient of {held.name} at the last steps: {norms(held.norms)}" for held in stale[:3]]
        if wrong is not None and wrong.caller is not None:
            evidence.append(f"{wrong.line.function}, which clears the other one, is called in {place(wrong.caller)}")
        evidence.append(f"each backward began with the gradient that the last step had used, {most} times in a row")
        severity = "error"
        if optimizer.rewound:
            severity, confidence = "note", 0.4
            evidence.append("each step is undone before the next one: right in dual averaging, which steps from the "
                            "first weights by the sum of all gradients")  # fmt: skip
        finding = Finding(
            0, "zero-grad", severity, confidence,
            f"{text}: gradients of {names} add up over {most + 1} steps",
            cause=self.facts.cause(forgotten or line), evidence=evidence, next=_show(stale),
        )  # fmt: skip
        self._told[optimizer.key] = self.facts.tell(finding)


@detector("zero-grad")
class NoLongerCleared(LoopDetector):
    """A branch that leaves a step out, for its gradients are too large, leaves their clearing out, too: they add up,
    and no later step is taken either.

    Evidence: how many backwards there were between two steps, how many since the last one, and the line that cleared.
    Mistaken for: gradients that are added up for something else when training is over, by other lines, or callers, and
    those that are cleared by hand (not told). A note where no gradient was large as steps stopped.
    Cost: norms of gradients at the first eight steps; a look at callers until then, and from the twelfth in a row on.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._callers: set[tuple[Place, ...]] = set()  # of the backwards that steps followed
        self._now: tuple[Place, ...] = ()
        self._since = 0  # backwards since the last step or clearing
        self._most = 0  # between two of these, so far
        self._steps = 0
        self._last: SourceLine | None = None
        self._clears: SourceLine | None = None
        self._from = 0  # the iteration since which nothing is cleared
        self._usual = 0.0  # the largest norm of a gradient at the first steps
        self._large = False  # one was far larger then, or not finite

    def begins(self, running: Running) -> None:
        self._since += 1
        self._last = running.call.location
        if self._since == 1:
            self._from = self.facts.iteration
        self._now = calls_now() if self._steps < _LEARNT or self._since >= _ADDED_UP else ()
        if self._steps and self._since in (self._most + 1, _ADDED_UP):
            sizes = self._sizes()
            self._large = (self._large and self._since == _ADDED_UP) or any(
                not size <= min(_HALF, _TIMES * self._usual) for size in sizes
            )
            self._since = self._since if any(sizes) else 0  # else they are cleared by hand

    def _sizes(self) -> list[float]:
        held = [each for optimizer in self.ledger.optimizers.values() for each in optimizer.held]
        return [size for each in held if (size := self.ledger.norm(each)) is not None]

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        if event.what == "step":
            self._steps += 1
            if self._now:
                self._callers.add(self._now)
                self._usual = max([self._usual, *self._sizes()])
        elif event.what == "zeroed" and event.line is not None:
            self._clears = event.line
        else:
            return
        self._most, self._since = max(self._most, self._since), 0

    def end(self) -> None:
        if self._steps < 2 or self._clears is None or self._last is None or self._now not in self._callers:
            return
        if self._since < max(_ADDED_UP, 4 * self._most):
            return
        self.facts.tell(
            Finding(
                0, "zero-grad", *(("error", 0.88) if self._large else ("note", 0.45)),
                f"since iteration {self._from}, {self._since} backwards add up and nothing is stepped: "
                f"{place(self._clears)}, which clears the gradients, is not reached any more, as the step; clear them "
                "where a step is left out, too",
                cause=self.facts.cause(self._clears),
                evidence=[
                    f"before, at most {self._most} backwards came between two steps or clearings",
                    f"all of them at {place(self._last)}, in the last {self.facts.iteration - self._from + 1} "
                    "iterations",
                    "a gradient was far larger then than at the first steps: what leaves steps out is such a check"
                    if self._large else "whether they are to be added up decides it: no gradient was very large",
                ],
                next=_show([]),
            )
        )  # fmt: skip


@detector("cleared-gradients", "dropped-gradients", "step-order")
class LostGradients(LoopDetector):
    """Gradients that are gone before the step that should use them: cleared between backward and step, thrown away by
    an assignment to .grad, or stepped before the backward that makes them.

    Evidence: norms of the gradients as backward ended and as the step began.
    Mistaken for: a batch that is skipped on purpose (not told: no step takes place), gradients of some parameters that
    are dropped to freeze them (not told: all that an optimizer was given must be gone, twice).
    Cost: as zero-grad.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._lost: dict[int, int] = {}  # steps in a row
        self._told: set[int] = set()
        self._pending: dict[int, tuple[Optimizer, list[str], list[str], list[Moment], SourceLine | None]] = {}

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        if event.what != "step" or optimizer is None or optimizer.key in self._told or not self.ledger.close:
            return
        given = [held for held in optimizer.held if held.received]
        if not any(held.ended for held in given):  # a loss may cancel what another one left to exactly 0
            return
        if any(held.at_step for held in given):
            self._lost[optimizer.key] = 0
            self._pending.pop(optimizer.key, None)
            return
        times = self._lost[optimizer.key] = self._lost.get(optimizer.key, 0) + 1
        evidence = [
            f"gradient of {held.name}: norm {norms([held.ended])} after backward, {norms([held.at_step])} at the step"
            for held in given[:3]
        ]
        names = [held.name for held in given]
        self._pending[optimizer.key] = optimizer, names, evidence, self.ledger.since_backward(), event.line
        if times >= 2:
            self._tell(optimizer.key, 0.95)

    def end(self) -> None:
        for key in tuple(self._pending):
            if self.ledger.optimizers[key].steps == 1:
                self._tell(key, 0.75)

    def _tell(self, key: int, confidence: float) -> None:
        optimizer, names, evidence, moments, step = self._pending.pop(key)
        self._told.add(key)
        backward = self.ledger.backward_line
        zeroed = [moment for moment in moments if moment.what == "zeroed" and moment.optimizer in (0, key)]
        ran = [place for place, moment in enumerate(moments) if moment.what == "forward"]
        which, what = self.facts.some(names), self.facts.backend.clearing
        if zeroed and (stands_above(backward, step) or (ran and ran[0] > moments.index(zeroed[-1]))):
            kind, line = "step-order", step
            text = f"{optimizer.kind} steps before backward: at the step {which} have no gradients, {what} took them"
        elif zeroed:
            kind, line = "cleared-gradients", zeroed[-1].line
            text = f"{what} clears the gradients of {which} between backward and the step: nothing is stepped"
        else:
            kind, line = "dropped-gradients", between(backward, step, _CLEARS, self._clearing()) or step
            text = f"the gradients of {which} are thrown away between backward and the step: nothing is stepped"
        if backward is not None:
            evidence.append(f"backward was called in {place(backward)}, the step in {place(step)}")
        self.facts.tell(
            Finding(0, kind, "error", confidence, text, cause=self.facts.cause(line), evidence=evidence, next=_show([]))
        )

    def _clearing(self) -> set[SourceLine | None]:
        return {moment.line for moment in self.ledger.moments if moment.what == "zeroed"}


@detector("twice-backward")
class TwiceBackward(LoopDetector):
    """The same loss is run backward twice before one step, so that each gradient counts double.

    Evidence: both calls began at the same node, no forward ran between them, every gradient doubled, and a step used
    them.
    Mistaken for: losses that share a part of the graph (another root: not told), micro-batches (another graph),
    backwards that are timed, and whose gradients are cleared (not told: no step uses them).
    Cost: as zero-grad.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._before: tuple[object, ...] | None = None
        self._loss: Callable[[], Any] = lambda: None  # a weak reference: another loss may lie where it lay
        self._first: SourceLine | None = None
        self._again = False
        self._pending: tuple[Finding, list[tuple[Held, float | None]]] | None = None  # until a step uses the gradients
        self._done = False

    def begins(self, running: Running) -> None:
        call = running.call
        values = call.root_values()
        self._again = False
        if self._pending is not None and any(held.begun != norm for held, norm in self._pending[1]):
            self._pending = None  # cleared in a way that no event tells of
        if self._done or not self.ledger.close or len(values) != 1 or self.facts.backend.meta(values[0]).numel != 1:
            self._before = None
            return
        roots = call.roots()
        here = (
            tuple(map(tuple, self.facts.backend.storages(values[0]))), tuple(call.address(key) for key in roots),
            self.facts.backend.version_of(values[0]),
        )  # fmt: skip
        self._again = here == self._before and self._loss() is values[0] and not self._since()
        self._before, self._loss = here, weakref.ref(values[0])

    def _since(self) -> set[str]:
        """What happened between the last two backwards, that makes them two."""
        found: set[str] = set()
        for moment in list(self.ledger.moments)[-2::-1]:
            if moment.what == "backward":
                break
            found.add(moment.what)
        return found & {"forward", "look", "step", "stepped", "zeroed"}

    def ends(self, running: Running) -> None:
        line = running.call.location
        if not self._again:
            self._first = line
            return
        held = [each for optimizer in self.ledger.optimizers.values() for each in optimizer.held]
        both = [each for each in held if each.begun and each.ended]
        if not both or not all(_doubled(each) for each in both):
            self._first = line
            return
        evidence = [
            f"gradient of {each.name}: norm {each.begun:.4g} after the first, {each.ended:.4g} after the second"
            for each in both[:3]
        ]
        evidence.append(f"first in {place(self._first)}, again in {place(line)}")
        finding = Finding(
            0, "twice-backward", "error", 0.93,
            "the same loss is run backward twice before one step: the gradients of "
            f"{self.facts.some([each.name for each in both])} count double",
            iteration=self.facts.iteration, backward=running.call.number, cause=self.facts.cause(line),
            evidence=evidence, next=_show(both),
        )  # fmt: skip
        self._pending = finding, [(each, each.ended) for each in both]

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        """A step with what the two left: cleared in between, or halved, they are another matter."""
        if self._pending is None or event.what not in ("step", "zeroed"):
            return
        finding, both = self._pending
        ids = set(map(id, event.tensors))
        used = [(held, norm) for held, norm in both if id(held.ref()) in ids]
        if not used:
            return
        self._pending = None
        at_step = [(held.at_step, norm) for held, norm in used]
        if event.what == "step" and all(now and norm and abs(2 * now / norm - 1) > 1e-3 for now, norm in at_step):
            self._done = True
            self.facts.tell(finding)


@detector("undivided")
class Undivided(LoopDetector):
    """Losses of several micro-batches add up before each step without being divided by their number, so that the step
    is that many times as large as one over the whole batch.

    Evidence: how many backwards from the same line there are before each step, and the operator that made the loss.
    Mistaken for: losses that are sums on purpose. A note: only you know.
    Cost: none.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._counts: collections.deque[int] = collections.deque(maxlen=3)  # backwards between the last steps
        self._lines: list[SourceLine | None] = []
        self._means = 0
        self._told = False

    def begins(self, running: Running) -> None:
        self._lines.append(running.call.location)
        names = [name.lower() for name in running.call.root_names]
        self._means += all("mean" in name or "loss" in name or "entropy" in name for name in names)

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        if event.what == "zeroed":  # within step(closure), too: what came before is in no step's gradient
            self._lines, self._means = [], 0
        if event.what != "step" or self._told or not self._lines:
            return
        lines, means, self._lines, self._means = self._lines, self._means, [], 0
        same = len(set(lines)) == 1 and means == len(lines) and len(self.ledger.optimizers) == 1
        self._counts.append(len(lines) if same else 0)
        last = list(self._counts)
        if len(last) == 3 and last[0] >= 2 and len(set(last)) == 1:
            self._told = True
            self.facts.tell(
                Finding(
                    0, "undivided", "note", 0.4,
                    f"{last[0]} losses, each a mean, add up before each step and none is divided by {last[0]}: the "
                    "step is that many times larger; right if the learning rate was chosen for it",
                    cause=self.facts.cause(lines[-1]),
                    evidence=[f"backwards from this line before the last steps: {', '.join(map(str, last))}"],
                    next=["b backward-end"],
                )
            )  # fmt: skip


def _doubled(held: Held) -> bool:
    return bool(held.begun and held.ended and abs(held.ended / held.begun - 2) < 1e-3)


def _show(held: list[Held]) -> list[str]:
    """A gradient at the end of each backward."""
    return ["b backward-end", *(f"b param:{each.path} after" for each in held[:1] if each.path)]

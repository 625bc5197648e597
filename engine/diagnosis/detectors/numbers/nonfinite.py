"""NaN and infinity: the one operator, batch, parameter or step that they begin at."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from adbg.engine.diagnosis.detector import Detector, FunctionCall, Need, OperatorCall, OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.numbers import saved, singular, values
from adbg.engine.diagnosis.detectors.numbers.ledger import Ledger, Made
from adbg.engine.diagnosis.detectors.numbers.left_out import Losses, Unstepped
from adbg.engine.diagnosis.detectors.numbers.origins import Origins
from adbg.engine.diagnosis.detectors.numbers.skipped import Skipped
from adbg.engine.diagnosis.detectors.numbers.steps import Steps
from adbg.engine.diagnosis.detectors.numbers.stopped import AtStop, BeforeWatch
from adbg.engine.diagnosis.detectors.sizes.sizes import size_of
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.values import is_of_values
from adbg.engine.graph.forward_origin import reached_from
from adbg.engine.protocol.messages import Finding, FoundAt
from adbg.engine.session.running_call import Running, Visit
from adbg.engine.session.stop_point import PausedPoint

_SECONDS = 1.0  # of a run, spent on operators outside of sampled iterations; later ones are sampled only
_GRADIENTS = 64  # of one optimizer that are looked at as it steps: 5 us each on torch, 20 on Paddle


@dataclass(slots=True)
class _Call:
    """Of one running backward."""

    told: bool = False  # the forward was bad: whatever backward makes of it follows
    found: Finding | None = None
    masked: bool = False
    leaves: list[str] = field(default_factory=list)  # that get what is not finite
    half: bool = False  # a range of float16 was left
    others: int = 0  # further nodes that made some of finite gradients


@detector("nonfinite")
class NonFinite(Detector):
    """Where NaN and infinities begin: the operator of the forward that made the first one of finite operands, the node
    that made one of finite gradients, a batch that had them, or the step since which a parameter has them.

    Also gradients that are made so between backward and the step that uses them: divided by a count of 0, by a norm,
    cast to a type that they are too large for.

    Evidence: the values at the place (operands, what the node saved, the gradient that came in), counts, the losses
    before, and which parameters get it. Of a step that divides by 0: an ``eps`` that is 0 in the type of the second
    moment, which is 0 at most of the elements that are not finite.
    Mistaken for: masks of -inf, steps that a loss scaler skips, and infinities that reach no loss and no parameter are
    not told. A batch, or a step, that the program leaves out is a note; eight in a row are an error. Where a scaler
    skips every step of a run, its scale has not come down yet: a note, a warning from eight steps in a row on, an error
    from 32 on.
    Cost: one norm per gradient in every backward, one per operator's result in sampled iterations and for the first
    second of such looks of a run.
    """

    needs = Need.STEPS | Need.OPERATORS | Need.FUNCTIONS
    sampled = Need.OPERATORS
    screens = True

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._ledger = Ledger(facts)
        self._steps = Steps()
        self._origins = Origins(facts, self._ledger, self._steps)
        self._calls: dict[int, _Call] = {}
        self._told: list[int] = []  # ids of findings of origins
        self._held: Finding | None = None  # the first, not told yet: of what it follows is about to be known
        # Of half types, not told if no parameter is harmed: (finding, leaves, the loss scale alone makes it)
        self._pending: list[tuple[Finding, list[str], bool]] = []
        self._skipped = Skipped(facts)
        self._unstepped = Unstepped(facts)
        self._losses = Losses(facts)
        self._raised: tuple[str, list[Made]] = "", []  # by the last operator that did, and what was not finite there
        self._spent = 0.0
        self._hidden = not facts.backend.capabilities.saved_tensors
        self._stopped = AtStop(facts)
        self._before = BeforeWatch(facts)
        facts.spoilt = self._began

    # ---- the forward

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None and not self._told:
            self._raised = str(call.error), [made for each in call.operands if (made := self._ledger.of(each))]
        if call.error is not None or self._told or (self._steps.inside and not self.facts.sampled):
            return  # an optimizer's operators go through all parameters many times
        self._before.ask()
        if self._before.found:
            return
        begun = time.perf_counter()
        in_backward = call.in_backward or bool(self._calls)  # Paddle does not tell
        made = self._ledger.look(call, in_backward)
        if made is not None:
            if self._steps.inside:
                first = made.origin()
                if first is made or (first.name, first.lines) == (made.name, made.lines):  # one result of several
                    first.kind = "step"
                    self._steps.bad = self._steps.bad or first
            if not in_backward and not self._steps.inside:
                self._losses.made(call, made)
        else:
            self._losses.finite(call)
        if self._hidden and not in_backward:
            self._ledger.watch_edges(call)
        self._spent += time.perf_counter() - begun
        if self._spent > _SECONDS:
            self.needs = Need.STEPS | Need.FUNCTIONS  # from the next iteration on

    def function(self, call: FunctionCall) -> None:
        backend = self.facts.backend
        if call.phase == "backward" and call.error is None and self._origins.function is None:
            given = call.results if isinstance(call.results, (tuple, list)) else (call.results,)
            made = any(any(values.bad(backend, each)) for each in given)
            if made and not any(any(values.bad(backend, each)) for each in call.arguments):
                self._origins.function = call.function

    def optimizer(self, event: OptimizerEvent) -> None:
        self._before.ask()
        self._steps.note(event, self.facts.iteration)
        self.facts.stepping = self._steps.inside
        if event.what == "step" and (used := self._unstepped.stepped(event.tensors)) is not None:
            self._tell(used)
        elif event.what == "zeroed":
            self._unstepped.cleared()
        if event.what == "step" and self.facts.iteration and not (self._told or self._pending or self._skipped.row):
            self._before_step(event)

    def _before_step(self, event: OptimizerEvent) -> None:
        """What backward gave was finite, as it was looked at: what is not now was made so since."""
        backend = self.facts.backend
        found: Finding | None = None
        stepped = event.tensors[:: -(-len(event.tensors) // _GRADIENTS) or 1]
        gradients = [gradient for tensor in stepped if (gradient := backend.gradient_of(tensor)) is not None]
        for tensor in () if backend.keeping.finite(gradients) else stepped:
            gradient = backend.gradient_of(tensor)
            if gradient is not None and not math.isfinite(backend.norm(gradient)) and any(backend.nonfinite(gradient)):
                here = self._origins.of_gradient(tensor, gradient, event)
                found = here if found is None or here.cause is not None else found
                if found.cause is not None:
                    break
        if found is not None:
            self._tell(found)

    # ---- a backward

    def backward_begin(self, running: Running) -> None:
        self._calls = {serial: each for serial, each in self._calls.items() if serial in _serials(running)}
        here = self._calls[running.serial] = _Call()
        if len(running.chain) > 1:
            here.told = any(self._calls[each.serial].told for each in running.chain[:-1] if each.serial in self._calls)
            return
        self._ledger.backward_begins()
        if (again := self._unstepped.begins()) is not None:
            self._tell(again)
        self._origins.function = None
        self._before.ask()
        if not self._told and self._before.still():
            here.told = True
            self._told.append(self.facts.tell(self._before.finding(running.call.number)))
            return
        backend = self.facts.backend
        for value in running.call.root_values():
            if not backend.is_tensor(value):
                continue
            size = backend.norm(value)
            self._steps.loss(size)
            if math.isfinite(size):
                self._losses.begins(True)
            elif any(backend.nonfinite(value)):
                here.told = True
                self._losses.begins(False)
                if not self._told:
                    self._forward(running, value)

    def node_end(self, visit: Visit) -> None:
        running, key = visit.running, visit.key
        here = self._calls.get(running.serial)
        if here is None or here.told or self._told or not visit.ins:
            return
        backend = self.facts.backend
        if self.facts.sampled and all(each is None or math.isfinite(each) for each in size_of(visit).leaving):
            return  # others want these norms too
        slots = [slot for slot, value in enumerate(visit.ins) if any(values.bad(backend, value))]
        if not slots:
            return
        call = running.call
        for edge in call.edges(key):
            if edge.to is not None and edge.slot in slots and call.is_accumulate(edge.to):
                here.leaves.append(self.facts.leaf_at(call, edge.to) or "a leaf without a name")
        arriving = any(any(values.bad(backend, value)) for value in visit.outs)
        if here.found is not None:
            here.others += not arriving
            return
        if arriving:
            here.found = self._origins.of_arrived(visit)
            return
        self._made(visit, here)

    def _made(self, visit: Visit, here: _Call) -> None:
        """The first node of this backward that made some of finite gradients."""
        running, key, backend = visit.running, visit.key, self.facts.backend
        call = running.call
        made = saved.made_here(backend, call, key, visit.outs, visit.ins or ())
        if made.spoilt:
            source = saved.first_in_forward(backend, call, reached_from(call, key))
            finding = self._origins.of_source(call, source, None) if source is not None else None
            if finding is not None:
                finding.evidence.append(f"{call.describe(key).unique_name}: {made.evidence[0]}")
                here.found = finding
                return
        if self._hidden and not call.is_custom(key):
            known = self._ledger.at(self.facts.node(call, key)[1], self.facts.iteration)
            first = known.origin() if known is not None else None
            here_too = first is not None and first.line == self.facts.node(call, key)[1]
            masked = here_too and made.masked and self._ledger.edges_at(call.describe(key).forward)
            finding = self._origins.of_made(first, call) if first is not None and not masked else None
            if finding is not None:
                finding.evidence.append(f"{call.describe(key).unique_name}: {made.evidence[0]}")
                here.found = finding
                return
        here.half = made.overflow == "f16" or self._half(visit)
        here.masked = made.masked
        here.found = self._origins.of_node(call, key, made)

    def _half(self, visit: Visit) -> bool:
        return any(
            self.facts.backend.is_tensor(value) and self.facts.backend.meta(value).dtype == "f16"
            for value in (*visit.outs, *(visit.ins or ()))
        )

    def backward_end(self, running: Running, error: BaseException | None) -> None:
        here = self._calls.pop(running.serial, None)
        if len(running.chain) == 1:
            self._unstepped.backward_ended()
        if here is None or here.found is None or here.told:
            return
        # A gradient that no leaf gets harms nothing; of paddle.grad and autograd.grad the leaves are not seen.
        outermost = running.call.entry == "backward" and len(running.chain) == 1 and error is None
        if outermost and not here.leaves and not self._unstepped.any_bad():
            return
        found = here.found
        leaves = list(dict.fromkeys(here.leaves))
        if leaves:
            found.evidence.append(f"not finite in this backward: the gradient of {Facts.some(leaves)}")
        if here.others:
            found.evidence.append(f"{here.others} more nodes make some of finite gradients in this backward")
        if here.half and error is None:
            self._pending.append((found, leaves, True))
        elif error is not None:
            self._tell(found)
        elif len(running.chain) == 1:
            self._await_step(found)
        else:
            around = self._calls.get(running.chain[-2].serial)
            if around is not None and around.found is None:
                around.found = found
                around.leaves.append("what the node around it gives")

    # ---- a loss that is not finite

    def _forward(self, running: Running, root: Any) -> None:
        """The loss of a backward is not finite."""
        backend, call = self.facts.backend, running.call
        made = self._ledger.of(root)
        finding = None
        if made is not None:
            finding = self._origins.of_made(made.origin(), call)
        source = None
        if finding is None:
            source = saved.first_in_forward(backend, call)
            if source is not None:
                finding = self._origins.of_source(call, source, root)
        nan, _ = backend.nonfinite(root)
        if finding is None and not self._told:
            key = call.roots()[0] if call.roots() else None
            at, forward = self.facts.node(call, key) if key is not None else (FoundAt(), None)
            finding = self._origins.diverged(None) or Finding(
                id=0, kind="nonfinite", severity="error", confidence=0.5, node=at, backward=call.number,
                message=f"the loss is {'NaN' if nan else 'infinite'}, and which operator made it so was not watched",
                forward=forward, cause=None, evidence=self._steps.losses_text(),
                next=["adbg diagnose --deep --only nonfinite SCRIPT"],
            )  # fmt: skip
        if finding is None:
            return
        # An overflow of float16 may be one of a loss that a scaler multiplied, whose step it will skip.
        first = made.origin() if made is not None else None
        if first is not None and not first.nan and first.what.endswith(" float16") and self._steps.any:
            self._pending.append((finding, [], first is made))
        else:
            self._await_step(finding)

    # ---- telling

    def _await_step(self, finding: Finding) -> None:
        """A program that looks at its gradients may leave the step out."""
        if self._steps.any:
            self._unstepped.put(finding)
        else:
            self._tell(finding)

    def _tell(self, finding: Finding) -> None:
        """An origin. What comes in later iterations is a consequence, or the same again."""
        if self._told:
            return
        self.needs = Need.STEPS
        why = self.facts.unclipped() if singular.outgrew(finding.message) else None
        if why == 0:  # known with the next step
            self._told.append(0)
            self._held = finding
        else:
            self._told.append(self.facts.tell(replace(finding, victim_of=why or finding.victim_of)))

    def _tell_awaited(self) -> None:
        if (awaited := self._unstepped.take()) is not None:
            self._tell(awaited)
        self._tell_held()

    def _tell_held(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._told = [self.facts.tell(replace(held, victim_of=self.facts.unclipped() or held.victim_of))]

    def _began(self, tensors: Sequence[Any]) -> int | None:
        """The finding that tells where it began that one of these is not finite; None for finite ones, or where it is
        not known. Told now where no backward has come yet that would have."""
        self._tell_held()
        spoilt = [each for each in tensors if any(values.bad(self.facts.backend, each))]
        if spoilt:
            self._tell_awaited()
        if not spoilt or self._told:
            return next((each for each in self._told if each in self.facts.findings), None) if spoilt else None
        return self._tell_origin([made for each in spoilt if (made := self._ledger.of(each))])

    def uncaught(self, error: BaseException) -> None:
        text, made = self._raised
        if not self._told and made and text == str(error) and is_of_values(text):
            self._tell_origin(made, f"it ends the program: {type(error).__name__}: {text[:160]}")

    def _tell_origin(self, known: list[Made], *evidence: str) -> int | None:
        for made in known:
            finding = self._origins.of_made(made.origin(), None) if made.origin().kind != "constant" else None
            if finding is not None:
                finding.evidence.extend(evidence)
                self._tell(finding)
                self._tell_held()
                return next(iter(self._told), None)
        return None

    def iteration_end(self) -> None:
        self._tell_held()
        pending, self._pending = self._pending, []
        if self._told:
            return
        if not pending:
            self._skipped.stepped()
            return
        backend = self.facts.backend
        harmed = any(any(backend.nonfinite(parameter)) for _, parameter in backend.parameters())
        last = self._steps.last
        stepped = last is not None and last.iteration == self.facts.iteration
        unused = not (self._steps.any or any(True for _ in backend.optimized()))
        for finding, leaves, _ in pending:
            if harmed or unused or (stepped and not leaves):
                finding.evidence.append("no optimizer, and no loss scaler, is in use" if unused else "a step used it")
                self._tell(finding)
                return
        wrong = self._skipped.skip(pending[0][0], pending[0][2])
        if wrong is not None:
            self._tell(wrong)

    def at_stop(self, point: PausedPoint) -> None:
        self._tell_awaited()
        if self._told or point.backend is not self.facts.backend:
            return
        found = self._stopped.judge(point, self._origins.of_node)
        if found is not None and found.severity == "warning":
            self.facts.tell(found)  # of float16: what a scaler makes of it is not known yet
        elif found is not None:
            self._tell(found)

    def end(self) -> None:
        self._tell_awaited()
        if self._told:
            return
        self._unstepped.end()
        self._skipped.end(self._steps.last is not None)
        for made in self._losses.left():
            finding = self._origins.of_made(made.origin(), None)
            if finding is not None:
                self._tell(finding)
                return
        for made in self._losses.skipped[:1]:
            finding = self._origins.of_made(made.origin(), None)
            if finding is not None:
                finding.evidence.append(
                    f"{len(self._losses.skipped)} losses were not finite, no backward ran on them, and training "
                    "went on: a bug if the program does not skip them on purpose"
                )
                self.facts.tell(replace(finding, severity="note", confidence=0.4))
        if self._steps.last is None:
            return
        for name, parameter in self.facts.backend.parameters():
            nan, inf = values.bad(self.facts.backend, parameter)
            if nan or inf:
                finding = self._origins.of_parameter(name, [f"{name}: {values.counted(nan, inf)}"], None)
                if finding is not None:
                    self._tell(finding)
                return


def _serials(running: Running) -> set[int]:
    return {each.serial for each in running.chain}

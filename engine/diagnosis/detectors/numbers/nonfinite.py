"""NaN and infinity: the one operator, batch, parameter or step that they begin at."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from adbg.engine.diagnosis.detector import Detector, FunctionCall, Need, OperatorCall, OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.numbers import own_backward, saved, singular, values
from adbg.engine.diagnosis.detectors.numbers.ledger import Ledger, Made
from adbg.engine.diagnosis.detectors.numbers.steps import Steps
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.graph.forward_origin import reached_from
from adbg.engine.graph.index import index_of
from adbg.engine.protocol.messages import Finding, FoundAt
from adbg.engine.session.running_call import Running, Visit
from adbg.engine.session.stop_point import PausedPoint
from adbg.engine.types import SourceLine

_SECONDS = 2.0  # of a run, spent on operators outside of sampled iterations; later ones are sampled only
_SKIPPED = 8  # steps in a row that a loss scaler skips while it looks for its scale


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

    Evidence: the values at the place (operands, what the node saved, the gradient that came in), counts, the losses
    before, and which parameters get it.
    Mistaken for: masks of -inf, steps that a loss scaler skips, and infinities that reach no loss and no parameter are
    not told. A batch that the program skips is a note.
    Cost: one norm per gradient in every backward, one per operator's result in sampled iterations and for the first
    two seconds of such looks of a run.
    """

    needs = Need.STEPS | Need.OPERATORS | Need.FUNCTIONS
    sampled = Need.OPERATORS
    screens = True

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._ledger = Ledger(facts)
        self._steps = Steps()
        self._calls: dict[int, _Call] = {}
        self._told: list[int] = []  # ids of findings of origins
        self._pending: list[tuple[Finding, list[str]]] = []  # of half types: not told if no parameter is harmed
        self._skipped = 0
        self._scalars: dict[tuple[str, int], Made] = {}  # losses that are not finite, by line, without a backward yet
        self._skipped_losses: list[Made] = []  # not finite, and a backward came behind that was not theirs
        self._function: Any = None  # the custom function whose backward made the first one
        self._spent = 0.0
        self._hidden = not facts.backend.capabilities.saved_tensors

    # ---- the forward

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or self._told:
            return
        begun = time.perf_counter()
        call.in_backward = call.in_backward or bool(self._calls)  # Paddle does not tell
        made = self._ledger.look(call)
        if made is not None:
            if not call.in_backward and made.numel == 1 and made.kind != "constant" and call.lines:
                if self.facts.backend.meta(call.results[0]).requires_grad or self._made_of_graph(call):
                    self._scalars[call.lines[0].file, call.lines[0].line] = made
        elif self._scalars and call.lines:
            self._scalars.pop((call.lines[0].file, call.lines[0].line), None)
        if self._hidden and not call.in_backward:
            self._ledger.watch_edges(call)
        self._spent += time.perf_counter() - begun
        if self._spent > _SECONDS:
            self.needs = Need.STEPS | Need.FUNCTIONS  # from the next iteration on

    def _made_of_graph(self, call: OperatorCall) -> bool:
        return any(self.facts.backend.meta(each).requires_grad for each in call.operands)

    def function(self, call: FunctionCall) -> None:
        backend = self.facts.backend
        if call.phase == "backward" and call.error is None and self._function is None:
            given = call.results if isinstance(call.results, (tuple, list)) else (call.results,)
            if any(any(values.bad(backend, each)) for each in given):
                if not any(any(values.bad(backend, each)) for each in call.arguments):
                    self._function = call.function

    def optimizer(self, event: OptimizerEvent) -> None:
        self._steps.note(event, self.facts.iteration)

    # ---- a backward

    def backward_begin(self, running: Running) -> None:
        self._calls = {serial: each for serial, each in self._calls.items() if serial in _serials(running)}
        here = self._calls[running.serial] = _Call()
        if len(running.chain) > 1:
            here.told = any(self._calls[each.serial].told for each in running.chain[:-1] if each.serial in self._calls)
            return
        self._ledger.backward.clear()
        self._function = None
        backend = self.facts.backend
        for value in running.call.root_values():
            if not backend.is_tensor(value):
                continue
            size = backend.norm(value)
            self._steps.loss(size)
            if math.isfinite(size):
                self._skipped_losses += self._scalars.values()
                self._scalars.clear()
            elif any(backend.nonfinite(value)):
                here.told = True
                self._scalars.clear()
                if not self._told:
                    self._forward(running, value)

    def node_end(self, visit: Visit) -> None:
        running, key = visit.running, visit.key
        here = self._calls.get(running.serial)
        if here is None or here.told or self._told or not visit.ins:
            return
        backend = self.facts.backend
        slots = [slot for slot, value in enumerate(visit.ins) if any(values.bad(backend, value))]
        if not slots:
            return
        call = running.call
        for edge in call.edges(key):
            if edge.to is not None and edge.slot in slots and call.is_accumulate(edge.to):
                here.leaves.append(call.describe(edge.to).parameter or "a leaf without a name")
        arriving = any(any(values.bad(backend, value)) for value in visit.outs)
        if here.found is not None:
            here.others += not arriving
            return
        if arriving:
            self._arrived(visit, here)
            return
        self._made(visit, here)

    def _made(self, visit: Visit, here: _Call) -> None:
        """The first node of this backward that made some of finite gradients."""
        running, key, backend = visit.running, visit.key, self.facts.backend
        call = running.call
        made = saved.made_here(backend, call, key, visit.outs, visit.ins or ())
        if made.spoilt:
            source = saved.first_in_forward(backend, call, reached_from(call, key))
            finding = self._of_source(call, source, None) if source is not None else None
            if finding is not None:
                finding.evidence.append(f"{call.describe(key).unique_name}: {made.evidence[0]}")
                here.found = finding
                return
        if self._hidden and not call.is_custom(key):
            known = self._ledger.at(self.facts.node(call, key)[1], self.facts.iteration)
            first = known.origin() if known is not None else None
            here_too = first is not None and first.line == self.facts.node(call, key)[1]
            masked = here_too and made.masked and self._ledger.edges_at(first.line)  # the forward masks it
            finding = self._of_made(first, call) if first is not None and not masked else None
            if finding is not None:
                finding.evidence.append(f"{call.describe(key).unique_name}: {made.evidence[0]}")
                here.found = finding
                return
        here.half = made.overflow == "f16" or self._half(visit)
        here.masked = made.masked
        here.found = self._of_node(call, key, made)

    def _half(self, visit: Visit) -> bool:
        return any(
            self.facts.backend.is_tensor(value) and self.facts.backend.meta(value).dtype == "f16"
            for value in (*visit.outs, *(visit.ins or ()))
        )

    def _of_node(self, call: Any, key: int, made: saved.Made) -> Finding:
        at, forward = self.facts.node(call, key)
        name = at.unique_name
        cause = forward
        evidence = list(made.evidence)
        why = made.why
        custom = call.is_custom(key)
        if custom:
            cause, why = self._of_custom(call, key, forward, evidence)
        if not why and forward is not None:
            edges = self._ledger.edges_at(forward)
            op = singular.plain_name(at.name or "")
            if edges and op in singular.EDGES:
                evidence += edges
                why = f"the derivative of {op} is not finite at {singular.EDGES[op]}"
                if made.masked:
                    why += ", and 0 * inf is NaN: a mask behind an operator does not keep its derivative away"
        masks = self._masks(call, key) if made.masked else []
        evidence += masks
        what = "overflows" if made.overflow else "makes NaN or infinity of finite gradients"
        message = f"the backward of {self._line_words(forward, name)} {what}" + (f": {why}" if why else "")
        shown = [f"b {name} after"] + ([f"p {made.expression}"] if made.expression else [])
        return Finding(
            id=0, kind="nonfinite", severity="error",
            confidence=0.96 if why and not made.overflow else 0.9 if why else 0.8,
            message=message, node=at, backward=call.number, forward=forward, cause=self.facts.cause(cause),
            evidence=evidence, next=shown,
        )  # fmt: skip

    def _of_custom(
        self, call: Any, key: int, forward: SourceLine | None, evidence: list[str]
    ) -> tuple[SourceLine | None, str]:
        """The line of a custom function's backward, and why it is that one."""
        if self._ledger.backward:
            first = self._ledger.backward[0].origin()
            evidence += first.evidence
            return first.line or forward, f"its own backward made it: {first.name}" + (first.why and f" ({first.why})")
        function = self._function or getattr(type(call.node(key)), "_forward_cls", None)
        line, sure = own_backward.suspect(function) if function is not None else (None, False)
        if line is None:
            return forward, "its own backward made it"
        return line, "its own backward made it" + (f", in `{Facts.text_of(line)}`" if sure else "")

    def _masks(self, call: Any, key: int) -> list[str]:
        """The mask that the gradient of a node came through."""
        masks = ("where", "maskedfill", "masked_fill", "index", "clamp", "masked_select", "minimum", "maximum")
        ancestors = index_of(call).ancestors(call, key)[:-1]
        for at in reversed(ancestors):
            info = call.describe(at)
            if singular.plain_name(info.name) in masks and info.forward is not None:
                place = f"{info.forward.file}:{info.forward.line}"
                return [f"the gradient is 0 there because {info.unique_name} ({place}) took the other branch"]
        return []

    @staticmethod
    def _line_words(line: SourceLine | None, name: str | None) -> str:
        text = Facts.text_of(line) if line is not None else ""
        return f"`{text}` ({name})" if text and len(text) < 90 else f"{name}"

    def _arrived(self, visit: Visit, here: _Call) -> None:
        """What flows in was not finite, and no node gave it."""
        call, key = visit.running.call, visit.key
        at, forward = self.facts.node(call, key)
        root = key in call.roots()
        slot = next(slot for slot, value in enumerate(visit.outs) if any(values.bad(self.facts.backend, value)))
        nan, inf = values.bad(self.facts.backend, visit.outs[slot])
        numel = self.facts.backend.meta(visit.outs[slot]).numel
        told = [f"grad_outputs[{slot}] of {at.unique_name} has {values.counted(nan, inf, numel)}"]
        if root:
            message = "backward was given a gradient that is not finite"
            cause: SourceLine | None = call.location
        else:
            givers = dict.fromkeys(consumer for consumer, _ in index_of(call).consumers(call, key))
            names = [call.describe(each).unique_name for each in givers]
            told.append(f"{Facts.some(names)} gave finite gradients")
            message = f"the gradient of {at.unique_name} is made not finite on its way: by the sum of its parts, or by a hook"
            cause = forward
        here.found = Finding(
            id=0, kind="nonfinite", severity="error", confidence=0.9 if root else 0.6, message=message, node=at,
            backward=call.number, forward=forward, cause=self.facts.cause(cause), evidence=told,
            next=[f"b {at.unique_name}"],
        )  # fmt: skip

    def backward_end(self, running: Running, error: BaseException | None) -> None:
        here = self._calls.pop(running.serial, None)
        if here is None or here.found is None or here.told:
            return
        # A gradient that no leaf gets harms nothing; of paddle.grad and autograd.grad the leaves are not seen.
        if not here.leaves and running.call.entry == "backward" and len(running.chain) == 1 and error is None:
            if not self._leaves_bad(running):
                return
        found = here.found
        leaves = list(dict.fromkeys(here.leaves))
        if leaves:
            found.evidence.append(f"not finite in this backward: the gradient of {Facts.some(leaves)}")
        if here.others:
            found.evidence.append(f"{here.others} more nodes make some of finite gradients in this backward")
        if here.half and error is None:
            self._pending.append((found, leaves))
        elif len(running.chain) == 1 or error is not None:
            self._tell(found)
        else:
            around = self._calls.get(running.chain[-2].serial)
            if around is not None and around.found is None:
                around.found = found
                around.leaves.append("what the node around it gives")

    def _leaves_bad(self, running: Running) -> bool:
        return any(
            any(values.bad(self.facts.backend, self.facts.backend.gradient_of(parameter)))
            for _, parameter in self.facts.backend.parameters()
        )

    # ---- a loss that is not finite

    def _forward(self, running: Running, root: Any) -> None:
        """The loss of a backward is not finite."""
        backend, call = self.facts.backend, running.call
        made = self._ledger.of(root)
        finding = None
        if made is not None:
            finding = self._of_made(made.origin(), call)
        source = None
        if finding is None:
            source = saved.first_in_forward(backend, call)
            if source is not None:
                finding = self._of_source(call, source, root)
        nan, inf = backend.nonfinite(root)
        if finding is None and not self._told:
            key = call.roots()[0] if call.roots() else None
            at, forward = self.facts.node(call, key) if key is not None else (FoundAt(), None)
            finding = self._diverged(None) or Finding(
                id=0, kind="nonfinite", severity="error", confidence=0.5, node=at, backward=call.number,
                message=f"the loss is {'NaN' if nan else 'infinite'}, and which operator made it so was not watched",
                forward=forward, cause=None, evidence=self._steps.losses_text(),
                next=["adbg diagnose --deep --only nonfinite SCRIPT"],
            )  # fmt: skip
        if finding is not None:
            self._tell(finding)

    def _of_made(self, made: Made, call: Any) -> Finding | None:
        """What the ledger of operators has as the first."""
        if made.kind == "parameter":
            return self._of_parameter(made.name, made.evidence, made.line)
        what = values.counted(made.nan, made.inf, made.numel)
        evidence = [f"{made.name} {made.what}: {what}", *made.evidence]
        diverged = self._diverged(made.line) if made.kind == "operator" and not made.parents else None
        if diverged is not None:
            diverged.evidence.extend(evidence)
            return diverged
        if made.kind == "operator":
            words = f"`{Facts.text_of(made.line)}`" if made.line is not None else made.name
            operands = "masked operands" if made.parents else "finite operands"
            kind = "NaN" if made.nan else "infinity"
            message = f"the forward has its first {kind} in {words}, of {operands}" + (f": {made.why}" if made.why else "")
        elif made.kind == "constant":
            message = f"{made.name} gives {made.why or 'infinities'}, which reach the loss"
        else:
            message = f"the data is not finite already: {what} enter at `{Facts.text_of(made.line) if made.line else made.name}`"
        node = self._node_of(call, made.line, made.name) if call is not None else None
        evidence += self._stack(made.lines)
        return Finding(
            id=0, kind="nonfinite", severity="error", confidence=0.95 if made.nan or made.why else 0.9, message=message,
            node=node, backward=call.number if call is not None else None, forward=made.line,
            cause=self.facts.cause(made.line), evidence=evidence,
            next=[f"b {node.unique_name}"] if node is not None else [],
        )  # fmt: skip

    @staticmethod
    def _stack(lines: Sequence[SourceLine]) -> list[str]:
        return [f"called from {each.file}:{each.line} in {each.function}" for each in lines[1:3]]

    def _node_of(self, call: Any, line: SourceLine | None, name: str) -> FoundAt | None:
        """The node of an operator: the one of its line that has its name, or the only one."""
        if line is None:
            return None
        same = [key for key in index_of(call).order if call.describe(key).forward == line]
        named = [key for key in same if singular.plain_name(call.name(key)) == singular.plain_name(name)]
        keys = named or same  # in execution order: the last operator of the line first
        return self.facts.node(call, keys[0])[0] if keys else None

    def _of_source(self, call: Any, source: saved.Source, root: Any) -> Finding | None:
        at, forward = self.facts.node(call, source.key)
        if source.kind == "parameter":
            return self._of_parameter(source.name, source.evidence, forward)
        words = self._line_words(forward, at.unique_name)
        if source.kind == "data":
            message = f"the data is not finite already: it enters at {words}"
        elif source.kind == "operator":
            diverged = self._diverged(forward)
            if diverged is not None:
                diverged.evidence.extend(source.evidence)
                return diverged
            message = f"the forward has its first NaN or infinity in {words}" + (f": {source.why}" if source.why else "")
        else:
            message = f"the forward has its first NaN or infinity before {words}"
        confidence = 0.92 if source.kind and source.sure else 0.85 if source.why else 0.6
        return Finding(
            id=0, kind="nonfinite", severity="error", confidence=confidence, message=message, node=at,
            backward=call.number, forward=forward, cause=self.facts.cause(forward), evidence=source.evidence,
            next=[f"b {at.unique_name}"],
        )  # fmt: skip

    # ---- parameters, and losses that grow

    def _of_parameter(self, name: str, evidence: list[str], used: SourceLine | None) -> Finding | None:
        """A parameter is not finite as the forward begins. None where what made it so is told already."""
        if self._told:
            return None
        name = name or "a leaf"
        step = self._steps.last
        if step is None:
            made = self._initialised(name)
            line = made.line if made is not None and made.line is not None else used
            why = f": {made.why}" if made is not None and made.why else ""
            return Finding(
                id=0, kind="nonfinite", severity="error", confidence=0.85, forward=used, cause=self.facts.cause(line),
                message=f"{name} is not finite before any step: it was initialised so{why}",
                node=FoundAt(parameter=name), evidence=[*evidence, *(made.evidence if made is not None else ())],
            )  # fmt: skip
        diverged = self._diverged(used)
        if diverged is not None:
            diverged.evidence.extend(evidence)
            return diverged
        message = f"{name} is not finite since the step of {step.what} in iteration {step.iteration}, of gradients that were finite"
        return Finding(
            id=0, kind="nonfinite", severity="error", confidence=0.85, message=message, node=FoundAt(parameter=name),
            forward=used, cause=self.facts.cause(step.made or step.line), evidence=[*evidence, *self._steps.text()],
        )  # fmt: skip

    def _initialised(self, name: str) -> Made | None:
        """What made a parameter that no step has changed."""
        parameter = next((each for path, each in self.facts.backend.parameters() if path == name), None)
        if parameter is None:
            return None
        made = self._ledger.of(parameter)
        if made is None or made.kind == "parameter":
            what = values.shape_text(self.facts.backend, parameter)
            made = self._ledger.like(what, *values.bad(self.facts.backend, parameter))
        return made.origin() if made is not None else None

    def _diverged(self, line: SourceLine | None) -> Finding | None:
        """The losses grew until a range was left."""
        step = self._steps.last
        if step is None or not self._steps.diverges():
            return None
        return Finding(
            id=0, kind="nonfinite", severity="error", confidence=0.88, forward=line,
            message=f"training diverges until numbers overflow: {self._steps.growth()}; the steps of {step.what} are too large",
            cause=self.facts.cause(step.made or step.line), evidence=[*self._steps.losses_text(), *self._steps.text()],
        )  # fmt: skip

    # ---- telling

    def _tell(self, finding: Finding) -> None:
        """An origin. What comes in later iterations is a consequence, or the same again."""
        if not self._told:
            self._told.append(self.facts.tell(finding))
            self.needs = Need.STEPS

    def iteration_end(self) -> None:
        pending, self._pending = self._pending, []
        if not pending:
            self._skipped = 0
            return
        backend = self.facts.backend
        harmed = any(any(backend.nonfinite(parameter)) for _, parameter in backend.parameters())
        if harmed or not (self._steps.any or any(True for _ in backend.optimized())):
            for finding, _ in pending:
                finding.evidence.append("a step used it" if harmed else "no optimizer, and no loss scaler, is in use")
                self._tell(finding)
            return
        self._skipped += 1
        if self._skipped == _SKIPPED:
            finding = pending[0][0]
            finding.evidence.append(f"{_SKIPPED} steps in a row were skipped: the scale does not come down enough")
            self._tell(finding)

    def at_stop(self, point: PausedPoint) -> None:
        graph, key, backend = point.graph, point.key, self.facts.backend
        if graph is None or key is None or not point.grad_inputs or not point.grad_outputs:
            return
        outs = point.grad_outputs
        if any(any(values.bad(backend, each)) for each in outs):
            return
        if any(any(values.bad(backend, each)) for each in point.grad_inputs):
            made = saved.made_here(backend, graph, key, outs, point.grad_inputs)
            if not made.spoilt:
                self.facts.tell(self._of_node(graph, key, made))

    def end(self) -> None:
        if self._told:
            return
        for made in self._scalars.values():  # no backward came, and no finite loss of the same line
            finding = self._of_made(made.origin(), None)
            if finding is not None:
                self._tell(finding)
                return
        for made in self._skipped_losses[:1]:
            finding = self._of_made(made.origin(), None)
            if finding is not None:
                finding.evidence.append(
                    f"{len(self._skipped_losses)} losses were not finite, no backward ran on them, and training went on: "
                    "a bug if the program does not skip them on purpose"
                )
                self.facts.tell(replace(finding, severity="note", confidence=0.4))
        if self._steps.last is None:
            return
        for name, parameter in self.facts.backend.parameters():
            nan, inf = values.bad(self.facts.backend, parameter)
            if nan or inf:
                finding = self._of_parameter(name, [f"{name}: {values.counted(nan, inf)}"], None)
                if finding is not None:
                    self._tell(finding)
                return


def _serials(running: Running) -> set[int]:
    return {each.serial for each in running.chain}

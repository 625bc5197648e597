"""Findings about where NaN and infinities begin, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adbg.engine.backends.base import OptimizerEvent
from adbg.engine.diagnosis.detectors.numbers import own_backward, saved, singular, values
from adbg.engine.diagnosis.detectors.numbers.epsilons import Divided, divided_by_zero
from adbg.engine.diagnosis.detectors.numbers.ledger import Ledger, Made
from adbg.engine.diagnosis.detectors.numbers.steps import Steps
from adbg.engine.diagnosis.detectors.ranks.facts import world_of
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.operator_names import plain_name
from adbg.engine.diagnosis.source import EPS, RATE, argument_line, rate_line
from adbg.engine.graph.index import index_of
from adbg.engine.own_files import is_programs
from adbg.engine.protocol.messages import Finding, FoundAt
from adbg.engine.session.running_call import Visit
from adbg.engine.types import SourceLine


class Origins:
    """Makes findings of what is known; tells none."""

    def __init__(self, facts: Facts, ledger: Ledger, steps: Steps) -> None:
        self._facts = facts
        self._ledger = ledger
        self._steps = steps
        self.function: Any = None  # the custom function whose backward made the first one

    def of_node(self, call: Any, key: int, made: saved.Made) -> Finding:
        at, forward = self._facts.node(call, key)
        name = at.unique_name
        cause = forward
        evidence = list(made.evidence)
        why = made.why
        custom = call.is_custom(key)
        if custom:
            cause, why = self._of_custom(call, key, forward, evidence)
        if not why and forward is not None:
            edges = self._ledger.edges_at(forward)
            op = plain_name(at.name or "")
            if edges and op in singular.EDGES:
                evidence += edges
                why = f"the derivative of {op} is not finite at {singular.EDGES[op]}"
                if made.masked:
                    why += ", and 0 * inf is NaN: a mask after an operator does not keep its derivative away"
        masks = self._masks(call, key) if made.masked else []
        evidence += masks
        advice: list[str] = []
        if plain_name(at.name or "") == "logsumexp" and why:
            if (put := self._ledger.mask_at(forward)) is not None:
                cause = put
                evidence.append(f"the infinities were put there at {put.file}:{put.line}: {Facts.text_of(put)}")
            advice.append("mask with a large negative number (-1e4), or leave such slices out")
        elif made.masked and why:
            safe = plain_name(at.name or "the operator")
            advice.append(
                f"mask what goes in, not only what comes out: {safe}(where(mask, x, 1)), then where(mask, …, 0); or "
                "multiply no mask, and select the rows first"
            )
        evidence += advice
        what = "overflows" if made.overflow else "makes NaN or infinity of finite gradients"
        message = f"the backward of {self._line_words(forward, name)} {what}" + (f": {why}" if why else "")
        when = f" backward {call.number}" if call.number > 1 else ""  # in those before, the numbers were others
        shown = [f"b {name} after{when}"] + ([f"p {made.expression}"] if made.expression else [])
        return Finding(
            id=0, kind="nonfinite", severity="error",
            confidence=0.96 if why and not made.overflow else 0.9 if why else 0.8,
            message=message, node=at, backward=call.number, forward=forward, cause=self._facts.cause(cause),
            evidence=evidence, next=shown, advice=advice,
        )  # fmt: skip

    def of_arrived(self, visit: Visit) -> Finding:
        """What flows into a node was not finite, and no node gave it."""
        call, key = visit.running.call, visit.key
        at, forward = self._facts.node(call, key)
        root = key in call.roots()
        slot = next(slot for slot, value in enumerate(visit.outs) if any(values.bad(self._facts.backend, value)))
        nan, inf = values.bad(self._facts.backend, visit.outs[slot])
        numel = self._facts.backend.meta(visit.outs[slot]).numel
        told = [f"grad_outputs[{slot}] of {at.unique_name} has {values.counted(nan, inf, numel)}"]
        if root:
            message = "backward was given a gradient that is not finite"
            cause: SourceLine | None = call.location
        else:
            givers = dict.fromkeys(consumer for consumer, _ in index_of(call).consumers(call, key))
            names = [call.describe(each).unique_name for each in givers]
            told.append(f"{Facts.some(names)} gave finite gradients")
            message = (
                f"the gradient of {at.unique_name} is made not finite on its way: by the sum of its parts, or by a hook"
            )
            cause = forward
        return Finding(
            id=0, kind="nonfinite", severity="error", confidence=0.9 if root else 0.6, message=message, node=at,
            backward=call.number, forward=forward, cause=self._facts.cause(cause), evidence=told,
            next=[f"b {at.unique_name}"],
        )  # fmt: skip

    def _of_custom(
        self, call: Any, key: int, forward: SourceLine | None, evidence: list[str]
    ) -> tuple[SourceLine | None, str]:
        """The line of a custom function's backward, and why it is that one."""
        if self._ledger.backward:
            first = self._ledger.backward[0].origin()
            evidence += first.evidence
            return first.line or forward, f"its own backward made it: {first.name}" + (first.why and f" ({first.why})")
        function = self.function or getattr(type(call.node(key)), "_forward_cls", None)
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
            if plain_name(info.name) in masks and info.forward is not None:
                place = f"{info.forward.file}:{info.forward.line}"
                return [f"the gradient is 0 there because {info.unique_name} ({place}) took the other branch"]
        return []

    @staticmethod
    def _line_words(line: SourceLine | None, name: str | None) -> str:
        text = Facts.text_of(line) if line is not None else ""
        return f"`{text}` ({name})" if text and len(text) < 90 else f"{name}"

    def of_made(self, made: Made, call: Any) -> Finding | None:
        """What the ledger of operators has as the first."""
        if made.kind == "parameter":
            return self.of_parameter(made.name, made.evidence, made.line)
        if made.kind == "step":
            return self._of_step(made)
        what = values.counted(made.nan, made.inf, made.numel)
        evidence = [f"{made.name} {made.what}: {what}", *made.evidence]
        diverged = self.diverged(made.line) if made.kind == "operator" and not made.parents else None
        if diverged is not None:
            diverged.evidence.extend(evidence)
            return diverged
        if made.kind == "operator":
            words = f"`{Facts.text_of(made.line)}`" if made.line is not None else made.name
            operands = "masked operands" if made.parents else "finite operands"
            kind = "NaN" if made.nan else "infinity"
            message = f"the forward has its first {kind} in {words}, of {operands}" + (
                f": {made.why}" if made.why else ""
            )
        elif made.kind == "constant":
            message = f"{made.name} gives {made.why or 'infinities'}, which reach the loss"
        elif made.kind == "gradient":
            place = Facts.text_of(made.line) if made.line is not None else made.name
            message = (
                f"the gradient of {made.name} is not finite as `{place}` uses it, and no operator made it so: {what}"
            )
        else:
            place = Facts.text_of(made.line) if made.line is not None else made.name
            message = f"the data is not finite already: {what} enter at `{place}`"
        node = self._node_of(call, made) if call is not None else None
        evidence += self._stack(made.lines)
        return Finding(
            id=0, kind="nonfinite", severity="error", message=message,
            confidence=0.75 if made.guessed else 0.95 if made.nan or made.why else 0.9,
            node=node, backward=call.number if call is not None else None, forward=made.line,
            cause=self._facts.cause(made.held or made.line), evidence=evidence,
            next=[f"b {node.unique_name or node.name}"] if node is not None else [],
        )  # fmt: skip

    @staticmethod
    def _stack(lines: Sequence[SourceLine]) -> list[str]:
        return [f"called from {each.file}:{each.line} in {each.function}" for each in lines[1:3]]

    def _node_of(self, call: Any, made: Made) -> FoundAt | None:
        """The node of an operator. Where it is not known, and a line made several in a loop, only what they share."""
        line = made.line
        if line is None:
            return None
        same = [key for key in index_of(call).order if call.describe(key).forward == line]
        own = next((key for key in same if made.node is not None and call.address(key) == made.node), None)
        if own is not None:
            return self._facts.node(call, own)[0]
        named = [key for key in same if plain_name(call.name(key)) == plain_name(made.name)]
        every = [self._facts.node(call, key)[0] for key in named or same]
        if len(every) < 2:
            return every[0] if every else None
        names, modules = {each.name for each in every}, {each.module for each in every}
        if len(names) > 1:
            return None
        return FoundAt(names.pop(), None, modules.pop() if len(modules) == 1 else None)

    def of_source(self, call: Any, source: saved.Source, root: Any) -> Finding | None:
        at, forward = self._facts.node(call, source.key)
        if source.kind == "parameter":
            return self.of_parameter(source.name, source.evidence, forward)
        words = self._line_words(forward, at.unique_name)
        made = self._ledger.like(*source.value) if source.value is not None else None
        if made is not None and made.origin().line not in (None, forward):
            return self.of_made(made.origin(), call)
        if source.kind == "data" and (brought := self._brought(source, forward)) is not None:
            return self.of_made(brought, call)
        if source.kind == "data":
            message = f"the data is not finite already: it enters at {words}"
        elif source.kind == "operator":
            diverged = self.diverged(forward)
            if diverged is not None:
                diverged.evidence.extend(source.evidence)
                return diverged
            message = f"the forward has its first NaN or infinity in {words}" + (
                f": {source.why}" if source.why else ""
            )
        else:
            message = f"the forward has its first NaN or infinity before {words}"
        confidence = 0.92 if source.kind and source.sure else 0.85 if source.why else 0.6
        return Finding(
            id=0, kind="nonfinite", severity="error", confidence=confidence, message=message, node=at,
            backward=call.number, forward=forward, cause=self._facts.cause(forward), evidence=source.evidence,
            next=[f"b {at.unique_name}"],
        )  # fmt: skip

    def _brought(self, source: saved.Source, forward: SourceLine | None) -> Made | None:
        """Data that no operator was seen to take, such as infinities that might have been a mask; None where whose it
        is, is not known."""
        if source.value is None or forward is None:
            return None
        what, nan, inf = source.value
        made = Made("data", source.name, (forward,), nan, inf, source.numel, what, negative=source.negative)
        self._ledger.find_holder(made)
        made.evidence = [*source.evidence, *made.evidence]
        return made if made.held is not None else None

    def of_parameter(self, name: str, evidence: list[str], used: SourceLine | None) -> Finding | None:
        """A parameter is not finite as the forward begins. None where what made it so is told already."""
        name = name or "a leaf"
        step = self._steps.last
        if step is None:
            made = self._initialised(name)
            line = made.line if made is not None and made.line is not None else used
            why = f": {made.why}" if made is not None and made.why else ""
            return Finding(
                id=0, kind="nonfinite", severity="error", confidence=0.85, forward=used, cause=self._facts.cause(line),
                message=f"{name} is not finite before any step: it was initialised so{why}",
                node=FoundAt(parameter=name), evidence=[*evidence, *(made.evidence if made is not None else ())],
            )  # fmt: skip
        diverged = self.diverged(used)
        if diverged is not None:
            diverged.evidence.extend(evidence)
            return diverged
        if self._steps.bad is not None:
            return self._of_step(self._steps.bad)
        since = f"since the step of {step.what} in iteration {step.iteration}"
        message = f"{name} is not finite {since}, of gradients that were finite"
        divided = self._divided()
        if divided is not None:
            message, evidence = f"{message}: {divided.why}", [*evidence, *divided.evidence]
        cause = argument_line(step.made, step.what, EPS) if divided is not None else step.made
        return Finding(
            id=0, kind="nonfinite", severity="error", confidence=0.85, message=message, node=FoundAt(parameter=name),
            forward=used, cause=self._facts.cause(cause or step.line),
            evidence=[*evidence, *self._steps.text()],
        )  # fmt: skip

    def of_gradient(self, tensor: Any, gradient: Any, event: OptimizerEvent) -> Finding:
        """It was finite as backward ended, and is not as a step begins."""
        name, path = self._facts.title_of(tensor) or "a tensor", self._facts.name_of(tensor)
        counts = values.bad(self._facts.backend, gradient)
        told = [f".grad of {name} {values.shape_text(self._facts.backend, gradient)}: {values.counted(*counts)}"]
        what = values.shape_text(self._facts.backend, gradient)
        made = self._ledger.of(gradient) or self._ledger.like(what, *counts)
        first = made.origin() if made is not None else None
        if first is None or first.kind != "operator":
            numel = self._facts.backend.meta(gradient).numel
            first = self._ledger.made_of_gradient(self._facts.name_of(tensor), *counts, numel) or first
        line = first.line if first is not None and first.kind == "operator" else None
        if first is not None and "clip_grad" in first.name:  # NaN comes out where it went in
            told.append(f"{first.name} passes it on")
            line = None
        message = f"the gradient of {name} is made not finite between backward and step"
        if (first is None or first.kind != "operator") and (line := self._ledger.warned_since()) is not None:
            message += f", in `{Facts.text_of(line)}`: NumPy warns there"
        elif first is not None and line is not None:
            message += f", in `{Facts.text_of(line)}`" + (f": {first.why}" if first.why else "")
            told += [*first.evidence, *self._stack(first.lines)]
        elif line is None and (reducer := self._averages()):
            message = (
                f"the gradient of {name} is not finite once {reducer} has averaged it between ranks: it comes from "
                "another rank"
            )
        told.append("no node of the backward gave a gradient that is not finite")
        if event.line is not None:
            told.append(f"the step that uses it is at {event.line.file}:{event.line.line}")
        return Finding(
            id=0, kind="nonfinite", severity="error", confidence=0.93 if line is not None else 0.8, message=message,
            node=FoundAt(parameter=name), forward=event.line, cause=self._facts.cause(line), evidence=told,
            next=[f"b param:{path} after"] if self._facts.is_named(tensor) else [], victim_of=self._of_hook(),
        )  # fmt: skip

    def _averages(self) -> str:
        """What averages gradients between ranks here; "" for nothing."""
        backend = self._facts.backend
        return backend.reducer() if world_of(backend) > 1 else ""

    def _of_hook(self) -> int | None:
        """A finding that a hook of the program's made gradients so."""
        told = self._facts.findings.values()
        return next((each.id for each in told if each.kind == "gradient-hook" and each.severity == "error"), None)

    def _of_step(self, made: Made) -> Finding | None:
        """An operator of an optimizer's step made it, of gradients that were finite."""
        step = self._steps.last
        if step is None:
            return None
        told = [f"{made.name} {made.what}: {values.counted(made.nan, made.inf, made.numel)}", *made.evidence]
        divided = self._divided(made.what)
        words = divided.why if divided is not None else made.why
        why = f": {words}" if words else ""
        told += divided.evidence if divided is not None else ()
        cause, where = argument_line(step.made, step.what, EPS if divided is not None else ()) or step.line, made.name
        if divided is None and made.line is not None and made.line != step.line and is_programs(made.line.file):
            cause, where = made.line, f"`{Facts.text_of(made.line)}`"  # the step is the program's own
            told += self._stack(made.lines)
        return Finding(
            id=0, kind="nonfinite", severity="error", confidence=0.95 if divided is not None else 0.9,
            message=f"the step of {step.what} makes NaN or infinity of finite gradients, in {where}{why}",
            cause=self._facts.cause(cause), forward=step.line, evidence=[*told, *self._steps.text()],
        )  # fmt: skip

    def _divided(self, what: str = "") -> Divided | None:
        """Whether the last step divided by 0, for want of an ``eps``."""
        step = self._steps.last
        optimizer = step.optimizer() if step is not None and step.optimizer is not None else None
        return divided_by_zero(self._facts, optimizer, what) if optimizer is not None else None

    def _initialised(self, name: str) -> Made | None:
        """What made a parameter that no step has changed."""
        parameter = next((each for path, each in self._facts.backend.parameters() if path == name), None)
        if parameter is None:
            return None
        made = self._ledger.of(parameter)
        if made is None or made.kind == "parameter":
            what = values.shape_text(self._facts.backend, parameter)
            made = self._ledger.like(what, *values.bad(self._facts.backend, parameter))
        return made.origin() if made is not None else None

    def diverged(self, line: SourceLine | None) -> Finding | None:
        """The losses grew until a range was left."""
        step = self._steps.last
        if step is None or not self._steps.diverges():
            return None
        return Finding(
            id=0, kind="nonfinite", severity="error", confidence=0.88, forward=line,
            message=f"training diverges until numbers overflow: {self._steps.growth()}; "
            f"the steps of {step.what} are too large",
            cause=self._facts.cause(rate_line(step.made, step.what, RATE) or step.line),
            evidence=[*self._steps.losses_text(), *self._steps.text()],
        )  # fmt: skip

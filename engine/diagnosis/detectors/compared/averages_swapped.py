"""Averages of weights whose two factors are exchanged."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.diagnosis.detector import Detector, Need, OperatorCall, OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, writes
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.source import nodes_of
from adbg.engine.diagnosis.variables import frame_at, value_of
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_NEW = 0.9  # of the trained weights, at least: an average of these factors is none
_ITERATIONS = 3
_TENSORS = 64  # of one optimizer, whose memory is known


@dataclass(frozen=True, slots=True)
class _Part:
    """So many times what lies there."""

    where: int
    factor: float


@dataclass(slots=True)
class _Average:
    kept: float
    new: float
    iterations: set[int] = field(default_factory=set)


@detector("lost-update")
class FactorsExchanged(Detector):
    """A moving average of weights, or the soft update of a target network, keeps the small part of itself and takes the
    large part of the weights that are trained: ``ema = (1 - decay) * ema + decay * weight`` with 0.999, ``target =
    tau * target + (1 - tau) * weight`` with 0.005. It is the weights of now, at each step.

    Evidence: both factors, that an optimizer steps the one with the large factor and not the other, in how many
    iterations.
    Mistaken for: weights that are moved to a mean of something else, what is not written back (not told), a copy at
    once (factors 0 and 1), averages that keep more than a tenth: not told.
    Cost: in sampled iterations a look at each product and sum without gradients.
    """

    needs = Need.STEPS
    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._trained: set[int] = set()  # where what optimizers step lies
        self._parts: Marks[_Part] = Marks()
        self._made: Marks[tuple[_Part, _Part]] = Marks()
        self._averages: dict[SourceLine, _Average] = {}
        self._told: set[SourceLine] = set()
        self._stepping = False

    def applied(self) -> bool:
        return bool(self._averages)

    def optimizer(self, event: OptimizerEvent) -> None:
        self._stepping = event.what == "step"
        if event.what == "stepped" and self.facts.sampled:
            for each in event.tensors[:_TENSORS]:
                self._trained.update(where for where, _ in self.facts.backend.storages(each))

    def operator(self, call: OperatorCall) -> None:
        if self._stepping or call.in_backward or call.error is not None or not call.results or not self._trained:
            return
        result = call.results[0]
        if result.requires_grad and not result.is_leaf:
            return
        name = plain(call.name)
        for each in call.operands[1:] if writes(call) else ():
            known = self._made.of(each)
            if known is not None and self._where(call.operands[0]) == known.what[0].where:
                self._average(known.what[0], known.what[1], known.line)
        if name in ("mul", "multiply", "scale") and len(call.operands) == 1:
            self._multiplied(call, result)
        elif name == "add" and len(call.operands) == 2:
            self._added(call)
        elif name == "lerp" and len(call.operands) == 2:
            weight = _number(call, "weight")
            where = [self._where(each) for each in call.operands]
            if weight is not None and None not in where:
                self._summed(call, _Part(where[0] or 0, 1 - weight), _Part(where[1] or 0, weight))

    def _where(self, value: Any) -> int | None:
        return next((where for where, _ in self.facts.backend.storages(value)), None)

    def _multiplied(self, call: OperatorCall, result: Any) -> None:
        factor, where = _number(call, "scale"), self._where(call.operands[0])
        if factor is not None and where is not None and 0 < factor < 1:
            self._parts.put(result, _Part(where, factor), call.name, line_of(call.lines))

    def _added(self, call: OperatorCall) -> None:
        alpha = call.keywords.get("alpha", 1.0)
        parts = []
        for at, each in enumerate(call.operands):
            known = self._parts.of(each)
            times = float(alpha) if at and type(alpha) in (int, float) else 1.0
            if known is not None:
                parts.append(_Part(known.what.where, known.what.factor * times))
            elif at and times != 1.0 and (where := self._where(each)) is not None:
                parts.append(_Part(where, times))
        for each in call.operands:
            self._parts.drop(each)
        if len(parts) == 2 and abs(parts[0].factor + parts[1].factor - 1) < 1e-3:
            self._summed(call, parts[0], parts[1])

    def _summed(self, call: OperatorCall, one: _Part, other: _Part) -> None:
        """It counts where it is written into the one that is not trained: now, or by a later call."""
        kept, new = (one, other) if other.where in self._trained else (other, one)
        if new.where not in self._trained or kept.where in self._trained:
            return
        line = line_of(call.lines)
        if not writes(call) and self._is_set(line, kept.where):
            self._average(kept, new, line)
        elif not writes(call):
            self._made.put(call.results[0], (kept, new), call.name, line)
        elif self._where(call.operands[0]) == kept.where:
            self._average(kept, new, line)

    def _is_set(self, line: SourceLine | None, where: int) -> bool:
        """Whether the line sets what lies there (``target.set_value(...)``): Paddle tells of no operator then."""
        frame = frame_at(line)
        for node in nodes_of(line.file) if line is not None and frame is not None else ():
            called = node.func if isinstance(node, ast.Call) else None
            if not isinstance(node, ast.Call) or not isinstance(called, ast.Attribute) or called.attr != "set_value":
                continue
            if line is not None and frame is not None and node.lineno <= line.line <= (node.end_lineno or 0):
                value = value_of(called.value, frame)
                return self.facts.backend.is_tensor(value) and self._where(value) == where
        return False

    def _average(self, kept: _Part, new: _Part, line: SourceLine | None) -> None:
        if line is None or line in self._told:
            return
        known = self._averages.setdefault(line, _Average(kept.factor, new.factor))
        known.iterations.add(self.facts.iteration)
        if new.factor < known.new:  # of an average that begins with large steps
            known.kept, known.new = kept.factor, new.factor
        if known.new >= _NEW and len(known.iterations) >= _ITERATIONS:
            self._told.add(line)
            self._tell(line, known)

    def _tell(self, line: SourceLine, known: _Average) -> None:
        facts = self.facts
        message = (
            f"{place(line)} keeps {known.kept:.3g} of an average and takes {known.new:.3g} of the weights that are "
            "trained: it is as good as the weights of now; exchange the two factors"
        )
        evidence = [
            f"{place(line)}: {facts.text_of(line)}",
            f"an optimizer steps what is multiplied by {known.new:.3g}, and none steps what is multiplied by "
            f"{known.kept:.3g}",
            f"in iterations {', '.join(map(str, sorted(known.iterations)))}",
        ]
        facts.tell(
            Finding(
                0, "lost-update", "warning", 0.85, message, None, None, facts.iteration, line, facts.cause(line),
                evidence, [f"list {place(line)}", "info params"],
            )
        )  # fmt: skip


def _number(call: OperatorCall, keyword: str) -> float | None:
    given = [call.keywords.get(keyword), *call.arguments, *call.keywords.values()]
    return next((float(each) for each in given if type(each) in (int, float)), None)

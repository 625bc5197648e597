"""Targets that the last activation of a model can never give."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import Any

from adbg.engine.diagnosis.detector import Detector, Need, OperatorCall, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.losses import DIFFERENCES, SAME
from adbg.engine.diagnosis.detectors.graphs.marks import Marked, Marks
from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import layer_line
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_REGRESSIONS = frozenset({"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "square_error_cost"})
_SQUARES = frozenset({"square", "pow", "abs"})
_BOUNDS = {
    "relu": (0.0, math.inf), "relu6": (0.0, 6.0), "sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0),
    "softplus": (0.0, math.inf), "softmax": (0.0, 1.0), "hardtanh": (-1.0, 1.0), "hardsigmoid": (0.0, 1.0),
}  # fmt: skip
_LAYERS = {
    "relu": "ReLU", "relu6": "ReLU6", "sigmoid": "Sigmoid", "tanh": "Tanh", "softplus": "Softplus",
    "softmax": "Softmax", "hardtanh": "Hardtanh", "hardsigmoid": "Hardsigmoid",
}  # fmt: skip
_KEEPS = SAME - {"clamp", "clip"}
_ELEMENTS = 1 << 16  # of a target
_SHARE = 0.25  # of the target's elements, beyond the bounds
_FAR = 0.1  # beyond them, of what the target spans: noise around a bound is nearer
_ITERATIONS = 2


@dataclass(slots=True)
class _Seen:
    iterations: int = 0
    share: float = 0.0
    least: float = 0.0
    most: float = 0.0


@detector("loss-input")
class OutOfReach(Detector):
    """A difference between a target and what comes of a last ReLU, sigmoid, tanh or softmax: a good part of the target
    lies where that activation never comes to (below 0, above 1), so that the prediction cannot meet it, and units end
    at the bound, where they have no gradient.

    Evidence: the activation with its range, the smallest and the largest number of the target, the share beyond.
    Mistaken for: targets at the bounds or next to them (noise; not told), what is scaled or shifted after the
    activation (another operator: not told).
    Cost: in sampled iterations a look at each operator's name, and at the target's elements where such an activation
    comes last.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._marks: Marks[str] = Marks()
        self._seen: dict[tuple[SourceLine | None, SourceLine | None], _Seen] = {}
        self._told: set[tuple[SourceLine | None, SourceLine | None]] = set()
        self._used = False
        self._apart: Marks[tuple[Marked[str], Any]] = Marks()  # differences, with a weak reference of the target

    def applied(self) -> bool:
        return self._used

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or not call.operands or call.in_backward or not call.grad_mode:
            return
        name = plain(call.name)
        if name in _BOUNDS:
            for result in call.results:
                alone = name == "softmax" and shape(result)[-1:] == [1]  # of one element: ZeroGradient tells that
                if result.requires_grad and not alone:
                    self._marks.put(result, name, name, line_of(call.lines))
        elif name in _KEEPS and call.results:
            known = self._marks.of(call.operands[0])
            if known is not None:
                self._marks.put(call.results[0], known.what, known.name, known.line)
        elif (name in _REGRESSIONS or name in DIFFERENCES) and len(call.operands) > 1:
            self._compare(call, name, *call.operands[:2])
        elif name in _SQUARES and (apart := self._apart.of(call.operands[0])) is not None:
            known, ref = apart.what
            target = ref()
            if target is not None:
                self._used = True
                self._reach(known, target, call)

    def _compare(self, call: OperatorCall, name: str, one: Any, other: Any) -> None:
        for given, target in ((one, other), (other, one)):
            known = self._marks.of(given)
            if known is None or target.requires_grad or self._marks.of(target) is not None:
                continue
            if self.facts.shape(given) != self.facts.shape(target):
                continue
            if name in _REGRESSIONS:
                self._used = True
                self._reach(known, target, call)
            else:  # what is squared is a residual; else the "target" may be a mask, or an offset
                self._apart.put(call.results[0], (known, weakref.ref(target)), name, None)

    def _reach(self, known: Marked[str], target: Any, call: OperatorCall) -> None:
        read = values.few_numbers(self.facts.backend, target, _ELEMENTS)
        if read is None or not read.flat:
            return
        low, high = _BOUNDS[known.what]
        least, most = min(read.flat), max(read.flat)
        far = _FAR * (most - least if most > least else abs(most) or 1.0)
        beyond = sum(each < low - far or each > high + far for each in read.flat) / len(read.flat)
        key = known.line, line_of(call.lines)
        if beyond < _SHARE or not math.isfinite(most - least) or key in self._told:
            self._seen.pop(key, None)
            return
        seen = self._seen.setdefault(key, _Seen(0, 1.0, least, most))
        seen.iterations += 1
        seen.share, seen.least, seen.most = min(seen.share, beyond), min(seen.least, least), max(seen.most, most)
        if seen.iterations >= _ITERATIONS:
            self._told.add(key)
            self._tell(known, seen, call)

    def _tell(self, known: Marked[str], seen: _Seen, call: OperatorCall) -> None:
        facts, line = self.facts, line_of(call.lines)
        low, high = _BOUNDS[known.what]
        reach = f"{low:g} to {high:g}" if math.isfinite(high) else f"{low:g} and more"
        layer = layer_line(known.line, _LAYERS[known.what], among=True) if known.line is not None else None
        text = facts.text_of(known.line).lower() if known.line is not None else ""
        cause = layer if layer is not None and known.what not in text else known.line
        message = (
            f"{known.name} at {place(known.line)} gives {reach}, and the target at {place(line)} has "
            f"{seen.least:.4g} to {seen.most:.4g}: {seen.share:.0%} of it cannot be met; leave the activation out, or "
            "scale the target"
        )
        evidence = [
            f"{place(known.line)}: {facts.text_of(known.line) if known.line is not None else ''}",
            f"{call.name} at {place(line)} compares what it gives with a target of {seen.least:.4g} to {seen.most:.4g}",
            f"at least {seen.share:.0%} of the target is further than a tenth of its span beyond {reach}, in "
            f"{seen.iterations} batches",
        ]
        facts.tell(
            Finding(
                0, "loss-input", "warning", 0.85, message, None, None, facts.iteration + 1, line, facts.cause(cause),
                evidence, [f"b {place(line)}", "info node"],
            )
        )  # fmt: skip

"""Inputs that are as large as they were measured (an income, pixels up to 255) where the first weights meet them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from adbg.engine.backends.base import Need, OperatorCall
from adbg.engine.diagnosis.detector import Detector, detector
from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.diagnosis.detectors.numbers.singular import outgrew, plain_name
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.ledger import Ledger
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.session.stop_point import PausedPoint
from adbg.engine.types import SourceLine

_LAYERS = frozenset({"linear", "matmul", "mm", "addmm", "conv1d", "conv2d", "conv3d", "lstm", "gru", "rnn"})
_LARGE = 50.0  # root mean square; of standardized values it is 1, of pixels up to 255 about 130
_HUGE = 1000.0  # no layer's usual initialisation makes anything reasonable of that
_RATE = 0.1  # above it a rate is large by itself
_STEEP = 10.0  # rate times mean square: above 2 a step of plain descent overshoots, with a curvature of 1
_JUMP = 1e4  # times the first loss, within so many iterations
_EARLY = 20
_LOOKS = 3  # at each layer's line
_MADE = 400  # results that are looked at for where large numbers come from
_FOLLOW = frozenset({"large-update", "nonfinite", "dead-units", "exploding", "saturated-units", "zero-gradient"})
_COLUMNS = 256
_ELEMENTS = 1 << 17


@dataclass(slots=True)
class _Input:
    """What a layer was given, at its worst."""

    line: SourceLine
    shape: list[int]
    size: float  # root mean square, of ``column`` where that is known
    column: int | None
    usual: float  # of the columns in the middle
    looks: int = 0


@detector("unscaled-input")
class UnscaledInput(Detector):
    """Inputs so large that training diverges at a usual learning rate: the gradient of a weight is as many times larger
    as the column that it reads, and a step changes what the layer gives by the square of it.

    Evidence: the root mean square of what the first layer was given, by column, where the loss jumped within the first
    iterations, the weights outgrew themselves or the forward overflowed; the line that made numbers of that size of
    smaller ones, or of none. What is not finite, and units that die, follow from it.
    Mistaken for: a learning rate that is too large by itself (above 0.1, or small inputs: not told; "large-update" is).
    Inputs that the model divides or normalizes before its first layer are not what that layer is given.
    Cost: one norm of the loss in each of the first 20 iterations and of each float tensor that is made without a graph
    in sampled ones, of 400 at most, and the columns of what a layer is given three times.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._inputs: dict[SourceLine, _Input] = {}
        self._made: list[tuple[SourceLine, float, bool]] = []  # line, root mean square, of no other tensor
        self._left = _MADE
        self._losses: list[float] = []
        self._told = 0

    def applied(self) -> bool:
        return bool(self._inputs)

    def backward_begin(self, running: Running) -> None:
        if running.call.depth == 0 and len(self._losses) < _EARLY and not self._told:
            roots = running.call.root_values()
            self._losses.append(self.facts.backend.norm(roots[0]) if len(roots) == 1 else math.nan)

    def operator(self, call: OperatorCall) -> None:
        if call.in_backward or call.error is not None or not call.lines or self._told:
            return
        if self._left > 0:
            self._note_made(call)
        if plain_name(call.name) in _LAYERS and len(call.operands) > 1:
            self._note_input(call)

    def _note_made(self, call: OperatorCall) -> None:
        for result in call.results[:2]:
            if result.requires_grad or not self._is_float(result):
                continue
            self._left -= 1
            size = self._size(result)
            given = [self._size(each) for each in call.operands if self._is_float(each)]
            if _LARGE <= size < math.inf and 10 * max(given, default=0.0) < size:
                self._made.append((call.lines[0], size, not given))

    def _note_input(self, call: OperatorCall) -> None:
        value, weight = call.operands[:2]
        backend = self.facts.backend
        if backend.has_graph(value) or value.requires_grad or not self._is_float(value) or not weight.requires_grad:
            return
        known = self._inputs.get(call.lines[0])
        if known is None:
            known = self._inputs[call.lines[0]] = _Input(call.lines[0], [], 0.0, None, 0.0)
        known.looks += 1
        if known.looks > _LOOKS:
            return
        size, column, usual = self._largest(value)
        if size > known.size:
            known.size, known.column, known.usual = size, column, usual
            known.shape = list(self.facts.shape(value))

    def _largest(self, value: Any) -> tuple[float, int | None, float]:
        """(root mean square of the largest column, which, that of the column in the middle). Axes of images are no
        columns: of these, all elements."""
        shape = self.facts.shape(value)
        if len(shape) == 2 and 1 < shape[1] <= _COLUMNS and math.prod(shape) <= _ELEMENTS:
            read = values.numbers(self.facts.backend, value)
            if read is not None and read.flat:
                sizes = [_root_mean_square(read.flat[at :: shape[1]]) for at in range(shape[1])]
                most = max(range(len(sizes)), key=sizes.__getitem__)
                return sizes[most], most, sorted(sizes)[len(sizes) // 2]
        size = self._size(value)
        return size, None, size

    def _size(self, value: Any) -> float:
        return self.facts.backend.norm(value) / math.sqrt(max(1, math.prod(self.facts.shape(value))))

    def _is_float(self, value: Any) -> bool:
        return self.facts.backend.meta(value).dtype in values.WORDS

    # ---- telling

    def iteration_end(self) -> None:
        self._judge()

    def at_stop(self, point: PausedPoint) -> None:
        self._judge()

    def end(self) -> None:
        self._judge()

    def _judge(self) -> None:
        if self._told:
            self._fold()
            return
        if not self._inputs:
            return
        given = max(self._inputs.values(), key=lambda each: each.size)
        rates = [each.rates[-1][1] for each in Ledger.of(self.facts).optimizers.values() if each.rates]
        rate = max(rates, default=0.0)
        if not (_LARGE <= given.size < math.inf and 0 < rate <= _RATE and rate * given.size**2 > _STEEP):
            return
        grown = [each for each in self.facts.findings.values() if _outgrown(each)]
        jumped = self._jumped()
        if jumped or any(each.kind == "large-update" for each in grown) or (grown and given.size >= _HUGE):
            self._told = self._tell(given, rate, jumped)
            self._fold()

    def _fold(self) -> None:
        """What came of the first steps, whenever it is told."""
        for each in list(self.facts.findings.values()):
            if each.kind in _FOLLOW and each.victim_of is None and each.severity != "note":
                self.facts.tell(replace(each, victim_of=self._told))

    def _jumped(self) -> str:
        """What the loss did in the first iterations, where it grew beyond reason."""
        first, *later = self._losses or [math.nan]
        for at, loss in enumerate(later, 2):
            if not loss <= _JUMP * first and math.isfinite(first):
                return f"the loss went from {first:.3g} in iteration 1 to {loss:.3g} in iteration {at}"
        return ""

    def _tell(self, given: _Input, rate: float, jumped: str) -> int:
        where = f"column {given.column} of what" if given.column is not None else "what"
        made = self._made_at(given.size)
        evidence = [
            f"{where} `{self.facts.text_of(given.line)}` was given {given.shape} has a root mean square of "
            f"{given.size:.3g}"
            + (f", the columns in the middle {given.usual:.3g}" if given.column is not None else ""),
            f"the gradient of the weights that read it is as many times larger, what a step at learning rate {rate:g} "
            f"changes by that much again: {rate * given.size**2:.3g} in all, where 2 is the limit of plain descent",
        ]
        if jumped:
            evidence.insert(0, jumped)
        if made is not None:
            evidence.append(f"numbers of that size are made by `{self.facts.text_of(made)}`")
        return self.facts.tell(
            Finding(
                0, "unscaled-input", "error", 0.85,
                f"inputs are not scaled: {where} the first layer is given is about {given.size:.3g} in size, so that "
                f"training diverges at a learning rate of {rate:g}; standardize it (subtract the mean, divide by the "
                "standard deviation)",
                forward=given.line, cause=self.facts.cause(made or given.line), evidence=evidence,
                next=[f"b {given.line.file.rpartition('/')[2]}:{given.line.line} after"],
            )
        )  # fmt: skip

    def _made_at(self, size: float) -> SourceLine | None:
        """Of the lines that made large numbers the one whose numbers are nearest to that size; of a tensor made of no
        other (from NumPy's, with all columns in it) within a factor of ten."""
        near = [
            (abs(math.log(made / size)), line) for line, made, alone in self._made
            if abs(math.log(made / size)) < math.log(10.0 if alone else 2.0)
        ]  # fmt: skip
        return min(near, key=lambda each: each[0])[1] if near else None


def _outgrown(finding: Finding) -> bool:
    grown = finding.kind == "large-update" or (finding.kind == "nonfinite" and outgrew(finding.message))
    return grown and finding.victim_of is None and finding.severity != "note"


def _root_mean_square(column: Any) -> float:
    return math.sqrt(math.fsum(each * each for each in column) / max(1, len(column)))

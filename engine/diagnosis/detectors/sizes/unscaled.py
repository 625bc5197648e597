"""Inputs that are as large as they were measured (an income, pixels up to 255) where the first weights meet them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from adbg.engine.backends.base import Need, OperatorCall
from adbg.engine.diagnosis.detector import Detector, detector
from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.diagnosis.detectors.numbers.singular import outgrown
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.ledger import Ledger
from adbg.engine.diagnosis.operator_names import plain_name
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.session.stop_point import PausedPoint
from adbg.engine.types import SourceLine

_LAYERS = frozenset({"mm", "conv1d", "conv2d", "conv3d", "lstm", "gru", "rnntanh", "rnnrelu", "rnn"})
_LARGE = 50.0  # root mean square; of standardized values it is 1, of pixels up to 255 about 130
_HUGE = 1000.0  # no layer's usual initialisation makes anything reasonable of that
_RATE = 0.1  # above it a rate is large by itself
_STEEP = 10.0  # rate times mean square: above 2 a step of plain descent overshoots, with a curvature of 1
_PLAIN = frozenset({"SGD", "Momentum", "NAG"})  # a step of any other is about its rate, whatever the gradient is
_JUMP = 1e4  # times the first loss, within so many iterations
_EARLY = 20
_LOOKS = 3  # at each layer's line
_MADE = 400  # results that are looked at for where large numbers come from
_FOLLOW = frozenset({"large-update", "nonfinite", "dead-units", "saturated-units", "exploding"})
_COLUMNS = 256
_ELEMENTS = 1 << 17  # of an input whose columns are looked at
_MOST = 1 << 22  # of a tensor whose norm is taken


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

    Evidence: the root mean square of what the first layer was given, by column, where the loss of one line jumped
    within the first iterations, the weights outgrew themselves or the forward overflowed; the line that made numbers of
    that size of smaller ones, or of none. What is not finite, and units that die, follow from it where one model is
    trained.
    Mistaken for: a learning rate that is too large by itself (above 0.1, or small inputs: not told; "large-update" is).
    Inputs that the model divides or normalizes before its first layer are not what that layer is given. Steps of Adam
    and its like do not grow with the gradient: there it takes inputs as many times larger.
    Cost: one norm of the loss in each of the first 20 iterations, and of each float tensor that is made without a graph
    in sampled ones, of 400 at most and up to 4 million elements; the columns of what a layer is given three times.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._inputs: dict[SourceLine, _Input] = {}
        self._made: list[tuple[SourceLine, float, bool]] = []  # line, root mean square, of no other tensor
        self._left = _MADE
        self._losses: dict[SourceLine, list[float]] = {}  # by the line of their backward
        self._told = self._told_at = 0

    def applied(self) -> bool:
        return bool(self._inputs)

    def backward_begin(self, running: Running) -> None:
        call = running.call
        if self._told or call.depth or call.entry != "backward" or call.location is None:
            return
        losses = self._losses.setdefault(call.location, []) if len(self._losses) < _EARLY else []
        roots = call.root_values() if len(losses) < _EARLY else ()
        if len(roots) == 1 and not math.prod(self.facts.shape(roots[0])) > 1:
            losses.append(self.facts.backend.norm(roots[0]))

    def operator(self, call: OperatorCall) -> None:
        if call.in_backward or call.error is not None or not call.lines or self._told:
            return
        if self._left > 0:
            self._note_made(call)
        if plain_name(call.name) in _LAYERS:
            self._note_input(call)

    def _note_made(self, call: OperatorCall) -> None:
        for result in call.results[:2]:
            if result.requires_grad or not self._is_readable(result):
                continue
            self._left -= 1
            if not _LARGE <= (size := self._size(result)) < math.inf:
                continue
            given = [each for each in call.operands if all(each is not one for one in call.results)]
            readable = [self._size(each) for each in given if self._is_readable(each)]
            if len(readable) == len(given) and 10 * max(readable, default=0.0) < size:
                self._made.append((call.lines[0], size, not call.operands))

    def _note_input(self, call: OperatorCall) -> None:
        """Of a layer whose weights learn, and what it multiplies them with has no graph."""
        backend = self.facts.backend
        taken = [each for each in call.operands if not each.requires_grad and not backend.has_graph(each)]
        value = next((each for each in taken if len(self.facts.shape(each)) > 1 and self._is_readable(each)), None)
        if value is None or not any(each.requires_grad and not backend.has_graph(each) for each in call.operands):
            return
        known = self._inputs.get(call.lines[0])
        if known is None:
            known = self._inputs[call.lines[0]] = _Input(call.lines[0], [], 0.0, None, 0.0)
        known.looks += 1
        if known.looks > _LOOKS:
            return
        size, column, usual = self._largest(value)
        if known.size < size < math.inf:
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

    def _is_readable(self, value: Any) -> bool:
        meta = self.facts.backend.meta(value)
        return meta.dtype in values.WORDS and 0 < meta.numel <= _MOST

    # ---- telling

    def iteration_end(self) -> None:
        self._judge()

    def at_stop(self, point: PausedPoint) -> None:
        self._judge()

    def end(self) -> None:
        self._judge(over=True)

    def _judge(self, over: bool = False) -> None:
        if self._told:
            if over or self.facts.iteration <= self._told_at + _EARLY:
                self._fold()
            return
        optimizers = [each for each in Ledger.of(self.facts).optimizers.values() if each.rates and each.steps]
        if not self._inputs or not optimizers:
            return
        given = max(self._inputs.values(), key=lambda each: each.size)
        rate, by_size = max((each.rates[-1][1], each.kind in _PLAIN) for each in optimizers)
        change = rate * given.size ** (2 if by_size else 1)  # of what the layer gives, by one step
        if not (_LARGE <= given.size < math.inf and 0 < rate <= _RATE and change > _STEEP):
            return
        # Before any step it is no matter of the rate: then what the first layers give must be too large for an exp.
        grown = [each for each in self.facts.findings.values() if outgrown(each)]
        grown = [each for each in grown if each.iteration != 1 or " exp of " in each.message]
        jumped = self._jumped()
        if jumped or any(each.kind == "large-update" for each in grown) or (grown and given.size >= _HUGE):
            moved = jumped or any(each.iteration != 1 for each in grown)
            what = f"training diverges at a learning rate of {rate:g}" if moved else "the forward overflows"
            self._told = self._tell(given, what, self._change_text(change, by_size), jumped)
            self._told_at = self.facts.iteration
            self._fold()

    def _fold(self) -> None:
        """What came of the first steps, whenever it is told. Of several models, what says so of itself."""
        alone = len(Ledger.of(self.facts).optimizers) == 1
        for each in list(self.facts.findings.values()):
            follows = alone and each.kind in _FOLLOW and each.victim_of is None and each.severity != "note"
            if follows or outgrown(each):
                self.facts.tell(replace(each, victim_of=self._told))

    def _jumped(self) -> str:
        """What a loss did in the first iterations, where it grew beyond reason and stayed there."""
        for first, *later in filter(None, self._losses.values()):
            if not 0 < first < math.inf:
                continue
            beyond = [not loss <= _JUMP * first for loss in later]
            for at, loss in enumerate(later):
                if all(beyond[at : at + 2]) and at + 1 < len(later) and math.isfinite(loss):
                    return f"the loss went from {first:.3g} in iteration 1 to {loss:.3g} in iteration {at + 2}"
        return ""

    @staticmethod
    def _change_text(change: float, by_size: bool) -> str:
        if not by_size:
            return f"rate times size: {change:.3g}, by which one step changes what the layer gives"
        return (
            f"rate times mean square: {change:.3g}; plain descent overshoots above 2, where the loss curves by 1: both "
            "the gradient of a weight and what the weight does grow with what it reads"
        )

    def _tell(self, given: _Input, what: str, step: str, jumped: str) -> int:
        where = f"column {given.column} of what" if given.column is not None else "what"
        made = self._made_at(given.size)
        middle = f", the columns in the middle {given.usual:.3g}" if given.column is not None else ""
        evidence = [
            *([jumped] if jumped else []),
            f"{where} `{self.facts.text_of(given.line)}` was given {given.shape} has a root mean square of "
            f"{given.size:.3g}{middle}",
            step,
            *([f"numbers of that size are made by `{self.facts.text_of(made)}`"] if made is not None else []),
        ]
        return self.facts.tell(
            Finding(
                0, "unscaled-input", "error", 0.85,
                f"inputs are not scaled: {where} the first layer is given is about {given.size:.3g} in size, so that "
                f"{what}; standardize it (subtract the mean, divide by the standard deviation)",
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


def _root_mean_square(column: Any) -> float:
    return math.sqrt(sum(each * each for each in column) / max(1, len(column)))

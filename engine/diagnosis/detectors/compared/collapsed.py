"""Two outputs of a network that are to agree, both of which are trained to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.losses import PAIRED
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.numbers.values import Numbers, few_numbers
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_PRODUCTS = frozenset({"mul", "multiply"})
_LIKE = frozenset({"cosine_similarity"})
_LOSSES = PAIRED | {"cross_entropy", "cross_entropy_with_softmax", "nll_loss", "kl_div"}
_ROWS, _AXES = 8, 4
_MOST = 1 << 16  # numbers of one side
_FEW = 64  # rows that are compared
_FELL = 0.5  # of the largest spread that was seen, which is left
_UNIT = 0.02  # by which the length of a row of a cosine may differ from 1
_SETTLED = 16  # iterations
_SAME = 0.15  # of the spread of rows that go all ways: what a pair of samples has in common is 0.98
_AGREE = 0.98
_KEPT = 3


@dataclass(slots=True)
class _Pair:
    line: SourceLine | None
    name: str
    #: (iteration, spread of the one, of the other, cosine)
    looks: list[tuple[int, float, float, float]] = field(default_factory=list)
    beside: bool = False  # another loss has a target
    first: float = 0.0  # spread of the other one in the first look
    most: float = 0.0  # the largest of both so far


@detector("loss-input")
class Collapsed(Detector):
    """A loss that has two outputs of a network agree (a cosine, a distance of rows of length 1), where gradients go
    into both of them and nothing holds different samples apart: the cheapest way to agree is to give the same for every
    sample. One side is to be detached (stop-gradient, SimSiam and BYOL).

    Evidence: the spread of the rows of both sides, which went to nothing; how far they agree.
    Mistaken for: a consistency beside another loss with a target, contrastive losses, whose rows stay apart, rows of
    any length (scores, policies, experts), and outputs that still differ from sample to sample, or never did: not told.
    Cost: in sampled iterations a look at each operator's name, and up to 65,536 numbers of both sides, once a line.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._products: Marks[_Pair] = Marks()
        self._pairs: dict[SourceLine | None, _Pair] = {}
        self._now: list[_Pair] = []  # in this iteration
        self._target = False  # a loss of this iteration has one
        self._read: set[SourceLine | None] = set()  # lines whose numbers were read in this iteration
        self._plain: set[SourceLine | None] = set()  # products that nobody sums up: gates, scales

    def applied(self) -> bool:
        return bool(self._pairs)

    def composite(self, call: OperatorCall) -> None:
        self.operator(call)

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or call.in_backward or not call.results or not call.grad_mode:
            return
        name, operands = plain(call.name), call.operands
        if name == "sum" and operands and (known := self._products.of(operands[0])) is not None:
            if len(shape(call.results[0])) < 2:
                self._pairs.setdefault(known.line, known.what)
            return
        if name not in _PRODUCTS and name not in _LIKE and name not in _LOSSES:
            return
        if len(operands) < 2 or not any(each.requires_grad for each in operands[:2]):
            return
        if not all(each.requires_grad and not each.is_leaf for each in operands[:2]):
            self._target = self._target or name in _LOSSES
            return
        sizes = shape(operands[0])
        if len(sizes) != 2 or sizes != shape(operands[1]) or sizes[0] < _ROWS or sizes[1] < _AXES:
            return
        self._look(call, name)

    def _look(self, call: OperatorCall, name: str) -> None:
        line = line_of(call.lines)
        if line in self._read or line in self._plain:
            return
        read = [few_numbers(self.facts.backend, each, _MOST) for each in call.operands[:2]]
        if any(each is None for each in read) or call.operands[0] is call.operands[1]:
            return
        rows = [_directions(each, name not in _LIKE) for each in read if each is not None]
        self._read.add(line)
        if not all(rows):
            return
        pair = self._pairs.get(line)
        if pair is None:
            pair = _Pair(line, call.name)
            if name not in _PRODUCTS:  # a product counts once it is summed up
                self._pairs[line] = pair
        spreads = [_spread(each) for each in rows]
        agree = sum(a * b for one, other in zip(*rows) for a, b in zip(one, other)) / max(1, len(rows[0]))
        if not pair.looks:
            pair.first = spreads[1]
        pair.most = max(pair.most, *spreads)
        pair.looks = [*pair.looks[1 - _KEPT :], (self.facts.iteration + 1, *spreads, agree)]
        self._now.append(pair)
        if name in _PRODUCTS:
            self._products.put(call.results[0], pair, call.name, line)

    def iteration_end(self) -> None:
        for pair in self._now if self._target else ():
            pair.beside = True
        self._plain |= self._read - self._pairs.keys()
        self._now, self._target, self._read = [], False, set()

    def end(self) -> None:
        for pair in self._pairs.values():
            if pair.beside:
                continue
            last = [each for each in pair.looks if each[0] >= _SETTLED]
            bound = min(_SAME, _FELL * pair.most)
            if len(last) >= 2 and all(max(one, other) < bound and agree > _AGREE for _, one, other, agree in last):
                self._tell(pair)
                return

    def _tell(self, pair: _Pair) -> None:
        at, one, other, agree = pair.looks[-1]
        self.facts.tell(
            Finding(
                0, "loss-input", "warning", 0.85,
                f"{pair.name} at {place(pair.line)} compares two outputs that are both trained to agree: every sample "
                "gives the same by now; keep gradients out of one of them (detach())",
                None, None, None, pair.line, self.facts.cause(pair.line),
                [
                    f"the spread of the samples is {one:.2g} and {other:.2g} in iteration {at} (1: all directions), "
                    f"{pair.first:.2g} in the first; the mean cosine of the two is {agree:.3f}",
                    "no loss with a target was seen beside it",
                ],
                [f"b {place(pair.line)}", "info node"],
            )
        )  # fmt: skip


def _directions(read: Numbers, unit: bool) -> list[list[float]]:
    """The first rows, of length 1; [] where they are to have it, ``unit``, and do not."""
    found, width = [], read.shape[1]
    for at in range(0, min(len(read.flat), _FEW * width), width):
        row = list(read.flat[at : at + width])
        size = math.sqrt(sum(each * each for each in row))
        if not size > 0 or (unit and abs(size - 1) > _UNIT):
            return []
        found.append([each / size for each in row])
    return found


def _spread(rows: Sequence[Sequence[float]]) -> float:
    """Root mean square distance of the rows from their mean: 1 where they go all ways, 0 where they are the same."""
    count = len(rows)
    mean = [sum(column) / count for column in zip(*rows)]
    return math.sqrt(sum(sum((a - m) ** 2 for a, m in zip(row, mean)) for row in rows) / count)

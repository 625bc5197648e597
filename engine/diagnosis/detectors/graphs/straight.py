"""Straight-through estimators that are written the wrong way round: ``q + (w - q).detach()``, where ``w + (q - w)
.detach()`` is meant. Asked by ``rounded`` and ``no_gradient``."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, plain, shape
from adbg.engine.diagnosis.detectors.graphs.flow import Cut, Flow
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.types import SourceLine

_SIGNS = {"add": 1, "sub": -1, "subtract": -1}
_DETACHES = frozenset({"detach", "data"})
_SAME = frozenset({"clone", "assign"})
_MOST = 4  # terms of a sum


@dataclass(frozen=True, slots=True)
class _Term:
    """What is added, by a number of its own; the last four are those of ``Known`` in ``flow``."""

    number: int
    name: str
    line: SourceLine | None
    attached: int  # how often it is added with its graph, and without it
    detached: int
    values: int
    gradients: int
    cuts: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Swap:
    """A sum whose gradient goes to what was rounded, and not to what it was rounded from. ``rounds``, ``cuts`` and
    ``leaves`` are bits of the flow: the gradients of these leaves are lost there; ``cancels``: its value is that of
    what was not rounded."""

    name: str
    lines: tuple[SourceLine, ...]
    rounded: str  # what gives the rounded operand
    at: SourceLine | None
    rounds: int
    cuts: int
    leaves: int
    cancels: bool

    @property
    def line(self) -> SourceLine | None:
        return line_of(self.lines)

    @property
    def why(self) -> str:
        return (
            "the operands of this straight-through estimator are the wrong way round: what is rounded keeps its graph, "
            "and what it is rounded from is detached (w + (q - w).detach() passes the gradient on)"
        )


class Straight:
    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._forms: Marks[tuple[_Term, ...]] = Marks()
        self._numbers = itertools.count()
        self.swaps: dict[SourceLine | None, Swap] = {}

    def note(self, call: OperatorCall) -> None:
        """After the flow was told."""
        name = plain(call.name)
        if len(call.results) != 1 or not call.operands:
            return
        result = call.results[0]
        if name in _DETACHES and len(call.operands) == 1:
            terms = tuple(replace(each, attached=0, detached=each.attached + each.detached)
                          for each in self._terms(call.operands[0]))  # fmt: skip
        elif name in _SAME and len(call.operands) == 1:
            terms = self._terms(call.operands[0])
        elif name in _SIGNS and self._is_sum(call):
            one, other = (self._terms(each) for each in call.operands)
            terms = tuple(_added(one, other, _SIGNS[name]))
            if not call.grad_mode:
                terms = tuple(replace(each, attached=0, detached=each.attached + each.detached) for each in terms)
        else:
            return
        if terms and len(terms) <= _MOST:
            self._forms.put(result, terms, "", None)
            if name in _SIGNS:
                self._judge(call, terms)
        else:
            self._forms.drop(result)

    @staticmethod
    def _is_sum(call: OperatorCall) -> bool:
        return (
            len(call.operands) == 2
            and not call.name.startswith("__r")
            and "alpha" not in call.keywords
            and all(shape(each) == shape(call.results[0]) for each in call.operands)
        )

    def _terms(self, value: Any) -> tuple[_Term, ...]:
        """() of what no leaf reaches."""
        known = self._forms.of(value)
        if known is not None:
            return known.what
        flow = self._flow
        reached, leaf, wants = flow.of(value), flow.leaf(value), value.requires_grad
        if value.is_leaf and wants:
            if leaf is None:
                return ()
            bit = 1 << leaf.place
            term = _Term(next(self._numbers), "", None, 1, 0, bit, bit, 0, 0)
        elif reached is not None:
            gradients = reached.gradients if wants else 0
            term = _Term(next(self._numbers), reached.name, reached.line, 1, 0, reached.values, gradients,
                         reached.cuts, reached.rounds)  # fmt: skip
        else:
            return ()
        self._forms.put(value, (term,), "", None)
        return (term,)

    def _judge(self, call: OperatorCall, terms: tuple[_Term, ...]) -> None:
        for given in terms:
            if given.attached or not given.detached or not given.gradients:
                continue
            for rounded in terms:
                total = rounded.attached + rounded.detached
                paired = not total or (rounded.attached and rounded.detached * given.detached < 0)
                shared = rounded.values & given.gradients
                if rounded is given or not paired or not shared:
                    continue
                turns = rounded.rounds & ~given.rounds  # or it has no gradient for these at all: an index
                flat = turns if rounded.gradients & shared else rounded.cuts & ~given.cuts
                others = any(each.attached and each.gradients & shared for each in terms if each is not rounded)
                if flat and not others:
                    reached = self._flow.of(call.results[0])
                    cuts = reached.cuts & ~given.cuts if reached is not None else 0
                    self._put(Swap(call.name, call.lines, rounded.name, rounded.line, turns, cuts,
                                   shared, total == 0))  # fmt: skip

    def _put(self, swap: Swap) -> None:
        known = self.swaps.get(swap.line)
        if known is not None:
            swap = replace(
                swap, rounds=known.rounds | swap.rounds, cuts=known.cuts | swap.cuts, leaves=known.leaves | swap.leaves
            )
        self.swaps[swap.line] = swap

    def instead(self, cut: Cut, at: int, bit: int | None = None) -> Cut:
        """Where the gradient of a leaf is lost by such a sum: that one, for the ``at``-th cut."""
        for swap in self.swaps.values():
            if swap.cuts >> at & 1 and (bit is None or swap.leaves >> bit & 1):
                return Cut(swap.name, swap.lines, swap.why, cut.lost)
        return cut

    def of_rounds(self, rounds: int, bit: int) -> Swap | None:
        found = (each for each in self.swaps.values() if each.rounds & rounds and each.leaves >> bit & 1)
        return next(found, None)


def _added(one: tuple[_Term, ...], other: tuple[_Term, ...], sign: int) -> Iterator[_Term]:
    """What cancels stays, so that it is known to be in it."""
    more = {each.number: each for each in other}
    for each in one:
        too = more.pop(each.number, None)
        if too is None:
            yield each
        else:
            yield replace(
                each, attached=each.attached + sign * too.attached, detached=each.detached + sign * too.detached
            )
    for each in more.values():
        yield replace(each, attached=sign * each.attached, detached=sign * each.detached)

"""Rows that are written to places of a tensor, several of them to the same one: the last one stays."""

from __future__ import annotations

import ast
import collections
import math
from collections.abc import Sequence
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import axis_of, line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.numbers.values import few_numbers, numbers
from adbg.engine.diagnosis.source import nodes_of
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_SETS = frozenset({"setitem", "index_put"})
_PUTS = frozenset({"scatter", "index_copy", "put_along_axis"})
_WHOLE = frozenset({"int64", "int32"})
_SHARE = 0.05  # of the rows that are lost
_LEAST = 2
_LONGEST = 4096  # of an index whose most frequent place is looked for
_MOST = 1 << 17  # elements of an index, and of rows, that are looked at


@detector("silent-overwrite")
class Duplicates(Detector):
    """Values that gradients are wanted of are written to places of a tensor (``pooled[dst] = messages``,
    ``paddle.scatter``, ``index_copy``), and the index has the same place several times: of the values for one place
    the last one stays and the others are lost: they get no gradient, or that of the one that stays. ``count[dst] += 1``
    adds once for each place.

    Evidence: how many values there are, to how many places, how many of them are lost.
    Mistaken for: a place that is written twice with the same value, fewer than 5 % of the values, what adds up
    (``index_add``, ``scatter_add``, ``accumulate=True``, ``overwrite=False``), and what nobody trains (a bank that is
    filled under ``no_grad``), one place for all that is left over: all not told. A note where they replace what
    was there (a memory that keeps the last one).
    Cost: in sampled iterations a look at the index of each write.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._looked = 0
        self._told: set[Any] = set()

    def applied(self) -> bool:
        return self._looked > 0

    def operator(self, call: OperatorCall) -> None:
        name = plain(call.name)
        if (name not in _SETS and name not in _PUTS) or call.error is not None or call.in_backward:
            return
        line = line_of(call.lines)
        if line in self._told:
            return
        index = self._index(call, name)
        if index is None:
            return
        self._looked += 1
        value = call.operands[-1]
        adds = name in _SETS and line is not None and _adds_up(line)
        if not adds and not (call.grad_mode and value.requires_grad):
            return
        lost = len(index) - len(set(index))
        if lost < _LEAST or lost < _SHARE * len(index) or (not adds and self._is_same(call.operands[0], index, value)):
            return
        if sum(many > 1 for many in collections.Counter(index).values()) == 1:
            return  # a bin for what is left over
        self._told.add(line)
        self._tell(call, line, index, lost, adds, adds or self._was_blank(call, index))

    def _index(self, call: OperatorCall, name: str) -> Sequence[Any] | None:
        """The places that are written, one for each row of the values; None where they cannot be told."""
        given = call.arguments
        if name in _SETS:
            key = given[1] if len(given) > 1 else call.keywords.get("indices")
            parts = list(key) if isinstance(key, (tuple, list)) else [key]
            if not parts or call.keywords.get("accumulate") or (name == "index_put" and len(given) > 3 and given[3]):
                return None
            rows = [self._numbers(part, 1) for part in parts]
            if any(row is None for row in rows) or len({len(row) for row in rows if row is not None}) != 1:
                return None
            return rows[0] if len(rows) == 1 else list(zip(*[row for row in rows if row is not None]))
        if call.keywords.get("reduce") not in (None, "assign") or call.keywords.get("overwrite", True) is False:
            return None
        at = 2 if axis_of(call) is not None or name == "index_copy" else 1  # Paddle's scatter has no axis
        if name == "put_along_axis":
            at = 1
        elif at == 1 and len(given) > 3 and given[3] is False:
            return None
        if any(type(each) is str and each != "assign" for each in given):
            return None
        axis = next(
            (each for each in given if type(each) is int), call.keywords.get("axis", call.keywords.get("dim", 0))
        )
        index = call.keywords.get("index", call.keywords.get("indices", given[at] if len(given) > at else None))
        if axis != 0 and axis != -len(shape(call.operands[0])):
            return None
        return self._numbers(index, 2 if name != "index_copy" else 1)

    def _numbers(self, index: Any, most: int) -> Sequence[Any] | None:
        """Of an index of one axis; of two only where all columns are the same (``expand``)."""
        sizes = shape(index)
        if not 1 <= len(sizes) <= most or str(getattr(index, "dtype", "")).rpartition(".")[2] not in _WHOLE:
            return None
        if sizes[0] < 2 or 0 in sizes or math.prod(sizes) > _MOST:
            return None
        read = numbers(self.facts.backend, index)
        if read is None:
            return None
        if len(sizes) == 1:
            return list(read.flat)
        width = sizes[1]
        rows = [read.flat[at : at + width] for at in range(0, len(read.flat), width)]
        return [row[0] for row in rows] if all(len(set(row)) == 1 for row in rows) else None

    def _is_same(self, target: Any, index: Sequence[Any], value: Any) -> bool:
        """What is lost is what stays: one value for all places, or the same one twice."""
        sizes = shape(value)
        if sizes[:1] != [len(index)] or (len(sizes) == 1 and len(shape(target)) > 1):
            return True
        read = few_numbers(self.facts.backend, value, _MOST)
        if read is None:
            return False
        width = len(read.flat) // len(index)
        rows: dict[Any, Any] = {}
        return all(
            rows.setdefault(each, row) == row
            for at, each in enumerate(index)
            for row in [read.flat[at * width : (at + 1) * width]]
        )

    def _was_blank(self, call: OperatorCall, index: Sequence[Any]) -> bool:
        """Nothing but zeros is left where nothing was written: the values are gathered there, and replace nothing."""
        target = (
            call.results[0] if call.results and shape(call.results[0]) == shape(call.operands[0]) else call.operands[0]
        )
        read, sizes = few_numbers(self.facts.backend, target, _MOST), shape(target)
        if read is None or isinstance(index[0], tuple):
            return True
        width = len(read.flat) // sizes[0]
        written = {int(at) % sizes[0] for at in index}
        rest = (at for at in range(sizes[0]) if at not in written)
        return not any(any(read.flat[at * width : (at + 1) * width]) for at in rest)

    def _tell(
        self, call: OperatorCall, line: Any, index: Sequence[Any], lost: int, adds: bool, blank: bool
    ) -> None:  # fmt: skip
        facts, places = self.facts, len(set(index))
        what = (
            f"{place(line)} adds {len(index):,} values to {places:,} places, once for each place: of the values for "
            "the same place all but the last are lost"
            if adds
            else f"{place(line)} writes {len(index):,} values to {places:,} places: of those for the same place only "
            f"the last stays, {lost:,} are lost"
        )
        most = max(index, key=index.count) if len(index) <= _LONGEST else index[0]
        decides = [] if blank else ["whether the last one is meant to stay decides it"]
        severity, sure = ("warning", 0.88) if blank else ("note", 0.45)
        facts.tell(
            Finding(
                0, "silent-overwrite", severity, sure, what, None, None, facts.iteration + 1, line, facts.cause(line),
                [
                    *decides,
                    f"the index has {len(index):,} entries and {places:,} different ones: place {most} comes "
                    f"{index.count(most):,} times",
                    "to add up: " + ("paddle.scatter(…, overwrite=False) on zeros, or paddle.index_add"
                                     if facts.backend.name == "paddle" else "index_add, or scatter_reduce"),
                ],
                [f"b {place(line)}", "info node"],
            )
        )  # fmt: skip


def _adds_up(line: SourceLine) -> bool:
    """``count[dst] += 1``."""
    return any(
        isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript)
        and isinstance(node.op, (ast.Add, ast.Sub)) and node.lineno <= line.line <= (node.end_lineno or node.lineno)
        for node in nodes_of(line.file)
    )  # fmt: skip

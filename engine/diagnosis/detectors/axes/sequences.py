"""What takes two axes of a tensor for the steps and the rows of sequences, and where these rows meet their targets.
Asked by ``exchanged``. And the encoding of places that is added along the rows (``Positions``)."""

from __future__ import annotations

import ast
import functools
import math
import re
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from adbg.engine.backends.base import Need, OperatorCall
from adbg.engine.diagnosis.detector import Detector, detector
from adbg.engine.diagnosis.detectors.axes.turned import axis_behind
from adbg.engine.diagnosis.detectors.graphs.calls import axis_of, line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.numbers.values import few_numbers
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import assigned_before, nodes_of
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_RECURRENT = frozenset({"gru", "lstm", "rnn", "rnn_tanh", "rnn_relu"})
_PARTS = frozenset({"unbind", "unstack"})
REDUCES = frozenset({"mean", "sum", "max", "min", "amax", "amin", "prod", "median", "logsumexp", "std", "var", "norm"})
_MOVES = frozenset({
    "transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "t", "T", "mT", "reshape", "view", "flatten",
    "unflatten", "squeeze", "unsqueeze", "getitem", "view_as", "reshape_as",
})  # fmt: skip
_DIFFERS = frozenset({"sub", "subtract"})
_STEPS = 3  # that are taken one by one
What = TypeVar("What")


def steps_of(call: OperatorCall, operand: Any) -> int | None:
    """The axis of ``operand`` that a recurrent layer or an attention goes along; the rows are the other one of the
    first two."""
    name, rank = plain(call.name), len(shape(operand))
    if rank != 3 or not call.operands or operand is not call.operands[0]:
        return None
    if name in _RECURRENT:  # Paddle's kernel has the steps in front in any case
        return 1 if len(call.arguments) == 9 and call.arguments[8] is True else 0
    return 0 if name == "multi_head_attention_forward" else None


def parted_at(call: OperatorCall, operand: Any) -> tuple[int, int | None] | None:
    """The axis along which it takes one step, and which one it is; None: each of them."""
    name, rank = plain(call.name), len(shape(operand))
    if name in _PARTS:
        axis = axis_of(call) if len(call.arguments) > 1 or call.keywords else 0
        return (axis % rank, None) if axis is not None else None
    if name == "select" and len(call.arguments) == 3:
        axis, at = call.arguments[1:]
        return (axis % rank, at) if type(axis) is int and type(at) is int else None
    if name != "getitem" or len(call.arguments) != 2:
        return None
    index = call.arguments[1]
    parts = index if isinstance(index, tuple) else (index,)
    numbers = [(at, each) for at, each in enumerate(parts) if type(each) is int]
    if len(numbers) != 1 or not all(type(each) in (int, slice) for each in parts):
        return None
    return numbers[0]


class Steps:
    """The steps that were taken one by one, by axis."""

    def __init__(self) -> None:
        self._seen: dict[int, set[int]] = {}

    def are_taken(self, axis: int, at: int | None) -> bool:
        seen = self._seen.setdefault(axis, set())
        if at is not None and len(seen) < _STEPS:
            seen.add(at)
        return at is None or len(seen) >= _STEPS


@dataclass(frozen=True, slots=True)
class _Rows(Generic[What]):
    of: What
    axis: int
    size: int


class Rows(Generic[What]):
    """The axis that has the rows of what a sequence operator made, followed up to a loss."""

    def __init__(self) -> None:
        self._marks: Marks[_Rows[What]] = Marks()

    def begin(self, call: OperatorCall, what: What, size: int, axis: int) -> None:
        """``axis``: in the first result. States have the rows along their second one."""
        for at, result in enumerate(call.results):
            here = axis if at == 0 or len(shape(result)) <= 1 or shape(result)[1] != size else 1
            if here < len(shape(result)) and shape(result)[here] == size:
                self._marks.put(result, _Rows(what, here, size), call.name, None)

    def part(self, call: OperatorCall, what: What, size: int, axis: int) -> None:
        for result in call.results:
            if axis < len(shape(result)) and shape(result)[axis] == size:
                self._marks.put(result, _Rows(what, axis, size), call.name, None)

    def follow(self, call: OperatorCall) -> tuple[What, Any] | None:
        """What reaches a loss, and the targets that it is compared with there."""
        name = plain(call.name)
        for operand in call.operands:
            known = self._marks.of(operand)
            if known is None:
                continue
            rows = known.what
            if is_loss(name):
                for target in call.operands[:2]:
                    if target is not operand and self._fits(rows, operand, target):
                        return rows.of, target
            for result in call.results:
                here = behind(call, name, operand, rows.axis)
                if here is not None and here < len(shape(result)) and shape(result)[here] == rows.size:
                    self._marks.put(result, _Rows(rows.of, here, rows.size), call.name, None)
            return None
        return None

    def _fits(self, rows: _Rows[What], operand: Any, target: Any) -> bool:
        if target.requires_grad or not target.is_leaf or self._marks.of(target) is not None:
            return False
        sizes, rank = shape(target), len(shape(operand))
        at = rows.axis if len(sizes) < rank or rows.axis == 0 else rows.axis + len(sizes) - rank
        return at < len(sizes) and sizes[at] == rows.size


def is_loss(name: str) -> bool:
    return "loss" in name or "cross_entropy" in name or name in _DIFFERS


def behind(call: OperatorCall, name: str, operand: Any, axis: int) -> int | None:
    """Where an axis of an operand is in the first result; None where it is gone, or that cannot be told."""
    sizes, result = shape(operand), shape(call.results[0])
    first = operand is call.operands[0]
    if name in _MOVES:
        return axis_behind(call, axis) if first else None
    if name == "stack":
        at = axis_of(call) if len(call.arguments) > 1 or call.keywords else 0
        return axis + (at % len(result) <= axis) if at is not None else None
    if name in REDUCES and len(result) != len(sizes):
        given = call.keywords.get(
            "dim", call.keywords.get("axis", call.arguments[1] if len(call.arguments) > 1 else None)
        )
        gone = [
            each % len(sizes) for each in (given if isinstance(given, (list, tuple)) else [given]) if type(each) is int
        ]
        return axis - sum(each < axis for each in gone) if gone and axis not in gone else None
    return axis if len(result) == len(sizes) else None


_ADDS = frozenset({"add", "radd"})
_FOLDS = frozenset({"reshape", "view", "flatten", "unflatten", "view_as", "reshape_as"})
_PRODUCTS = frozenset({"matmul", "bmm", "baddbmm"})
_FUSED = frozenset({"scaled_dot_product_attention", "flash_attn", "memory_efficient_attention"})
_ALONG = frozenset({"cumsum", "cumprod", "logcumsumexp", "flip", "roll", "sort", "diff", "softmax", "log_softmax"})
_LENGTH = re.compile(r"\.size\((dim=)?0\)|\.shape\[0\]|\blen\(|^(\w+): \(?\2, .*(\.shape|\.size\(\)|\.shape\[:\d\])$")
_TABLE = 1 << 20  # elements of a table that are read
_NEAR = 1e-3
_SEEN = 2  # iterations


@dataclass(frozen=True, slots=True)
class _Table:
    """The first places of a table of these sizes. ``waves``: of sines and cosines."""

    sizes: tuple[int, ...]
    waves: bool
    line: SourceLine


@dataclass(slots=True)
class _Encoded:
    """Of one line, in one iteration. ``across``: what goes along another axis, the steps; ``met``: where the rows meet
    targets; ``along``: something goes along the axis that has the places, as it should, or that cannot be told."""

    table: _Table
    sizes: list[int]
    at: SourceLine | None
    across: str = ""
    met: str = ""
    along: bool = False


@dataclass(frozen=True, slots=True)
class _Axis:
    """Where the places are by now, in blocks of ``below`` where the axis was merged with others. ``scores``: of a
    product of two that have them."""

    of: _Encoded
    axis: int
    below: int = 1
    scores: bool = False


@detector("wrong-axis")
class Positions(Detector):
    """An encoding of places that is added along the batch: ``x + pe[: x.size(0)]``, where ``pe`` is [places, 1,
    features], as is right where the steps of sequences come first, and ``x`` is [rows, steps, features]: each row gets
    one encoding for all of its steps, by where it is in the batch, and the order of the steps is not known.

    Evidence: the sizes of the table, its part and what it is added to; the recurrent layer or the attention that goes
    along the other axis; the loss that compares the rows with as many targets. The table has sines and cosines, or is
    learnt and cut by the size of the first axis.
    Mistaken for: sequences whose steps come first; an embedding of a sample (of a class, of a time), which is looked up
    or computed; frames or views along the first axis, which something goes along as well, or which are reduced; an
    encoding of rows beside one of steps; a table of numbers that are neither learnt nor waves (all not told).
    Cost: in sampled iterations a look at each operator's name; the first places of a table are read once a line.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._tables: Marks[_Table] = Marks()
        self._axes: Marks[_Axis] = Marks()
        self._placed: Marks[None] = Marks()  # an encoding of the steps was added there
        self._waves: dict[SourceLine | None, bool] = {}
        self._found: list[_Encoded] = []
        self._seen: dict[SourceLine | None, int] = {}

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or not call.results or not call.operands or not call.grad_mode or call.in_backward:
            return
        name, result = plain(call.name), call.results[0]
        table, sizes = self._tables.of(call.operands[0]), shape(result)
        if table is not None and len(call.operands) == 1 and sizes[:1] == shape(call.operands[0])[:1]:
            self._tables.put(result, table.what, "", None)
        elif name == "getitem":
            self._cut(call)
        if name in _ADDS and len(call.operands) == 2:
            for one, other in (call.operands, call.operands[::-1]):
                self._add(call, one, other)
        if self._found:
            self._follow(call, name)

    def iteration_end(self) -> None:
        wrong = {each.table.line: each for each in self._found if each.across and each.met}
        right = {each.table.line for each in self._found if each.along}
        self._seen.update(dict.fromkeys(right, -(1 << 30)))
        for line, each in wrong.items():
            if (seen := self._seen.get(line, 0) + 1) == _SEEN:
                self._tell(each)
            self._seen[line] = seen
        self._found = []

    # ---- tables

    def _cut(self, call: OperatorCall) -> None:
        """``pe[:n]``, ``pe[:n, :]``"""
        source, result, line = call.operands[0], call.results[0], line_of(call.lines)
        sizes, count = shape(source), (shape(result)[:1] or [0])[0]
        if len(call.arguments) != 2 or len(call.operands) != 1 or not _takes_first(call.arguments[1], count):
            return
        if count < 2 or len(sizes) not in (2, 3) or sizes[0] <= count or sizes[1:-1] not in ([], [1]):
            return
        if source.is_leaf and line is not None:
            if line not in self._waves:
                self._waves[line] = self._has_waves(result)
            learnt = source.requires_grad or self.facts.is_named(source)
            if self._waves[line] or (learnt and _by_length(line.file, line.line)):
                self._tables.put(result, _Table(tuple(sizes), self._waves[line], line), call.name, line)

    def _has_waves(self, value: Any) -> bool:
        """The squares of a sine and its cosine add up to one number everywhere: they stand side by side, or each in its
        half of a row."""
        read = few_numbers(self.facts.backend, value, _TABLE)
        if read is None or len(read.shape) < 2 or read.shape[-1] < 4:
            return False
        width, half = read.shape[-1], read.shape[-1] // 2
        rows = [read.flat[at : at + width] for at in range(0, len(read.flat), width)]
        for pairs in ([(2 * at, 2 * at + 1) for at in range(half)], [(at, at + half) for at in range(half)]):
            sums = [row[one] ** 2 + row[other] ** 2 for row in rows for one, other in pairs]
            if list(rows[0]) != list(rows[1]) and 0 < max(sums) < (1 + _NEAR) * min(sums):
                return True
        return False

    def _add(self, call: OperatorCall, one: Any, other: Any) -> None:
        sizes, coded = shape(one), shape(other)
        result = call.results[0]
        if len(sizes) != 3 or shape(result) != sizes or sizes[1] < 2:
            return
        known = self._axes.of(one)
        if coded[-2:] == sizes[1:] and coded[:-2] in ([], [1]):
            self._placed.put(result, None, "", None)
            if known is not None and not known.what.scores:
                known.what.of.along = True
            return
        table = self._tables.of(other)
        if table is None or coded != [sizes[0], 1, sizes[2]] or self._placed.of(one) is not None or known is not None:
            return
        self._found.append(_Encoded(table.what, sizes, line_of(call.lines)))
        self._axes.put(result, _Axis(self._found[-1], 0), call.name, None)

    # ---- what becomes of the sum

    def _follow(self, call: OperatorCall, name: str) -> None:
        known = [(at, each, self._axes.of(each)) for at, each in enumerate(call.operands)]
        marked = [(at, each, found.what) for at, each, found in known if found is not None]
        if not marked:
            if self._placed.of(call.operands[0]) and shape(call.operands[0]) == shape(call.results[0]):
                self._placed.put(call.results[0], None, "", None)
            return
        at, operand, what = marked[0]
        if is_loss(name):
            self._meet(call, operand, what)
            if name not in _DIFFERS:
                return
        self._go_along(call, name, marked)
        if name == "multi_head_attention_forward" and at:
            return  # as keys and values alone
        here = self._through_product(call, marked) if name in _PRODUCTS else self._behind(call, name, operand, what)
        count = shape(operand)[what.axis]
        if here is None:
            what.of.along |= math.prod(shape(call.results[0])) > 1 and call.results[0].requires_grad
            return
        for number, result in enumerate(call.results):
            sizes, axis = shape(result), here.axis
            axis = 1 if name in _RECURRENT and number and sizes[1:2] == [count] else axis  # states
            if axis < len(sizes) and (sizes[axis] == count or name in _FOLDS):
                self._axes.put(result, replace(here, axis=axis), call.name, None)
            elif not number and result.requires_grad:
                what.of.along = True

    def _go_along(self, call: OperatorCall, name: str, marked: list[tuple[int, Any, _Axis]]) -> None:
        """Note what goes along an axis: that of the places, or another one."""
        for at, operand, what in marked:
            rank, steps = len(shape(operand)), None
            if name == "multi_head_attention_forward" and at < 3 and rank == 3:
                steps = 0
            elif name in _RECURRENT and not at:
                steps = steps_of(call, operand)
            elif name in _FUSED and at < 3 and rank == 4:
                steps = 1 if self.facts.backend.name == "paddle" else 2
            elif name == "softmax" and what.scores and (axis := axis_of(call)) is not None:
                steps = axis % rank
            elif name == "linear" or "conv" in name:
                what.of.along |= what.axis == rank - 1 or (what.axis > 0 and name != "linear")
            elif name in _ALONG and (axis := axis_of(call)) is not None:
                what.of.along |= axis % rank == what.axis
            if steps == what.axis:
                what.of.along = True
            elif steps is not None and not at:
                what.of.across = what.of.across or f"{call.name} at {place(line_of(call.lines))}"

    @staticmethod
    def _through_product(call: OperatorCall, marked: list[tuple[int, Any, _Axis]]) -> _Axis | None:
        """None where a product sums over the places, or compares them."""
        rank, (at, _, what) = len(shape(call.results[0])), marked[0]
        if any(len(shape(each)) != rank for _, each, _ in marked):
            return None
        if len(marked) > 1:
            return replace(what, scores=True) if all(each.axis < rank - 2 for _, _, each in marked) else None
        return replace(what, scores=False) if what.axis != (rank - 2 if at else rank - 1) else None

    @staticmethod
    def _behind(call: OperatorCall, name: str, operand: Any, what: _Axis) -> _Axis | None:
        sizes, result, first = shape(operand), shape(call.results[0]), operand is call.operands[0]
        if name in _FOLDS and first:
            return _folded(what, sizes, result)
        if name == "einsum":
            return None
        if (parted := parted_at(call, operand)) is not None:
            gone = parted[0]
            return replace(what, axis=what.axis - (gone < what.axis)) if gone != what.axis else None
        here = behind(call, name, operand, what.axis)
        return replace(what, axis=here) if here is not None else None

    def _meet(self, call: OperatorCall, operand: Any, what: _Axis) -> None:
        count, line = shape(operand)[:1], place(line_of(call.lines))
        for target in call.operands[:2] if what.axis == 0 else ():
            if target is not operand and target.is_leaf and not target.requires_grad and shape(target)[:1] == count:
                what.of.met = f"{call.name} at {line} compares {count[0]} rows with as many targets"

    def _tell(self, found: _Encoded) -> None:
        facts, table, sizes = self.facts, found.table, found.sizes
        rows, steps, size = sizes
        message = (
            f"{place(table.line)} takes the first {rows} places of a table, which are added along axis 0 of {sizes}, "
            f"the batch: all {steps} steps of a row get one encoding, by the row's place in the batch; take the first "
            f"{steps}, and have them lie along axis 1: [1, {steps}, {size}]"
        )
        evidence = [
            f"what is added is {[rows, 1, size]}, the first of {list(table.sizes)}"
            + (", sines and cosines of places" if table.waves else ", which is learnt"),
            f"{found.across} takes another axis for the steps: these are not told apart by what was added",
            found.met,
        ]
        severity, sure = ("warning", 0.9) if table.waves else ("warning", 0.8)
        facts.tell(
            Finding(0, "wrong-axis", severity, sure, message, None, None, facts.iteration, found.at,
                    facts.cause(table.line), evidence, [f"b {place(table.line)}", "info node"])
        )  # fmt: skip


def _takes_first(index: Any, count: int) -> bool:
    first, *rest = index if isinstance(index, tuple) and index else (index,)
    every = all(each is None or each is Ellipsis or (type(each) is slice and each == slice(None)) for each in rest)
    if not every or type(first) is not slice or first.start not in (None, 0) or first.step not in (None, 1):
        return False
    return type(first.stop) is int and first.stop == count


def _folded(what: _Axis, source: list[int], result: list[int]) -> _Axis | None:
    """By the strides that the places have: in an axis of the result that has all of them."""
    stride = what.below * math.prod(source[what.axis + 1 :])
    for at, size in enumerate(result):
        below = math.prod(result[at + 1 :])
        if size > 1 and stride % below == 0 and stride * what.of.sizes[0] <= below * size:
            return replace(what, axis=at, below=stride // below)
    return None


@functools.lru_cache(256)
def _by_length(file: str, line: int) -> bool:
    """It cuts to the size of a first axis: ``[: x.size(0)]``, ``[:n]`` after ``n, d = x.shape``."""
    for node in nodes_of(file):
        if not isinstance(node, ast.Subscript) or not node.lineno <= line <= (node.end_lineno or 0):
            continue
        cut = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
        bound = cut.upper if isinstance(cut, ast.Slice) else None
        text = ast.unparse(bound) if bound is not None else ""
        if isinstance(bound, ast.Name) and (made := assigned_before(file, line, bound.id)) is not None:
            text = f"{bound.id}: {ast.unparse(made[1])}"
        if _LENGTH.search(text):
            return True
    return False

"""What takes two axes of a tensor for the steps and the rows of sequences, and where these rows meet their targets.
Asked by ``exchanged``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detectors.axes.turned import axis_behind
from adbg.engine.diagnosis.detectors.graphs.calls import axis_of, plain, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marks

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

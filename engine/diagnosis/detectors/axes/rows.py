"""A reshape to rows as long as there are channels, of what still has its channels in front of its positions: a row has
several positions of few channels, where the channels of one position were meant. Asked by ``axes``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detectors.axes.mixed import classes_of
from adbg.engine.diagnosis.detectors.axes.turned import numbers_of
from adbg.engine.diagnosis.detectors.graphs.calls import axis_of, line_of, place, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marked, Marks
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.protocol.messages import Finding

_FOLDS = frozenset({"reshape", "view"})
_SOFTMAX = frozenset({"softmax", "log_softmax"})
_INDEX = "the index"
_FEATURES = frozenset({"linear", "layer_norm", "rms_norm"})


@dataclass(frozen=True, slots=True)
class _Rows:
    """``axis``: of ``before``, where a layer gave its channels. ``told``: the length of a row was given."""

    before: list[int]
    behind: list[int]
    axis: int
    told: bool
    made: str


class Rows:
    """Told where a loss takes the rows for the classes of one position, or a softmax, a linear layer or a normalisation
    goes along them. Not where each channel stays together (``[b * c, t]``), nor where a sample has one position; where
    the sizes are those that a transpose makes without merging axes, others tell it. Told also where rows are as long as
    a part of the channels (five numbers for each of three anchors), and the program picks of a row by place."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._rows: Marks[_Rows] = Marks()
        self._parts: Marks[_Rows] = Marks()

    def operator(self, call: OperatorCall, name: str, given: Marked[int] | None) -> None:
        """``given``: the axis of its first operand that has a layer's channels."""
        source, result = call.operands[0], call.results[0]
        before, behind = shape(source), shape(result)
        rows = self._rows.of(source)
        if given is not None and name in _FOLDS and is_mixed(before, given.what, behind):
            sizes = numbers_of(call)
            made = f"{given.name} at {place(given.line)}"
            told = bool(sizes) and sizes[-1] == behind[-1]
            self._rows.put(result, _Rows(before, behind, given.what, told, made), call.name, line_of(call.lines))
        elif given is not None and name in _FOLDS and _is_parted(before, given.what, behind, numbers_of(call)):
            made = f"{given.name} at {place(given.line)}"
            self._parts.put(result, _Rows(before, behind, given.what, True, made), call.name, line_of(call.lines))
        elif (parts := self._parts.of(source)) is not None:
            if name == "getitem" and behind != before and _picks_last(call):
                self._tell_parts(call, parts)
            elif before == behind:
                self._parts.put(result, parts.what, parts.name, parts.line)
        elif rows is not None:
            if before and _along(call, name, rows.what.told) == len(before) - 1:
                self._tell(call, rows, name)
            elif name == "getitem" and rows.what.told and behind != before and _picks_last(call):
                self._tell(call, rows, _INDEX)
            elif before == behind:
                self._rows.put(result, rows.what, rows.name, rows.line)

    def _tell_parts(self, call: OperatorCall, parts: Marked[_Rows]) -> None:
        """Predictions of several anchors: their numbers are picked by place, and lie along the positions."""
        facts, what, line = self._facts, parts.what, line_of(call.lines)
        count, many, positions = what.behind[-1], what.before[what.axis], math.prod(what.before[what.axis + 1 :])
        message = (
            f"{parts.name} at {place(parts.line)} makes {what.behind} of {what.before} and moves no element: the "
            f"{count} numbers of a row, which {place(line)} tells apart, are one channel at {count} positions, where "
            f"{count} of the {many} channels at one position were meant: move the channels last first (permute, "
            "transpose)"
        )
        evidence = [
            f"the {many} channels lie along axis {what.axis} of {what.before}, as {what.made} gave them, each of them "
            f"{positions} elements in one piece",
            f"{place(line)}: {facts.text_of(line) if line is not None else ''}",
        ]
        facts.tell(
            Finding(0, "wrong-axis", "error", 0.85, message, None, None, facts.iteration + 1, line,
                    facts.cause(parts.line), evidence, [f"b {place(parts.line)}", "info node"])
        )  # fmt: skip

    def _tell(self, call: OperatorCall, rows: Marked[_Rows], name: str) -> None:
        facts, what, line = self._facts, rows.what, line_of(call.lines)
        count, positions = what.behind[-1], math.prod(what.before[what.axis + 1 :])
        message = (
            f"{rows.name} at {place(rows.line)} makes {what.behind} of {what.before} and moves no element, so that "
            f"each row that {call.name} at {place(line)} takes for the {count} channels of one position has "
            "several positions in it: move the channels last first (permute, transpose)"
        )
        evidence = [
            f"the {count} channels lie along axis {what.axis} of {what.before}, as {what.made} gave them, each of them "
            f"{positions} elements in one piece",
            f"the first row has {min(positions, count)} positions of channel 0"
            + (f", and {-(-count // positions)} channels in all" if positions < count else " and no other channel"),
        ]
        loss = name not in _SOFTMAX | _FEATURES | {_INDEX}
        severity, sure = ("error", 0.92) if loss else ("warning", 0.85)
        facts.tell(
            Finding(0, "wrong-axis", severity, sure, message, None, None, facts.iteration + 1, line,
                    facts.cause(rows.line), evidence, [f"b {place(rows.line)}", "info node"])
        )  # fmt: skip


def is_mixed(before: Sequence[int], axis: int, behind: Sequence[int]) -> bool:
    """Whether the last axis of ``behind`` is as long as axis ``axis`` of ``before``, the channels, and has neither
    these nor all positions along the last axes."""
    count = before[axis]
    if len(before) < 3 or len(behind) < 2 or behind[-1] != count or count < 2 or math.prod(before[axis + 1 :]) < 2:
        return False
    if sorted(each for each in before if each > 1) == sorted(each for each in behind if each > 1):
        return False
    return count not in [math.prod(before[at:]) for at in range(1, len(before))]


def _is_parted(before: Sequence[int], axis: int, behind: Sequence[int], told: Sequence[int]) -> bool:
    """Whether the last axis of ``behind`` was told to be a part of the channels, all axes behind which it cuts up."""
    if len(before) < 3 or len(behind) < 2 or axis != 1 or not told or told[-1] != behind[-1]:
        return False
    count, part, positions = before[axis], behind[-1], math.prod(before[axis + 1 :])
    cuts = part < positions and part not in before[axis + 1 :] and positions % part
    return 1 < part < count and count % part == 0 and bool(cuts)


def _picks_last(call: OperatorCall) -> bool:
    """``x[..., 0]`` or ``x[..., 1:]``: some of the last axis are taken, by place."""
    given = call.arguments[1] if len(call.arguments) > 1 else None
    index: tuple[Any, ...] = given if isinstance(given, tuple) else (given,)
    whole = len(index) == len(shape(call.operands[0])) or any(each is Ellipsis for each in index[:-1])
    last = index[-1] if index else None
    return whole and (type(last) is int or (isinstance(last, slice) and last != slice(None)))


def _along(call: OperatorCall, name: str, told: bool) -> int | None:
    """The axis of its first operand along which an operator takes what belongs to one position."""
    rank = len(shape(call.operands[0]))
    if name in _SOFTMAX and told:
        axis = axis_of(call)
        return axis % rank if axis is not None else None
    return rank - 1 if name in _FEATURES and told else classes_of(call, name)

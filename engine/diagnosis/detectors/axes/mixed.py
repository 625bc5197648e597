"""A reshape to the sizes that a transpose would have made: it moves no element, so that the classes of one position lie
along none of its axes. Asked by ``axes``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detectors.axes.turned import folded
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marked, Marks
from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.protocol.messages import Finding

_FOLDS = frozenset({"reshape", "view", "reshape_as", "view_as", "flatten", "unflatten"})
_LOSSES = frozenset({
    "cross_entropy", "nll_loss", "cross_entropy_with_softmax", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "bce_loss", "sigmoid_cross_entropy_with_logits",
    "square_error_cost",
})  # fmt: skip
_KEEPS = frozenset({"neg", "clone", "contiguous", "float", "double", "to", "cast", "assign", "log", "clamp", "clip",
                    "softmax", "log_softmax"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Before and after a reshape; ``mixed`` where the second ones are the first in another order."""

    before: list[int]
    behind: list[int]
    mixed: bool


class Reshaped:
    """Only what a loss takes for classes is told. What was reshaped before may be meant to lie as it does: a layer that
    gives classes and positions in one axis."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._marks: Marks[_Sizes] = Marks()

    def operator(self, call: OperatorCall) -> None:
        name, result = plain(call.name), call.results[0]
        known = self._marks.of(call.operands[0])
        if name in _FOLDS:
            before, behind = shape(call.operands[0]), shape(result)
            if _real(before) != _real(behind):
                mixed = known is None and sorted(_real(before)) == sorted(_real(behind))
                self._marks.put(result, _Sizes(before, behind, mixed), call.name, line_of(call.lines))
            elif known is not None:  # an axis of one element came or went
                self._marks.put(result, known.what, known.name, known.line)
        elif known is not None and name in _KEEPS and shape(result) == shape(call.operands[0]):
            self._marks.put(result, known.what, known.name, known.line)
        elif known is not None and known.what.mixed and (axis := classes_of(call, name)) is not None:
            self._judge(known, call, axis)

    def _judge(self, known: Marked[_Sizes], call: OperatorCall, axis: int) -> None:
        sizes, before = shape(call.operands[0]), known.what.before
        classes = sizes[axis]
        if classes < 2 or before.count(classes) != 1 or _real(sizes) != _real(known.what.behind):
            return
        here = known.what.behind.index(classes)
        source = before.index(classes)
        if folded(before, source, known.what.behind) == here:
            return  # whole rows of classes, in another order
        facts, line = self._facts, line_of(call.lines)
        behind = known.what.behind
        message = (
            f"{known.name} at {place(known.line)} makes {behind} of {before} and moves no element, so that what "
            f"{call.name} at {place(line)} takes for the {classes} classes of one position is of several: use transpose"
        )
        evidence = [
            f"the {classes} classes lie along axis {source} of {before}, and {call.name} takes axis {axis} of {sizes}",
            f"a transpose makes {behind} of {before} too, with the classes of each position along axis {here}",
        ]
        facts.tell(
            Finding(0, "wrong-axis", "error", 0.92, message, None, None, facts.iteration + 1, line,
                    facts.cause(known.line), evidence, [f"b {place(known.line)}", "info node"])
        )  # fmt: skip


class Flattened:
    """A prediction of [T, B, C] and a target of [B, T], both flattened and compared: each row meets the target of
    another place. Told where the two sizes differ; where they are the same nothing can be seen."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._marks: Marks[tuple[int, ...]] = Marks()
        self._folded: Marks[None] = Marks()  # it may lie as it is meant to, by the first of two reshapes

    def operator(self, call: OperatorCall, name: str) -> None:
        source, result = call.operands[0], call.results[0]
        known = self._marks.of(source)
        if name in _FOLDS:
            twice = self._folded.of(source) is not None
            self._folded.put(result, None, "", None)
            if twice:
                return
        elif self._folded.of(source) is not None and shape(result)[:2] == shape(source)[:2]:
            self._folded.put(result, None, "", None)
        if name in _FOLDS:
            before, behind = shape(source), shape(result)
            rest = behind[1:]
            lead = before[: len(before) - len(rest)]
            if known is None and behind and lead + rest == before and len(lead) == 2 and min(lead) > 1:
                self._marks.put(result, tuple(lead), call.name, line_of(call.lines))
        elif name in _LOSSES and len(call.operands) > 1:
            other = self._marks.of(call.operands[1])
            turned = known is not None and other is not None and known.what == other.what[::-1] != other.what
            if known is not None and other is not None and turned and self._varies(call.operands[1]):
                self._tell(call, known, other)
        elif known is not None and (
            (name in _KEEPS and shape(result) == shape(source)) or (name == "unsqueeze" and shape(result)[-1:] == [1])
        ):  # Paddle gives the targets of classes an axis
            self._marks.put(result, known.what, known.name, known.line)

    def _varies(self, target: Any) -> bool:
        """Of targets that are all the same the order does not matter."""
        found = values.stats(self._facts.backend, target)
        return found is not None and found.min != found.max

    def _tell(self, call: OperatorCall, one: Marked[tuple[int, ...]], other: Marked[tuple[int, ...]]) -> None:
        facts, line = self._facts, line_of(call.lines)
        rows = one.what[0] * one.what[1]
        facts.tell(
            Finding(
                0, "wrong-axis", "error", 0.92,
                f"{call.name} at {place(line)} compares {rows} rows that were flattened from {list(one.what)} with "
                f"{rows} that were flattened from {list(other.what)}: each meets that of another place; transpose one "
                "of them first",
                iteration=facts.iteration + 1, forward=line, cause=facts.cause(other.line),
                evidence=[
                    f"the first is flattened at {place(one.line)}, the second at {place(other.line)}",
                    f"row 1 is place (0, 1) of {list(one.what)}, and place (0, 1) of {list(other.what)}, which is "
                    "(1, 0) of the first",
                    "a tensor whose steps come first (batch_first=False) and one whose rows do are flattened otherwise",
                ],
                next=[f"b {place(line)}", "info node"],
            )
        )  # fmt: skip


def _real(sizes: Sequence[int]) -> list[int]:
    return [size for size in sizes if size != 1]


def classes_of(call: OperatorCall, name: str) -> int | None:
    """The axis that a loss takes for the classes; None of what is no such loss."""
    rank = len(shape(call.operands[0]))
    if name in ("cross_entropy", "nll_loss"):
        given: object = 1 if rank > 1 else 0
    elif name == "cross_entropy_with_softmax":  # Paddle's; the last argument
        given = call.keywords.get("axis", call.arguments[-1] if call.arguments else None)
    else:
        return None
    return given % rank if isinstance(given, int) and not isinstance(given, bool) and rank else None

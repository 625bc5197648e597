"""A reshape that puts axes from behind the channels in front of them (``[b, c, t, h, w]`` to ``[b * t, c, h * w]``) and
moves no element: what it calls a frame has parts of several frames of few channels. Asked by ``axes``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detectors.axes.channels import channels_of
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marked, Marks
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.protocol.messages import Finding

_FOLDS = frozenset({"reshape", "view"})
_TURNS = frozenset({"transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "t", "T", "mT"})


@dataclass(frozen=True, slots=True)
class _Frames:
    """``axis``: of ``before``, where a layer gave its channels; ``moved``: the axes behind it that came in front.
    ``channels``: the axis of ``behind`` that is as long."""

    before: list[int]
    behind: list[int]
    axis: int
    moved: tuple[int, ...]
    channels: int
    made: str

    @property
    def frames(self) -> int:
        return math.prod(self.before[at] for at in self.moved)


class Frames:
    """Told where the rows are taken apart by frames later on, or a layer works along the channels. What works within
    one position's row alone, and is taken apart as it was put together, does not mind."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._frames: Marks[_Frames] = Marks()

    def operator(self, call: OperatorCall, name: str, given: Marked[int] | None) -> None:
        """``given``: the axis of its first operand that has a layer's channels."""
        source, result = call.operands[0], call.results[0]
        known = self._frames.of(source)
        if known is not None:
            self._follow(call, name, known)
        elif given is not None and name in _FOLDS:
            before, behind = shape(source), shape(result)
            found = moved_in_front(before, given.what, behind)
            # As many frames as channels: the rows may be those of one map, and the axis behind them its frames.
            if found is not None and math.prod(before[at] for at in found[0]) != before[given.what]:
                made = f"{given.name} at {place(given.line)}"
                what = _Frames(before, behind, given.what, found[0], found[1], made)
                self._frames.put(result, what, call.name, line_of(call.lines))

    def _follow(self, call: OperatorCall, name: str, known: Marked[_Frames]) -> None:
        what, sizes, found = known.what, shape(call.operands[0]), shape(call.results[0])
        apart = name in ("reshape", "view", "unflatten") and found[:1] != sizes[:1] and len(found) > 1
        if apart:
            if found[0] == what.before[0] and found[1] == what.frames:
                self._tell(call, known, f"takes the rows apart as {found[0]} times {found[1]} frames")
            return
        axis = channels_of(call, name) if len(sizes) > 2 else 1 if name == "linear" and len(sizes) == 2 else None
        if axis is not None and (len(sizes) == 2 or axis == what.channels):
            self._tell(call, known, f"works along axis {axis}, the channels")
        elif found[:1] == sizes[:1] and name not in _TURNS:
            self._frames.put(call.results[0], what, known.name, known.line)

    def _tell(self, call: OperatorCall, known: Marked[_Frames], how: str) -> None:
        facts, what, line = self._facts, known.what, line_of(call.lines)
        axes = " and ".join(map(str, what.moved))
        axes = f"ax{'es' if len(what.moved) > 1 else 'is'} {axes}"
        count, inner = what.before[what.axis], math.prod(what.before[what.axis + 1 :])
        message = (
            f"{known.name} at {place(known.line)} makes {what.behind} of {what.before} and moves no element, so that "
            f"each row has {what.frames} frames of some channels in it, not one frame of all {count}: have {axes} in "
            "front of the channels first (permute, transpose)"
        )
        evidence = [
            f"the {count} channels lie along axis {what.axis} of {what.before}, as {what.made} gave them, each of them "
            f"{inner} elements in one piece",
            f"axis {what.channels} of {what.behind} steps over {inner // what.frames} elements, not over these {inner}",
            f"{call.name} at {place(line)} {how}",
        ]
        facts.tell(
            Finding(0, "wrong-axis", "warning", 0.87, message, None, None, facts.iteration + 1, line,
                    facts.cause(known.line), evidence, [f"b {place(known.line)}", "info node"])
        )  # fmt: skip


def moved_in_front(before: Sequence[int], axis: int, behind: Sequence[int]) -> tuple[tuple[int, ...], int] | None:
    """(the axes behind the channels that the sizes of ``behind`` have in front of them, the axis that is as long as
    these are many); None where it is no such reshape."""
    count = before[axis]
    if not axis or count < 2 or len(behind) < 2 or list(before).count(count) > 1:
        return None  # of two axes of one size it is not known which is meant
    if sorted(each for each in before if each > 1) == sorted(each for each in behind if each > 1):
        return None  # no axes are merged: ``channels`` and ``exchanged`` tell of these
    for channels in range(1, len(behind)):
        if behind[channels] != count:
            continue
        inner = math.prod(behind[channels + 1 :])
        for end in range(axis + 2, len(before) + 1):
            moved = tuple(at for at in range(axis + 1, end) if before[at] > 1)
            front = math.prod(before[:axis]) * math.prod(before[axis + 1 : end])
            if moved and math.prod(before[end:]) == inner and math.prod(behind[:channels]) == front:
                return moved, channels
    return None

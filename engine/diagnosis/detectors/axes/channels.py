"""A reshape that puts channels at the axis where a layer wants them and moves no element: each of them is put together
of several positions, where a transpose was meant. Asked by ``axes``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detectors.axes.noise import Drawn, Origins
from adbg.engine.diagnosis.detectors.axes.turned import axis_behind
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marked, Marks
from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.protocol.messages import Finding

_FOLDS = frozenset({"reshape", "view", "reshape_as", "view_as"})
_CONVOLUTIONS = frozenset({
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "depthwise_conv2d",
    "conv2d_transpose", "conv3d_transpose", "batch_norm", "group_norm", "instance_norm",
})  # fmt: skip
_POOLS = frozenset({
    f"{kind}_pool{rank}d" for kind in ("max", "avg", "adaptive_avg", "adaptive_max", "lp") for rank in (1, 2, 3)
} | {"pool2d", "pool3d", "max_pool2d_with_index", "max_pool3d_with_index"})  # fmt: skip
_RECURRENT = frozenset({"gru", "lstm", "rnn", "rnn_tanh", "rnn_relu"})
_LAST = frozenset({"linear", "layer_norm", "rms_norm", "multi_head_attention_forward"})
_LAST_FORMATS = frozenset({"NHWC", "NLC", "NDHWC"})
_KEPT = 65_536  # elements of the first sample
_LOOKED_AT = 512  # of these


@dataclass(frozen=True, slots=True)
class _Viewed:
    """``axes``: where the axes of what the reshape made are by now. ``channels``: the axis of what it was given that a
    layer gave its channels, by ``made``; None of data, which may be ``drawn``."""

    before: list[int]
    behind: list[int]
    axes: tuple[int, ...]
    channels: int | None
    made: str
    drawn: Drawn | None
    numbers: tuple[float, ...]  # the first of them, where they can be read

    @property
    def data(self) -> bool:
        return self.channels is None


class Channels:
    """Told where the layer after the reshape takes as many channels as lie along another axis in front of it: where a
    layer gave them (a linear layer along the last axis, a convolution along the second one), or, of data, in front of a
    convolution, a normalisation of channels or a recurrent layer. Axes of one element do not count, nor does what was
    laid out anew before, or random numbers that nothing else is made of; nor where the last axis may have whole rows of
    the last axis before, joined or parted."""

    def __init__(self, facts: Facts, origins: Origins) -> None:
        self._facts = facts
        self._origins = origins
        self._given: Marks[int] = Marks()  # the axis that a layer gave its channels
        self._viewed: Marks[_Viewed] = Marks()
        self._found: list[tuple[Marked[_Viewed], Finding]] = []

    def given(self, value: Any) -> Marked[int] | None:
        """The axis of it that has the channels that a layer gave, as far as that is known."""
        return self._given.of(value)

    def operator(self, call: OperatorCall, name: str) -> None:
        source = call.operands[0]
        viewed = self._viewed.of(source)
        axis = channels_of(call, name)
        if axis is not None:
            if viewed is not None:
                self._judge(call, name, viewed, axis)
            self._give(call, axis)
        elif name == "embedding":
            self._give(call, len(shape(call.results[0])) - 1)
        elif name in _FOLDS:
            self._fold(call, viewed)
        else:
            self._pass_on(call, viewed)

    def iteration_end(self) -> None:
        """Random numbers mean something where the targets are made of them, as is known by now."""
        for viewed, found in self._found:
            if viewed.what.drawn is None or viewed.what.drawn.meant:
                self._facts.tell(found)
        self._found = []

    def _give(self, call: OperatorCall, axis: int) -> None:
        result = call.results[0]
        rank = len(shape(result))
        if rank >= 3 and axis < rank and result.requires_grad:
            self._given.put(result, axis, call.name, line_of(call.lines))

    def _fold(self, call: OperatorCall, viewed: Marked[_Viewed] | None) -> None:
        source, result = call.operands[0], call.results[0]
        before, behind = shape(source), shape(result)
        if before == behind:
            self._pass_on(call, viewed)
            return
        parameter = source.is_leaf and source.requires_grad
        if viewed is not None or parameter or len(before) < 3 or before[0] != behind[0]:
            return
        if sorted(before) != sorted(behind) or _real(before) == _real(behind):
            return
        given = self._given.of(source)
        if given is None and (source.requires_grad or not self._origins.is_pairing(source)):
            return
        read = values.numbers(self._facts.backend, source)
        what = _Viewed(
            before, behind, tuple(range(len(behind))), given.what if given is not None else None,
            f"{given.name} at {place(given.line)}" if given is not None else "",
            self._origins.of(source) if given is None else None,
            tuple(read.flat[: min(math.prod(before[1:]), _KEPT)]) if read is not None else (),
        )  # fmt: skip
        self._viewed.put(result, what, call.name, line_of(call.lines))

    def _pass_on(self, call: OperatorCall, viewed: Marked[_Viewed] | None) -> None:
        """To what keeps the axes, or turns them."""
        source = call.operands[0]
        for result in call.results[:1]:
            if viewed is not None:
                axes = [at for each in viewed.what.axes if (at := _behind(call, each)) is not None]
                if len(axes) == len(viewed.what.axes):
                    self._viewed.put(result, replace(viewed.what, axes=tuple(axes)), viewed.name, viewed.line)
            given = self._given.of(source)
            here = _behind(call, given.what) if given is not None else None
            if given is not None and here is not None:
                self._given.put(result, here, given.name, given.line)

    def _judge(self, call: OperatorCall, name: str, viewed: Marked[_Viewed], axis: int) -> None:
        what, sizes = viewed.what, shape(call.operands[0])
        if axis not in what.axes or (what.data and name not in _CONVOLUTIONS | _RECURRENT):
            return
        wanted = what.axes.index(axis)
        count = what.behind[wanted]
        lie = [at for at, size in enumerate(what.before) if at and size == count]
        source = what.channels if what.channels is not None else lie[0] if len(lie) == 1 else None
        if source is None or source == wanted or what.before[source] != count or count == 1 or not source * wanted:
            return
        last, inner = what.behind[-1], what.before[-1]
        if wanted == len(what.behind) - 1 and not (last % inner and inner % last):
            return  # whole rows that are joined, or parted: two steps in one
        order = _order(what.before, what.behind, source, wanted)
        if order is None:
            return
        wrong, looked = _elsewhere(what, order)
        if looked and not wrong:
            return
        self._found.append((viewed, self._finding(call, viewed, source, wanted, sizes, axis, (wrong, looked))))

    def _finding(
        self, call: OperatorCall, viewed: Marked[_Viewed], source: int, wanted: int, sizes: list[int], axis: int,
        counted: tuple[int, int],
    ) -> Finding:  # fmt: skip
        facts, what, line = self._facts, viewed.what, line_of(call.lines)
        count, wrong, looked = what.behind[wanted], *counted
        message = (
            f"{viewed.name} at {place(viewed.line)} makes {what.behind} of {what.before} and moves no element, so that "
            f"each of the {count} channels that {call.name} at {place(line)} takes is put together of several: use "
            "transpose"
        )
        lie = f"the {count} channels lie along axis {source} of {what.before}"
        if what.made:
            lie += f", as {what.made} gave them"
        evidence = [f"{lie}, and {call.name} takes axis {axis} of {sizes}"]
        if looked:
            evidence.append(
                f"{wrong} of {looked} elements of one sample lie elsewhere than where a transpose puts them"
            )
        evidence.append(f"a transpose of {what.before} makes {what.behind} too, and keeps each channel together")
        return Finding(
            0, "wrong-axis", "warning", 0.85, message, None, None, facts.iteration + 1, line,
            facts.cause(viewed.line), evidence, [f"b {place(viewed.line)}", "info node"],
        )  # fmt: skip


def channels_of(call: OperatorCall, name: str) -> int | None:
    """The axis of its first operand that a layer takes for channels, or features."""
    rank = len(shape(call.operands[0]))
    if rank < 3:
        return None
    if name in _CONVOLUTIONS or name in _POOLS:
        return rank - 1 if _LAST_FORMATS.intersection(each for each in call.arguments if type(each) is str) else 1
    return rank - 1 if name in _LAST or name in _RECURRENT else None


def _behind(call: OperatorCall, axis: int) -> int | None:
    """Where an axis is after what turns it, or works element by element."""
    turned = axis_behind(call, axis)
    return axis if turned is None and shape(call.results[0]) == shape(call.operands[0]) else turned


def _real(sizes: Sequence[int]) -> list[int]:
    return [size for size in sizes if size != 1]


def _order(before: list[int], behind: list[int], source: int, wanted: int) -> list[int] | None:
    """The order of axes with which a transpose makes ``behind``: one that is moved to another place, or two that are
    exchanged."""
    moved = [at for at in range(len(before)) if at != source]
    moved.insert(wanted, source)
    swapped = list(range(len(before)))
    swapped[source], swapped[wanted] = wanted, source
    return next((each for each in (moved, swapped) if [before[at] for at in each] == behind), None)


def _elsewhere(what: _Viewed, order: list[int]) -> tuple[int, int]:
    """Of the elements of the first sample that a transpose of that order puts elsewhere, and of how many."""
    if not what.numbers:
        return 0, 0
    strides = [math.prod(what.before[at + 1 :]) for at in range(len(what.before))]
    every = itertools.product(*(range(size) for size in what.behind[1:]))
    wrong = looked = 0
    for at, place_ in enumerate(itertools.islice(every, _LOOKED_AT)):
        lies = sum(one * strides[axis] for one, axis in zip(place_, order[1:]))
        if at < len(what.numbers) and lies < len(what.numbers):
            looked += 1
            wrong += what.numbers[at] != what.numbers[lies]
    return wrong, looked

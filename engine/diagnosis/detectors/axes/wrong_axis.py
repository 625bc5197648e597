"""Operators that work along another axis than what they meet next."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.axes.along import AlongBatch
from adbg.engine.diagnosis.detectors.axes.attention import Attention
from adbg.engine.diagnosis.detectors.axes.channels import Channels
from adbg.engine.diagnosis.detectors.axes.exchanged import Exchanged
from adbg.engine.diagnosis.detectors.axes.frames import Frames
from adbg.engine.diagnosis.detectors.axes.mixed import Flattened, Reshaped
from adbg.engine.diagnosis.detectors.axes.over_batch import OverBatch
from adbg.engine.diagnosis.detectors.axes.rows import Rows
from adbg.engine.diagnosis.detectors.axes.turned import axis_behind
from adbg.engine.diagnosis.detectors.graphs.calls import axis_of, line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marked, Marks
from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.protocol.messages import Finding

_REDUCES = frozenset({"mean", "sum", "max", "min", "amax", "amin", "std", "var", "norm", "logsumexp", "prod", "median",
                      "p_norm", "frobenius_norm", "vector_norm"})  # fmt: skip
_ALIGNED = frozenset({"sub", "subtract", "div", "divide", "truediv", "mul", "multiply"})
_NORMALISES = frozenset({"softmax", "log_softmax"})
_KEEPS = frozenset({
    "neg", "clone", "contiguous", "float", "double", "to", "cast", "exp", "log", "clamp", "clip", "assign", "expand",
    "broadcast_to",
})  # fmt: skip
_PICKS = {"gather": 1, "take_along_axis": 2, "take_along_dim": 2}  # -> place of the axis among the arguments
_SUMS = 64  # that are looked at
_NEAR = 0.01  # to 1


@dataclass(frozen=True, slots=True)
class _Along:
    """The axis that a softmax worked along, ``here`` in the tensor at hand, and the shape that it worked on."""

    here: int
    axis: int
    shape: list[int]


@detector("wrong-axis")
class WrongAxis(Detector):
    """A softmax along one axis of which one element each is then picked along another (the class of every token, of
    what was made to add up to 1 over the tokens), or whose product with the values of an attention sums over another,
    as one over the batch does, which ``F.softmax(scores)`` of (B, T, 1) without an axis is in torch. A
    reshape to the sizes that a transpose would have made, before a loss that takes one of these axes for the classes,
    or before what works along one of the two axes, where a transpose or a stack had made them, or batches of other
    sizes show which one is the batch; or, of data as well, before a recurrent layer, an attention or a loop that takes
    the first two axes for steps and rows of sequences, where no other layout of these explains it, also where it puts
    columns of a feature map in front of the rows (``[b, c, h, w]`` to ``[w, b, c * h]``); or before a layer that takes
    as many channels along one axis as lie along another one in front of it (``[b, t, c]`` to ``[b, c, t]`` before a
    convolution), where a layer gave them, or that layer is a convolution or a recurrent one; or to rows as long as
    there are channels (``[b, c, h, w]`` to ``[-1, c]``) that a loss, a softmax or a linear layer takes for those of one
    position; or that puts frames in front of channels (``[b, c, t, h, w]`` to ``[b * t, c, h, w]``). Predictions of
    [T, B] and targets of [B, T] that are both flattened, and compared. A recurrent layer or an attention that goes
    along the batch: one of its rows is picked, and its steps meet as many targets. And what was reduced over one axis
    without keepdim meets its source, where a broadcast lines it up with another axis; seen where sizes are equal, for
    else it raises.

    Evidence: both lines, the shapes and the axes; of sequences the places that a transpose fills with other numbers,
    and the loss that compares their rows with as many targets.
    Mistaken for: positions that are picked with all of their classes, which is told apart by the index: it is the same
    for all classes. Experts that choose their tokens, pairs of a contrastive loss in another order: what a gather picks
    is only a note, what a loss picks (nll_loss, ctc_loss) a warning. Soft assignments to clusters, whose scores a layer
    or learnt centers give, or which are divided by their sums (not told). What was reshaped twice may lie as it is
    meant to, and rows that are kept whole do, or that are merged again before their order counts, or whose targets
    change places with them (all not told). Rows of one channel each, or of one position (not told). Of sequences:
    random numbers that nothing else is made of; parts of a long recording that are cut at other places, where the rows
    stay in front (told only where they meet targets, and neither size divides the other); rows that are joined or
    parted, where one does (told only where the steps are in front, and the rows meet targets that were not laid out
    anew). Attention between samples, and a mean over what is the same at each step (not told, and a note). A
    normalisation of a symmetric matrix: of reductions, and of an attention over as many queries as keys, only a note is
    told.
    Cost: in sampled iterations a look at each operator's name; once the index, or what is reshaped, is read.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._reduced: Marks[str] = Marks()
        self._normalised: Marks[_Along] = Marks()
        self._reshaped = Reshaped(facts)
        self._exchanged = Exchanged(facts)
        self._channels = Channels(facts, self._exchanged.origins)
        self._rows = Rows(facts)
        self._frames = Frames(facts)
        self._flattened = Flattened(facts)
        self._along = AlongBatch(facts, self._exchanged.origins)
        self._attention = Attention(facts, self._sums)
        self._over_batch = OverBatch(facts, self._sums)

    def operator(self, call: OperatorCall) -> None:
        self._exchanged.operator(call)
        if call.error is not None or not call.results or not call.operands:
            return
        name, result = plain(call.name), call.results[0]
        if name in _REDUCES:
            source, axis = shape(call.operands[0]), axis_of(call)
            if axis is not None and axis % max(len(source), 1) != 0 and 1 <= len(shape(result)) < len(source):
                self._reduced.put(result, repr(source), call.name, line_of(call.lines))
        elif name in _ALIGNED and len(call.operands) == 2:
            for one, other in (call.operands, call.operands[::-1]):
                known = self._reduced.of(one)
                if known is not None and known.what == repr(shape(other)) == repr(shape(result)):
                    self._tell_reduced(known, one, other, call)
        self._softmax(call, name, result)
        self._reshaped.operator(call)
        given = self._channels.given(call.operands[0])
        self._rows.operator(call, name, given)
        self._frames.operator(call, name, given)
        self._flattened.operator(call, name)
        self._channels.operator(call, name)
        self._along.operator(call, name)
        self._attention.operator(call, name)
        self._over_batch.operator(call)

    def iteration_end(self) -> None:
        self._exchanged.iteration_end()
        self._channels.iteration_end()
        self._attention.iteration_end()

    def _softmax(self, call: OperatorCall, name: str, result: Any) -> None:
        sizes = shape(call.operands[0])
        rank = len(sizes)
        if name in _NORMALISES:
            axis = axis_of(call)
            if axis is not None and rank > 1:
                what = _Along(axis % rank, axis % rank, sizes)
                self._normalised.put(result, what, call.name, line_of(call.lines))
            return
        known = self._normalised.of(call.operands[0])
        if known is None:
            return
        here = known.what.here
        if name in _KEEPS and len(shape(result)) == rank:
            self._normalised.put(result, known.what, known.name, known.line)
        elif name in _PICKS and len(call.operands) == 2:
            axis = axis_of(call, _PICKS[name])
            if axis is not None and axis % rank != here and self._varies(call.operands[1], here):
                self._tell_picked(known, call, axis % rank, 0.45)
        elif name == "nll_loss" and here != 1 and self._varies(call.operands[1], max(here - 1, 0)):
            self._tell_picked(known, call, 1, 0.92)
        elif name == "ctc_loss" and here != rank - 1 and sizes[here] > 1:
            self._tell_picked(known, call, rank - 1, 0.92)
        elif (turned := axis_behind(call, here)) is not None:
            self._normalised.put(result, replace(known.what, here=turned), known.name, known.line)

    def _sums(self, value: Any, axis: int) -> tuple[float, float] | None:
        """The least and the largest sum along an axis of the probabilities that it holds, which may be logarithms, or
        negated; None where they add up to 1, or cannot be read. Some of them are looked at."""
        read = values.numbers(self.facts.backend, value)
        if read is None:
            return None
        size, inner = read.shape[axis], math.prod(read.shape[axis + 1 :])
        fibres = len(read.flat) // size
        chosen = range(0, fibres, max(1, fibres // _SUMS))
        picked = [read.flat[at // inner * size * inner + at % inner :: inner][:size] for at in chosen]
        every = [each for one in picked for each in one]
        if any(each != each for each in every):
            return None
        sign = 1 if max(every) <= 0 else -1
        plain_sums = [sum(one) for one in picked]
        powers = [sum(math.exp(min(sign * each, 700.0)) for each in one) for one in picked]
        found = [(min(sums), max(sums)) for sums in (plain_sums, powers)]
        if any(abs(low - 1) < _NEAR and abs(high - 1) < _NEAR for low, high in found):
            return None
        return found[0] if min(every) >= 0 and max(every) <= 1 else found[1]

    def _varies(self, index: Any, axis: int) -> bool:
        """Whether it picks other places for other elements of that axis: of an expanded index all are the same. Not
        where each picks its own place: the pairs of a contrastive loss are meant so along both axes."""
        if len(shape(index)) <= axis or shape(index)[axis] < 2:
            return False
        found = values.numbers(self.facts.backend, index)
        if found is None:
            return False
        inner = 1
        for size in found.shape[axis + 1 :]:
            inner *= size
        block = inner * found.shape[axis]
        if all(each == at % block // inner for at, each in enumerate(found.flat)):
            return False
        return any(found.flat[at] != found.flat[at - at % block + at % inner] for at in range(len(found.flat)))

    def _tell_picked(self, known: Marked[_Along], call: OperatorCall, axis: int, sure: float) -> None:
        facts, line, along = self.facts, line_of(call.lines), known.what
        sums = self._sums(call.operands[0], axis)
        if sums is None:
            return
        sizes = shape(call.operands[0])
        same = (along.axis, along.shape) == (along.here, sizes)
        turned = "" if same else f", axis {along.here} of what {call.name} gets"
        message = (
            f"{known.name} at {place(known.line)} works along axis {along.axis}{turned}, and {call.name} at "
            f"{place(line)} picks along axis {axis}: what it picks from does not add up to 1"
        )
        evidence = [
            f"{known.name} makes the {along.shape[along.axis]} elements along axis {along.axis} of {along.shape} add "
            "up to 1",
            f"{call.name} picks one of the {sizes[axis]} elements along axis {axis}, by an index that differs along "
            f"axis {along.here}",
            f"along axis {axis} of {sizes} they add up to {values.plain(sums[0])} to {values.plain(sums[1])}",
        ]  # fmt: skip
        if call.name in ("nll_loss", "ctc_loss"):
            evidence[1] = f"{call.name} takes axis {axis} of {sizes} for the classes"
        else:
            evidence.append("whether each is meant to be picked among those of another sum decides it")
        severity = "warning" if sure > 0.5 else "note"
        facts.tell(
            Finding(0, "wrong-axis", severity, sure, message, None, None, facts.iteration + 1, line,
                    facts.cause(known.line), evidence, [f"b {place(known.line)}", "info node"])
        )  # fmt: skip

    def _tell_reduced(self, known: Marked[str], reduced: Any, other: Any, call: OperatorCall) -> None:
        """``other``: what meets it, of the shape of what was reduced."""
        facts, line = self.facts, line_of(call.lines)
        message = (
            f"{call.name} at {place(line)} lines up what {known.name} reduced ({place(known.line)}) with another axis "
            "of the same size: keepdim=True is missing"
        )
        evidence = [
            f"{known.name} at {place(known.line)} made {shape(reduced)} of {known.what}, without the axis it reduced",
            f"{call.name} lines it up with the last axes of {known.what}, one of which is another one of the same size",
        ]
        apart = self._unsymmetric(other)
        sums = self._sums_of(call.results[0]) if plain(call.name) in ("div", "divide", "true_divide") else None
        if sums is not None:
            evidence.append(
                f"along its last axis the result adds up to {values.plain(sums[0])} to {values.plain(sums[1])}"
            )
        if apart:
            evidence.append(f"what meets it is not symmetric ({apart}), so that this is no normalisation of both axes")
        else:
            evidence.append("whether the other axis is meant decides it, as in the normalisation of a symmetric matrix")
        severity, sure = ("warning", 0.75) if apart else ("note", 0.45)
        facts.tell(
            Finding(0, "wrong-axis", severity, sure, message, None, None, facts.iteration + 1, line,
                    facts.cause(known.line), evidence, [f"b {place(line)}", "info node"])
        )  # fmt: skip

    def _unsymmetric(self, value: Any) -> str:
        """Two elements of its first matrix that a symmetric one has alike, and that differ; "" where none do, or it
        cannot be read."""
        read = values.numbers(self.facts.backend, value)
        if read is None or len(read.shape) < 2 or read.shape[-1] != read.shape[-2]:
            return ""
        size = read.shape[-1]
        least = _NEAR * max(map(abs, read.flat[: size * size]))
        for row in range(size):
            for column in range(row):
                one, other = read.flat[row * size + column], read.flat[column * size + row]
                if abs(one - other) > least:
                    return f"[{row}, {column}] {values.plain(one)}, [{column}, {row}] {values.plain(other)}"
        return ""

    def _sums_of(self, value: Any) -> tuple[float, float] | None:
        """The least and the largest sum along the last axis."""
        read = values.numbers(self.facts.backend, value)
        if read is None:
            return None
        size = read.shape[-1]
        sums = [math.fsum(read.flat[at : at + size]) for at in range(0, len(read.flat), size)]
        return min(sums), max(sums)

"""Operators that work along another axis than what they meet next."""

from __future__ import annotations

from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
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


@detector("wrong-axis")
class WrongAxis(Detector):
    """A softmax along one axis of which one element each is then picked along another (the class of every token, of
    what was made to add up to 1 over the tokens). And what was reduced over one axis without keepdim meets its source,
    where a broadcast lines it up with another axis; seen where sizes are equal, for else it raises.

    Evidence: both lines, the shapes and the axes.
    Mistaken for: positions that are picked with all of their classes, which is told apart by the index: it is the same
    for all classes. A normalisation of a symmetric matrix: of reductions only a note is told.
    Cost: in sampled iterations a look at each operator's name; once the index is read.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._reduced = Marks()
        self._normalised = Marks()

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or not call.results or not call.operands:
            return
        name, result = plain(call.name), call.results[0]
        if name in _REDUCES:
            source, axis = shape(call.operands[0]), _axis_of(call)
            if axis is not None and axis % max(len(source), 1) != 0 and 1 <= len(shape(result)) < len(source):
                self._reduced.put(result, repr(source), call.name, line_of(call.lines))
        elif name in _ALIGNED and len(call.operands) == 2:
            for one, other in (call.operands, call.operands[::-1]):
                known = self._reduced.of(one)
                if known is not None and known.what == repr(shape(other)) == repr(shape(result)):
                    self._tell_reduced(known, one, call)
        self._softmax(call, name, result)

    def _softmax(self, call: OperatorCall, name: str, result: Any) -> None:
        rank = len(shape(call.operands[0]))
        if name in _NORMALISES:
            axis = _axis_of(call)
            if axis is not None and rank > 1:
                self._normalised.put(result, str(axis % rank), call.name, line_of(call.lines))
            return
        known = self._normalised.of(call.operands[0])
        if known is None:
            return
        if name in _KEEPS and len(shape(result)) == rank:
            self._normalised.put(result, known.what, known.name, known.line)
        elif name in _PICKS and len(call.operands) == 2:
            axis = _axis_of(call, _PICKS[name])
            if axis is not None and axis % rank != int(known.what) and self._varies(call.operands[1], int(known.what)):
                self._tell_picked(known, call, axis % rank, 0.85)
        elif name == "nll_loss" and int(known.what) != 1 and self._varies(call.operands[1], 0):
            self._tell_picked(known, call, 1, 0.92)
        elif name == "ctc_loss" and int(known.what) != rank - 1 and shape(call.operands[0])[int(known.what)] > 1:
            self._tell_picked(known, call, rank - 1, 0.92)

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

    def _tell_picked(self, known: Marked, call: OperatorCall, axis: int, sure: float) -> None:
        facts, line = self.facts, line_of(call.lines)
        sizes = shape(call.operands[0])
        message = (
            f"{known.name} at {place(known.line)} works along axis {known.what}, and {call.name} at {place(line)} "
            f"picks along axis {axis}: what it picks from does not add up to 1"
        )
        evidence = [
            f"{known.name} makes the {sizes[int(known.what)]} elements along axis {known.what} of {sizes} add up to 1",
            f"{call.name} picks one of the {sizes[axis]} elements along axis {axis}, by an index that differs along "
            f"axis {known.what}",
        ]  # fmt: skip
        if call.name in ("nll_loss", "ctc_loss"):
            evidence[1] = f"{call.name} takes axis {axis} of {sizes} for the classes"
        facts.tell(
            Finding(0, "wrong-axis", "warning", sure, message, None, None, facts.iteration + 1, line,
                    facts.cause(known.line), evidence, [f"b {place(known.line)}", "info node"])
        )  # fmt: skip

    def _tell_reduced(self, known: Marked, reduced: Any, call: OperatorCall) -> None:
        facts, line = self.facts, line_of(call.lines)
        message = (
            f"{call.name} at {place(line)} lines up what {known.name} reduced over another axis: keepdim is missing"
        )
        evidence = [
            f"{known.name} at {place(known.line)} made {shape(reduced)} of {known.what}, without the axis it reduced",
            f"{call.name} lines it up with the last axis of {known.what}, which is another one of the same size",
            "whether the other axis is meant decides it, as in the normalisation of a symmetric matrix",
        ]
        facts.tell(
            Finding(0, "wrong-axis", "note", 0.45, message, None, None, facts.iteration + 1, line,
                    facts.cause(known.line), evidence, [f"b {place(line)}", "info node"])
        )  # fmt: skip


def _axis_of(call: OperatorCall, at: int | None = None) -> int | None:
    """The one axis that it is told, at place ``at`` of the arguments where it is not named."""
    given = call.keywords.get("dim", call.keywords.get("axis"))
    where = at if at is not None else 2 if "norm" in call.name else 1  # a norm has its order before it
    if given is None and len(call.arguments) > where:
        given = call.arguments[where]
    if isinstance(given, (list, tuple)) and len(given) == 1:
        given = given[0]
    return given if isinstance(given, int) and not isinstance(given, bool) else None

"""Heads of an attention that are taken apart, or put together, without being turned."""

from __future__ import annotations

from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marked, Marks
from adbg.engine.protocol.messages import Finding

_PRODUCTS = frozenset({"matmul", "bmm", "einsum"})
_ATTENDS = frozenset({"scaled_dot_product_attention"})
_KEEPS = frozenset({"dropout", "contiguous", "clone", "to", "cast", "float", "masked_fill", "mul", "multiply"})
_FOLDS = frozenset({"reshape", "view"})
#: What projects, and what goes on with that: heads are parts of a width that something has learnt to make.
_PROJECTS = frozenset({
    "linear", "addmm", "matmul", "add", "dropout", "layer_norm", "rms_norm", "mul", "multiply", "chunk", "split",
    "split_with_num", "unbind", "getitem", "contiguous", "cast", "to", "float",
})  # fmt: skip
_TURNS = frozenset({"transpose", "permute", "swapaxes", "swapdims", "movedim"})


@detector("wrong-axis")
class HeadsAsTheyLie(Detector):
    """The result of an attention of several heads, [batch, heads, places, channels], is reshaped to [batch, places,
    heads x channels] as it lies, or what it attends to, [batch, places, heads x channels], to [batch, heads, places,
    channels]: that moves no element, so that a row has several places of one head, where one place of all heads was
    meant, or a head a part of the places, where a part of the channels was.

    Evidence: the shapes before and after, and the product of weights and values that made it, or that it goes into.
    Mistaken for: what is turned before, parameters, which may lie in any way, rows that several were laid side by side
    in before, heads that lie behind the places, as many heads as places where nothing says which axis has them, and
    what goes into no attention: not told.
    Cost: in sampled iterations a look at the names of operators, and at the shapes of products behind a softmax.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._weights: Marks[None] = Marks()
        self._heads: Marks[list[int]] = Marks()  # what an attention made
        self._split: Marks[None] = Marks()  # the last axis was taken apart: heads lie third
        self._front: Marks[None] = Marks()  # and were turned to the front
        self._made: Marks[None] = Marks()  # by a projection
        self._folded: set[tuple[int, int, int]] = set()  # places, width, and width before they were laid side by side
        self._laid: Marks[tuple[list[int], list[int]]] = Marks()  # taken apart as it lies: the shapes around that
        self._seen = False
        self._told: set[Any] = set()

    def applied(self) -> bool:
        return self._seen

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or not call.results or not call.operands:
            return
        name, source, result = plain(call.name), call.operands[0], call.results[0]
        if name in _PROJECTS and (name in ("linear", "addmm", "matmul") or self._made.of(source) is not None):
            for each in call.results:
                self._made.put(each, None, name, None)
        if name == "softmax":
            self._weights.put(result, None, name, None)
        elif name in _ATTENDS or (name in _PRODUCTS and self._weights.of(source) is not None):
            self._attend(call)
        elif name in _FOLDS:
            self._fold(call, source, result)
        elif name in _TURNS:
            before, behind = shape(source), shape(result)
            if self._split.of(source) is not None and behind == [before[0], before[2], before[1], before[3]]:
                self._front.put(result, None, name, None)
            laid = self._laid.of(source)
            if laid is not None and shape(result) in (_swapped(before, 1), _swapped(before, len(before) - 2)):
                self._laid.put(result, laid.what, laid.name, laid.line)
        elif name in _KEEPS:
            if (laid := self._laid.of(source)) is not None:
                self._laid.put(result, laid.what, laid.name, laid.line)
            if self._weights.of(source) is not None:
                self._weights.put(result, None, name, None)
            if (known := self._heads.of(source)) is not None and shape(result) == shape(source):
                self._heads.put(result, known.what, known.name, known.line)

    def _attend(self, call: OperatorCall) -> None:
        sizes = shape(call.results[0])
        given = call.operands[:3] if plain(call.name) in _ATTENDS else call.operands[-1:]
        for each in given:
            if (laid := self._laid.of(each)) is not None and len(shape(each)) == len(laid.what[1]):
                self._tell_split(call, laid)
        values = call.operands[2 if plain(call.name) in _ATTENDS and len(call.operands) > 2 else -1]
        if len(sizes) != 4 or shape(values)[:2] != sizes[:2] or min(sizes) < 1:
            return
        self._seen = True
        if sizes[1] != sizes[2] or self._front.of(values) is not None:
            self._heads.put(call.results[0], sizes, call.name, line_of(call.lines))

    def _fold(self, call: OperatorCall, source: Any, result: Any) -> None:
        before, behind, known = shape(source), shape(result), self._heads.of(source)
        if len(behind) == 4 and len(before) == 3 and behind[:2] == before[:2]:
            self._split.put(result, None, "", None)
        if len(before) == len(behind) == 3 and behind[1] < before[1]:
            self._folded.add((behind[1], behind[2], before[2]))
        apart = _is_split_as_it_lies(before, behind) and (before[1], before[2], behind[-1]) not in self._folded
        if apart and self._made.of(source) is not None:
            self._laid.put(result, (before, behind), call.name, line_of(call.lines))
        if known is None or len(behind) != 3:
            return
        batch, heads, places, width = known.what
        line = line_of(call.lines)
        if heads < 2 or places < 2 or behind != [batch, places, heads * width] or line in self._told:
            return
        self._told.add(line)
        facts = self.facts
        facts.tell(
            Finding(
                0, "wrong-axis", "error", 0.92,
                f"{call.name} at {place(line)} makes {behind} of {before} as it lies: a row has several of the "
                f"{places} places of one head, not one place of all {heads} heads; turn axes 1 and 2 before",
                None, None, facts.iteration + 1, line, facts.cause(line),
                [
                    f"{known.name} at {place(known.line)} gave {known.what}: batch, {heads} heads, {places} places, "
                    f"{width} channels of each head",
                    f"row 0 has channels 0 to {width - 1} of places 0 to {min(heads, places) - 1} of head 0",
                ],
                [f"b {place(line)}", "info node"],
            )
        )  # fmt: skip

    def _tell_split(self, call: OperatorCall, laid: Marked[tuple[list[int], list[int]]]) -> None:
        facts, line = self.facts, laid.line
        if line in self._told:
            return
        self._told.add(line)
        (before, behind), heads = laid.what, laid.what[0][2] // laid.what[1][-1]
        facts.tell(
            Finding(
                0, "wrong-axis", "error", 0.92,
                f"{laid.name} at {place(line)} makes {behind} of {before} as it lies: a head has a part of the "
                f"{before[1]} places, not all places with a part of the channels; make it [{before[0]}, {before[1]}, "
                f"{heads}, {behind[-1]}] and turn axes 1 and 2",
                None, None, facts.iteration + 1, line, facts.cause(line),
                [
                    f"what it makes is attended to at {place(line_of(call.lines))}",
                    f"head 0 is made of places 0 to {(before[1] * behind[-1] - 1) // before[2]} of a row alone",
                ],
                [f"b {place(line)}", "info node"],
            )
        )  # fmt: skip


def _is_split_as_it_lies(before: list[int], behind: list[int]) -> bool:
    """[batch, places, width] to [batch, heads, places, width / heads], or heads and batch in one axis."""
    if len(before) != 3 or min(before) < 1 or not behind or not behind[-1] or before[2] % behind[-1]:
        return False
    heads = before[2] // behind[-1]
    if heads < 2 or before[1] < 2 or heads == before[1]:
        return False
    return behind in ([before[0], heads, before[1], behind[-1]], [before[0] * heads, before[1], behind[-1]])


def _swapped(sizes: list[int], at: int) -> list[int]:
    """With axes ``at`` and ``at + 1`` turned."""
    return [*sizes[:at], *sizes[at : at + 2][::-1], *sizes[at + 2 :]]

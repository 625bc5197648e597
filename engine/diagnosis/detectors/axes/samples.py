"""A number of each sample that a broadcast lines up with the columns: ``level[t] * images``, (B,) and (B, C, H, B)."""

from __future__ import annotations

import ast
import functools
import re
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import Need, OperatorCall
from adbg.engine.diagnosis.detector import Detector, detector
from adbg.engine.diagnosis.detectors.axes.noise import DRAWS
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marked, Marks
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import assigned_before, nodes_of
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_PICKS = frozenset({"getitem", "index_select", "gather", "take", "index", "embedding"})
#: Element by element: each sample's number becomes another one of that sample.
_PASSES = frozenset({
    "sqrt", "rsqrt", "square", "exp", "log", "log1p", "sin", "cos", "neg", "abs", "sigmoid", "tanh", "clamp", "clip",
    "scale", "add", "sub", "rsub", "subtract", "mul", "multiply", "div", "divide", "truediv", "rtruediv", "pow",
    "reciprocal", "float", "double", "to", "cast", "clone", "contiguous", "minimum", "maximum", "elementwise_pow",
})  # fmt: skip
_MEET = frozenset({
    "add", "sub", "subtract", "rsub", "mul", "multiply", "div", "divide", "truediv", "rtruediv", "pow", "lerp", "where",
})  # fmt: skip
_BATCH = re.compile(r"\.shape\[0\]|\.size\(0\)|\.size\(dim=0\)|\blen\(|\bbatch|_batch\b|\bbs\b|\bbsz\b")
_FIRST = re.compile(r"^\(?\s*(\w+)\s*,.*=.*\.(?:shape|size\(\))\s*$")  # ``b, c, h, w = x.shape``


@dataclass(frozen=True, slots=True)
class _Numbers:
    """``said``: what they are; ``sized``: what says that there is one of each sample; "" where nothing does."""

    said: str
    sized: str
    picked: bool = False


@detector("wrong-axis")
class SamplesAlongColumns(Detector):
    """A number of each sample (a level of noise that is picked by the sample's step, a weight that is drawn for it, or
    that torch's loader puts together) meets a batch: a broadcast lines it up with the last axis, which happens to be as
    long as the batch, and each sample gets all numbers, one a column. With another size of batch it would be an error.
    Of a batch of two axes it is told where a loader put that together, or it was drawn, and the numbers were picked.

    Evidence: how the numbers were made, as many as the batch has samples by that line (``x.shape[0]``, ``len(x)``,
    ``batch_size``, the loop over a loader), both shapes, and the line where they meet.
    Mistaken for: a factor of each column (parameters, buffers, statistics, an index that is the same in every
    iteration: not told; so nothing is in the first), tables of all pairs (not told). A warning; a note
    where random numbers are drawn by a line that does not say for what.
    Cost: in sampled iterations a look at the shapes of operators that draw, pick or meet.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._numbers: Marks[_Numbers] = Marks()
        self._drawn: Marks[_Numbers] = Marks()
        self._rows: Marks[None] = Marks()  # batches of two axes that are no table of pairs
        self._met: dict[SourceLine, tuple[int, weakref.ref[Any]]] = {}  # lines: in which iteration first, with what

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or not call.results:
            return
        name, result = plain(call.name), call.results[0]
        sizes = shape(result)
        if len(sizes) == 2 and (name == "stack" or name in DRAWS):
            self._rows.put(result, None, "", None)
        if name in DRAWS and len(sizes) == 1 and sizes[0] > 1:
            what = _Numbers(f"{call.name} at {place(line_of(call.lines))} draws {sizes[0]} numbers", _sized(call))
            self._drawn.put(result, what, call.name, line_of(call.lines))
            if self._is_new(call, result) and "int" not in str(result.dtype):
                self._numbers.put(result, what, call.name, line_of(call.lines))
        elif name == "stack" and len(sizes) == 1 and sizes[0] == len(call.operands) > 1:
            self._collated(call, result, sizes[0])
        elif name in _PICKS and len(call.operands) == 2 and len(sizes) == 1:
            self._picks(call, sizes[0])
        elif len(call.operands) == 1 or len(sizes) == 1:
            known = next((found for each in call.operands if (found := self._numbers.of(each)) is not None), None)
            if known is not None and name in _PASSES and sizes == shape(known.ref()):
                self._numbers.put(result, known.what, known.name, known.line)
        elif name in _MEET and len(sizes) >= 2 and sizes[0] == sizes[-1]:
            self._meets(call, sizes)

    def _collated(self, call: OperatorCall, result: Any, count: int) -> None:
        """A loader puts the numbers of its samples together: the program's line is the loop over it."""
        line = line_of(call.lines)
        if line is None or not self.facts.text_of(line).startswith("for ") or "int" in str(result.dtype):
            return
        if self._is_new(call, result):
            said = f"the loader of {place(line)} puts {count} numbers together, one of each sample"
            self._numbers.put(result, _Numbers(said, self.facts.text_of(line)), call.name, line)

    def _picks(self, call: OperatorCall, count: int) -> None:
        """An element of a table for each sample, by an index that this iteration made."""
        table, index = call.operands
        plain_table = len(shape(table)) == 1 and not table.requires_grad
        if not plain_table or shape(index) != [count] or count < 2 or "int" not in str(index.dtype):
            return
        if not self._is_new(call, index):
            return
        drawn = self._drawn.of(index)
        if drawn is None:
            return
        by = f", and {drawn.what.said}"
        said = f"{call.name} at {place(line_of(call.lines))} picks {count} elements of a table of {shape(table)[0]}{by}"
        self._numbers.put(call.results[0], _Numbers(said, drawn.what.sized, True), call.name, line_of(call.lines))

    def _is_new(self, call: OperatorCall, value: Any) -> bool:
        """Whether each iteration makes it anew: known from the second on."""
        line, iteration = line_of(call.lines), self.facts.iteration
        if line is None:
            return False
        first, ref = self._met.setdefault(line, (iteration, weakref.ref(value)))
        return iteration > first and ref() is not value

    def _meets(self, call: OperatorCall, sizes: list[int]) -> None:
        for each in call.operands:
            known = self._numbers.of(each)
            if known is None or shape(each) != [sizes[0]]:
                continue
            others = [other for other in call.operands if other is not each and shape(other)[:1] == sizes[:1]]
            pairs = len(sizes) == 2 and not (known.what.picked and others and self._rows.of(others[0]) is not None)
            if others and len(shape(others[0])) == len(sizes) and not pairs:
                self._tell(known, call, sizes, shape(others[0]))
                return

    def _tell(self, known: Marked[_Numbers], call: OperatorCall, sizes: list[int], other: list[int]) -> None:
        facts, line, count, what = self.facts, line_of(call.lines), sizes[0], known.what
        axes = ", ".join(["-1", *["1"] * (len(sizes) - 1)])
        each = f"one of each of the {count} samples, " if what.sized else ""
        evidence = [
            what.said + (f", as many as there are samples: {what.sized}" if what.sized else ""),
            f"{call.name} takes [{count}] and {other}, and gives {sizes}: number i meets column i of every sample",
        ]
        if not what.sized:
            evidence.append(f"what decides: whether there is to be a number of each column; of each sample it is "
                            f"reshape({axes})")  # fmt: skip
        facts.tell(
            Finding(
                0, "wrong-axis", "warning" if what.sized else "note", 0.85 if what.sized else 0.4,
                f"{call.name} at {place(line)} meets {other} with {count} numbers, {each}and a broadcast lines them up "
                f"with the last axis, which is {count} long too: each sample gets all of them, one a column"
                + (f"; give them the axes that they lack (reshape({axes}))" if what.sized else ""),
                iteration=facts.iteration + 1, forward=line, cause=facts.cause(line), evidence=evidence,
                next=[f"b {place(line)}", "info node"],
            )
        )  # fmt: skip


def _sized(call: OperatorCall) -> str:
    """What says that as many are drawn as there are samples; "" where no line that leads there does."""
    return next(filter(None, map(_says_batch, call.lines)), "")


@functools.lru_cache(1024)
def _says_batch(line: SourceLine) -> str:
    """Kept by line: a file is walked for each name."""
    text = Facts.text_of(line)
    if _BATCH.search(text.partition("#")[0]):
        return text
    for name in {each.id for each in _names(line)}:
        before = assigned_before(line.file, line.line, name)
        if before is not None:
            given = ast.unparse(before[1])
            first = _FIRST.match(given)
            if (first is not None and first[1] == name) or (first is None and _BATCH.search(given)):
                return f"{text}, {given}"
    return ""


def _names(line: SourceLine) -> Iterator[ast.Name]:
    """Of a line's expressions."""
    for node in nodes_of(line.file):
        if isinstance(node, ast.Name) and node.lineno == line.line and isinstance(node.ctx, ast.Load):
            yield node

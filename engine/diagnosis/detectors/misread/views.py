"""Two views of each sample, laid out one way, whose partners are told another way."""

from __future__ import annotations

from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marked, Marks
from adbg.engine.diagnosis.detectors.numbers.values import numbers
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_JOINS = frozenset({"cat", "concat", "concatenate"})
_LEAST = 3  # samples
_MOST = 4096  # rows
_KEEPS = frozenset({"unsqueeze", "reshape", "view", "getitem", "to", "cast", "contiguous"})
_REDUCES = frozenset({"mean", "sum", "norm", "std", "var", "max", "min"})
_INDEXED = frozenset({"xor", "bitwise_xor", "repeat_interleave", "add", "sub", "arange", "floor_divide", "floordiv"})


@detector("loss-input")
class PartnersOfViews(Detector):
    """The views of a batch are joined one after another (``cat([a, b])``: row i and row i + n are of one sample), and a
    contrastive loss takes row i ^ 1 for the partner of row i, or groups of ``repeat_interleave``, which is right where
    the views of a sample lie next to each other: what is drawn together are unrelated samples.

    Evidence: how many rows were joined, of how many views, and the partners that the loss is given.
    Mistaken for: rows that were joined otherwise, and partners that are right (i + n): not told.
    Cost: in sampled iterations a look at joins, at indices of as many rows, and at the targets of square scores.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._joined: dict[int, tuple[int, SourceLine | None]] = {}  # by rows: views, and where they were joined
        self._parts: Marks[int] = Marks()  # what was joined: its rows
        self._indices: Marks[None] = Marks()
        self._square: set[int] = set()  # rows of products of a batch with itself
        self._tables: dict[int, Marked[None]] = {}  # by rows: groups that were compared with each other
        self._told = False

    def applied(self) -> bool:
        return bool(self._square)

    def iteration_end(self) -> None:
        self._joined, self._square, self._tables = {}, set(), {}

    def operator(self, call: OperatorCall) -> None:
        if self._told or call.error is not None or not call.results or not call.operands:
            return
        name, result = plain(call.name), call.results[0]
        sizes = shape(result)
        joined = self._parts.of(call.operands[0])
        picks = name in ("getitem", "index_select", "gather") and len(call.operands) > 1
        if joined is not None and (picks or sizes[:1] != [joined.what]) and name not in _REDUCES:
            self._joined.pop(joined.what, None)  # its rows are put into another order
        if name in _JOINS and len(sizes) >= 2 and "float" in str(result.dtype):
            self._join(call, sizes)
        elif name == "matmul" and len(sizes) == 2 and sizes[0] == sizes[1] and result.requires_grad:
            self._square.add(sizes[0])
            if sizes[0] in self._tables:
                self._groups(sizes[0])
        elif name in _INDEXED and len(sizes) == 1 and "int" in str(result.dtype):
            self._indices.put(result, None, name, line_of(call.lines))
        elif name in _KEEPS and (known := self._indices.of(call.operands[0])) is not None:
            self._indices.put(result, None, known.name, known.line)
        elif name == "eq" and len(sizes) == 2 and sizes[0] == sizes[1] and sizes[0] in self._joined:
            self._compared(call, sizes[0])
        elif name in ("cross_entropy", "cross_entropy_with_softmax") and len(call.operands) > 1:
            self._loss(call)

    def _join(self, call: OperatorCall, sizes: list[int]) -> None:
        parts = [shape(each) for each in call.operands]
        same = len(parts) > 1 and all(each == parts[0] for each in parts)
        if same and parts[0][1:] == sizes[1:] and parts[0][0] * len(parts) == sizes[0] and parts[0][0] >= _LEAST:
            self._joined[sizes[0]] = (len(parts), line_of(call.lines))
            self._parts.put(call.results[0], sizes[0], call.name, None)

    def _loss(self, call: OperatorCall) -> None:
        """Row i ^ 1 for the partner of row i."""
        scores, target = call.operands[0], call.operands[1]
        sizes = shape(scores)
        if len(sizes) != 2 or sizes[0] != sizes[1] or sizes[0] not in self._square or sizes[0] > _MOST:
            return
        views, _ = self._joined.get(sizes[0], (0, None))
        read = numbers(self.facts.backend, target) if views == 2 else None
        if read is not None and [int(each) for each in read.flat] == [at ^ 1 for at in range(sizes[0])]:
            self._tell(sizes[0], self._indices.of(target), line_of(call.lines), "row i ^ 1 for the partner of row i")

    def _compared(self, call: OperatorCall, rows: int) -> None:
        """Groups by a column and a row: those next to each other are taken for one sample's."""
        views, _ = self._joined[rows]
        source = call.operands[0]
        read = numbers(self.facts.backend, source) if rows <= _MOST else None
        if (
            read is None
            or len(read.flat) != rows
            or [int(each) for each in read.flat] != [at // views for at in range(rows)]
        ):
            return
        made = next((each for one in call.operands if (each := self._indices.of(one)) is not None), None)
        self._tables[rows] = made or Marked(None, None, call.name, line_of(call.lines))
        if rows in self._square:
            self._groups(rows)

    def _groups(self, rows: int) -> None:
        views, _ = self._joined.get(rows, (0, None))
        if views:
            self._tell(
                rows, self._tables[rows], self._tables[rows].line, f"{views} rows next to each other for one sample"
            )

    def _tell(self, rows: int, made: Marked[None] | None, used: SourceLine | None, how: str) -> None:
        self._told = True
        facts, (views, joined) = self.facts, self._joined[rows]
        line = made.line if made is not None and made.line is not None else used
        facts.tell(
            Finding(
                0, "loss-input", "error", 0.9,
                f"{place(line)} takes {how}, and {place(joined)} joined {views} views of {rows // views} samples one "
                f"after another: those of one sample lie {rows // views} rows apart",
                None, None, facts.iteration + 1, line, facts.cause(line),
                [
                    f"row 0 and row {rows // views} are of one sample; row 0 and row 1 are of two",
                    f"with views that are joined so, the sample of row i is i % {rows // views}",
                ],
                [f"b {place(line)}", "info node"],
            )
        )  # fmt: skip

"""A batch whose rows are all the same: what was stored one by one is one array, which is written into again."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.numbers.values import few_numbers
from adbg.engine.diagnosis.source import inside, nodes_of
from adbg.engine.diagnosis.values import attribute
from adbg.engine.live_objects import of_types
from adbg.engine.outside import suppress
from adbg.engine.own_files import is_programs
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_MAKES = frozenset({"as_tensor", "tensor", "from_numpy", "to_tensor", "asarray"})
_ROWS, _AXES = 8, 2
_MOST = 1 << 13  # numbers of a batch that are compared
_LOOKS = 3
_EACH = 4  # tensors of one line and iteration


@dataclass(slots=True)
class _Batch:
    line: SourceLine | None
    rows: int
    same: int = 0  # looks in which all rows were the same
    moved: bool = False  # not the same ones in each look
    last: tuple[float, ...] = ()
    over: bool = False
    proof: tuple[SourceLine, str] | None = None
    twins: int = 0  # looks in which another batch of the iteration had the same rows: state and next state


@detector("silent-overwrite")
class OneArray(Detector):
    """States that an environment returns are all one array of its own (``self.state[:2] += …; return self.state``):
    what a replay memory stores of them is that one array, and each batch has its latest values in every row.

    Evidence: in each look all rows of a batch were the same, and not those of the look before; an object that writes
    into an array of its own and returns it, which has just these values at that moment.
    Mistaken for: a batch that repeats one row on purpose (a note, unless a second batch of each iteration has the same
    rows, as the next states have), or is made of constants (not told: no object has such an array), rows that were the
    same by chance (not told once some differ).
    Cost: in sampled iterations up to 8,192 numbers of each float tensor of two axes that is made of an array; where
    three looks had the same rows, a search through all objects, once.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._batches: dict[tuple[SourceLine | None, SourceLine | None, int], _Batch] = {}
        self._rows: set[tuple[float, ...]] = set()  # of the batches of this iteration
        self._within: dict[Any, int] = {}  # of an iteration: how many were made on a line before

    def applied(self) -> bool:
        return bool(self._batches)

    def iteration_end(self) -> None:
        self._within, self._rows = {}, set()

    def operator(self, call: OperatorCall) -> None:
        if plain(call.name) not in _MAKES or call.error is not None or not call.results:
            return
        value, sizes = call.results[0], shape(call.results[0])
        if len(sizes) != 2 or sizes[0] < _ROWS or sizes[1] < _AXES or sizes[0] * sizes[1] > _MOST:
            return
        line = line_of(call.lines)
        caller = next((each for each in call.lines[1:] if each != line), None)
        at = self._within[line, caller] = self._within.get((line, caller), -1) + 1
        if at >= _EACH:
            return
        batch = self._batches.setdefault((line, caller, at), _Batch(line, sizes[0]))
        if batch.over or "float" not in str(value.dtype):
            return
        read = few_numbers(self.facts.backend, value, _MOST)
        flat, width = (read.flat, sizes[1]) if read is not None else ([], 1)
        first = tuple(flat[:width])
        if not flat or any(tuple(flat[at : at + width]) != first for at in range(width, len(flat), width)):
            batch.over = True
            return
        batch.moved = batch.moved or (batch.same > 0 and first != batch.last)
        batch.same, batch.last = batch.same + 1, first
        batch.twins += first in self._rows
        self._rows.add(first)
        if batch.same == _LOOKS and line is not None:
            batch.proof = _holder(line.file, first)
            batch.over = batch.proof is None

    def end(self) -> None:
        for batch in sorted(self._batches.values(), key=lambda each: -each.twins):
            if batch.proof is not None and not batch.over and batch.moved:
                self._tell(batch, *batch.proof)
                return

    def _tell(self, batch: _Batch, line: SourceLine, name: str) -> None:
        sure = batch.twins >= _LOOKS
        self.facts.tell(
            Finding(
                0, "silent-overwrite", "warning" if sure else "note", 0.88 if sure else 0.45,
                f"{place(line)} returns {name} itself, which is written into again: what is stored of it is one array, "
                f"and all {batch.rows} rows that {place(batch.line)} takes are the same; return a copy ({name}.copy())",
                None, None, None, batch.line, self.facts.cause(line),
                [
                    f"in each of {batch.same} looks all {batch.rows} rows of the batch were equal, and not those of "
                    "the look before",
                    "another batch of each iteration had the same rows: states, and those that follow them" if sure else
                    "whether one state is to be taken for all rows decides it",
                    f"{name} had them, too; the last ones: {', '.join(f'{each:.4g}' for each in batch.last[:6])}",
                ],
                [f"list {place(line)}"],
            )
        )  # fmt: skip


def _holder(file: str, row: tuple[float, ...]) -> tuple[SourceLine, str] | None:
    """The line that returns the array, of an object that lives and has ``row`` in it now, and its name."""
    returned = list(returned_arrays(file))
    classes = {name for name, _, _ in returned}
    for each in of_types(lambda kind: kind.__name__ in classes) if returned else ():
        for name, line, written in returned:
            value = attribute(each, written.partition(".")[2]) if type(each).__name__ == name else None
            if value is not None and _is_row(value, row):
                return line, written
    return None


def _is_row(value: Any, row: tuple[float, ...]) -> bool:
    """An array of NumPy, or a tensor on the CPU, with these numbers."""
    with suppress(Exception):
        if tuple(value.shape) == (len(row),):
            return all(abs(float(a) - b) <= 1e-5 * max(1.0, abs(b)) for a, b in zip(value.tolist(), row))
    return False


def returned_arrays(file: str) -> Iterator[tuple[str, SourceLine, str]]:
    """(class, line, attribute) where a method returns an attribute that a method of its class writes into: a ``step``
    that does both comes first."""
    later = []
    for node in nodes_of(file) if is_programs(file) else ():
        if not isinstance(node, ast.ClassDef):
            continue
        methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
        written = {each.name: set(_written(each)) for each in methods}
        every = set().union(*written.values()) if written else set()
        for method in methods:
            for each in inside(method):
                for name in _returned(each) if isinstance(each, ast.Return) else ():
                    if name in every and isinstance(each, ast.Return):
                        found = node.name, SourceLine(file, each.lineno, method.name), name
                        if method.name in ("step", "_step") and name in written[method.name]:
                            yield found
                        else:
                            later.append(found)
    yield from later


def _written(method: ast.FunctionDef) -> Iterator[str]:
    """``self.state[:2] = …``, ``self.state += …``, in one that was made before."""
    for node in inside(method):
        added = isinstance(node, ast.AugAssign)
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else ()
        )
        for target in targets:
            inner = target.value if isinstance(target, ast.Subscript) else target if added else None
            if isinstance(inner, ast.Attribute) and ast.unparse(inner.value) == "self":
                yield ast.unparse(inner)


def _returned(node: ast.Return) -> Iterator[str]:
    values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
    for each in values:
        if isinstance(each, ast.Attribute) and ast.unparse(each.value) == "self":
            yield ast.unparse(each)

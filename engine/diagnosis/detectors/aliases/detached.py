"""A name that was given a tensor detached, as if that were a copy, and is written into: the tensor itself is changed
before it is read."""

from __future__ import annotations

import ast
import weakref
from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.earlier.names import is_carried, is_updated
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape, writes
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.graphs.silent import written_at
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import called_name, inside, scope_at
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_LOOKS = 4  # at the operators that take a tensor which an array shares
_LARGEST = 4 << 20  # elements of one
_ARRAYS = 64
_SHARES = frozenset({"numpy", "__array__", "asarray"})
# Of what they are given they take the shape alone, or nothing that is computed with.
_SHAPE_ALONE = frozenset({"view_as", "expand_as", "reshape_as", "type_as", "detach", "clone", "size", "shape"})


@dataclass(frozen=True, slots=True)
class _Alias:
    """``of``: the tensor that was detached, which has a graph."""

    of: weakref.ref[Any]
    name: str
    line: SourceLine


@dataclass(slots=True)
class _Array:
    """NumPy's, over the memory of ``of``; ``digest``: of its bytes then. ``looks`` that are left."""

    of: weakref.ref[Any]
    digest: int
    version: int | None
    line: SourceLine
    looks: int = _LOOKS


@dataclass(slots=True)
class _Written:
    alias: _Alias
    name: str  # of the operator
    line: SourceLine
    read: bool = False  # the program took what it had filled: it is no way to fill the tensor itself
    data: bool = False  # it carries no gradient: a batch, labels
    taken: tuple[str, SourceLine | None] | None = None  # by which operator the tensor was, ahead of that


@detector("silent-overwrite")
class DetachedName(Detector):
    """``hardness = logits.detach()`` and ``hardness.masked_fill_(pos, -1e4)``: ``detach`` shares the memory, so that
    the loss, which reads ``logits`` after that, is computed of what was filled. Nothing raises: no node had saved them.
    The same of an array: ``scores = affinity.detach().numpy()`` and ``scores[i] = -1``.

    Evidence: the line that detached, the line that wrote, the operator that takes the tensor; of an array that the
    bytes are other ones there, and by whose name the source writes. Of data (a batch, labels) a warning, where both are
    taken afterwards: negatives that are made in ``neg = batch.detach()``.
    Mistaken for: what is written through the tensor itself, or in the statement that detaches it
    (``scores.detach().masked_fill_(mask, -inf)``, which masks the scores), a name that nothing reads after it was
    filled, single numbers, data that names speak of as there to be changed, a detached tensor that was cloned, and one
    whose original nothing reads any more (not told).
    Cost: in sampled iterations a look at each operator's name, and a sum over the bytes of what an array shares.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._aliases: Marks[_Alias] = Marks()
        self._written: Marks[_Written] = Marks()
        self._arrays: dict[int, _Array] = {}  # by id of the tensor
        self._any = self._changed = False
        self._told: set[SourceLine] = set()

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or call.in_backward or self.facts.stepping or not call.operands:
            return
        name = plain(call.name)
        if self._changed and call.grad_mode and name not in _SHAPE_ALONE:
            for operand in call.operands:
                known = self._written.of(operand)
                if known is None or not (known.what.data or any(each.requires_grad for each in call.results)):
                    continue
                known.what.taken = known.what.taken or (plain(call.name), line_of(call.lines))
                if known.what.read:
                    self._tell(operand, known.what)
        if self._arrays and call.grad_mode and name not in _SHAPE_ALONE:
            for operand in call.operands:
                if id(operand) in self._arrays and any(each.requires_grad for each in call.results):
                    self._look(call, operand)
        if call.name in _SHARES:
            self._shared(call)
        elif name == "detach" and not call.name.endswith("_"):
            self._detached(call)
        elif self._any:
            self._follow(call)

    def _detached(self, call: OperatorCall) -> None:
        source, line = call.operands[0], line_of(call.lines)
        if not call.results or line is None:
            return
        facts, backend = self.facts, self.facts.backend
        data = not backend.has_graph(source) and not source.requires_grad and not facts.name_of(source)
        if not data and (source.is_leaf or not backend.has_graph(source)):
            return
        if data and (is_updated(text := f"{facts.text_of(line)} {line.function}") or is_carried(text)):
            return
        if self.facts.share_memory(source, call.results[0]):
            self._aliases.put(call.results[0], _Alias(weakref.ref(source), _named_at(line), line), "", line)
            self._any = True

    def _follow(self, call: OperatorCall) -> None:
        """Views of an alias are one, and what writes into one changes what was detached."""
        known = next((each for one in call.operands if (each := self._aliases.of(one)) is not None), None)
        if known is None:
            return
        source, line = known.what.of(), line_of(call.lines)
        if source is None or shape(source) in ([], [1]):  # a loss that is scaled to be shown
            return
        written = any(self._aliases.of(each) is not None for each in writes(call))
        if written and line is not None and line != known.what.line and known.what.name:
            data = not self.facts.backend.has_graph(source)
            self._written.put(source, _Written(known.what, call.name, line, data=data), call.name, line)
            self._changed = True
        elif not written:
            views = [each for each in call.results if self.facts.share_memory(source, each)]
            for result in views:
                if self._aliases.of(result) is None:
                    self._aliases.put(result, known.what, "", known.line)
            filled = self._written.of(source)
            if filled is not None and call.results and not views:
                filled.what.read = True
                if filled.what.taken is not None and filled.what.data:
                    self._tell(source, filled.what)

    def _shared(self, call: OperatorCall) -> None:
        known, line = self._aliases.of(call.operands[0]), line_of(call.lines)
        source = known.what.of() if known is not None else None
        if source is None or line is None or len(self._arrays) >= _ARRAYS:
            return
        backend = self.facts.backend
        digest = self.facts.digest(source) if backend.meta(source).numel <= _LARGEST else None
        if digest is not None and backend.name == "torch":  # Paddle's arrays are copies
            self._arrays[id(source)] = _Array(weakref.ref(source), digest, backend.version_of(source), line)

    def _look(self, call: OperatorCall, operand: Any) -> None:
        array = self._arrays[id(operand)]
        array.looks -= 1
        if array.of() is not operand or not array.looks:
            del self._arrays[id(operand)]
        if array.of() is not operand or self.facts.backend.version_of(operand) != array.version:
            return
        if self.facts.digest(operand) != array.digest:
            self._arrays.pop(id(operand), None)
            self._tell_array(call, array)

    def _tell_array(self, call: OperatorCall, array: _Array) -> None:
        facts, line, wrote = self.facts, line_of(call.lines), written_at(array.line)
        if wrote is None or wrote in self._told:
            return
        self._told.add(wrote)
        facts.tell(
            Finding(
                0, "silent-overwrite", "error", 0.88,
                f"the array made at {place(array.line)} has the memory of a tensor that {call.name} at {place(line)} "
                f"goes on to take, and is written at {place(wrote)} in between: use detach().cpu().numpy().copy()",
                iteration=facts.iteration + 1, forward=line, cause=facts.cause(wrote),
                evidence=[
                    f"the bytes of the tensor are other ones at {place(line)} than as the array was made",
                    f"made at {place(array.line)}: {facts.text_of(array.line)}",
                    f"written at {place(wrote)}: {facts.text_of(wrote)}",
                ],
                next=[f"b {place(wrote)}", "info node"],
            )
        )  # fmt: skip

    def _tell(self, operand: Any, written: _Written) -> None:
        self._written.drop(operand)
        if written.line in self._told or written.taken is None:
            return
        self._told.add(written.line)
        facts, alias, (name, line) = self.facts, written.alias, written.taken
        severity, sure = ("warning", 0.75) if written.data else ("error", 0.88)
        facts.tell(
            Finding(
                0, "silent-overwrite", severity, sure,
                f"{written.name} at {place(written.line)} writes into '{alias.name}', which {place(alias.line)} gave "
                f"the memory of a tensor that {name} at {place(line)} goes on to take: detach() makes no copy, "
                "use detach().clone(), or an operator that makes a new tensor",
                iteration=facts.iteration + 1, forward=line, cause=facts.cause(written.line),
                evidence=[
                    f"detached at {place(alias.line)}: {facts.text_of(alias.line)}",
                    f"overwritten at {place(written.line)}: {facts.text_of(written.line)}",
                    f"read at {place(line)}: {facts.text_of(line) if line is not None else ''}",
                ],
                next=[f"b {place(written.line)}", "info node"],
            )
        )  # fmt: skip


def _named_at(line: SourceLine) -> str:
    """The name that a line gives what it detached, and nothing else: ``h = x.detach()``; "" for any other statement."""
    scope = scope_at(line.file, line.line)
    for node in inside(scope) if scope is not None else ():
        if not isinstance(node, ast.Assign) or not node.lineno <= line.line <= (node.end_lineno or node.lineno):
            continue
        target, value = node.targets[0], node.value
        while isinstance(value, ast.Subscript):  # a view of it
            value = value.value
        if isinstance(target, (ast.Name, ast.Attribute)) and isinstance(value, ast.Call):
            return ast.unparse(target) if called_name(value) == "detach" else ""
    return ""

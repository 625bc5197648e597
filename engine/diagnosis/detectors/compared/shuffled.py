"""Inputs and labels that are shuffled, each by another permutation, or one of them alone."""

from __future__ import annotations

import ast
import functools
import os
import re
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
from adbg.engine.diagnosis.source import assigned_before, assigned_names, called_name, nodes_of, scope_at
from adbg.engine.frames import local, locals_of
from adbg.engine.own_files import is_programs
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_ON_PURPOSE = re.compile(r"null|permut|control|chance|random", re.I)  # tests of what is learnt of no pairs
_PERMUTES = frozenset({"randperm", "permutation"})
_TAKES = frozenset({"linear", "embedding", "conv1d", "conv2d", "conv3d", "matmul", "addmm", "mm", "lstm", "gru"})


@dataclass(frozen=True, slots=True)
class _Shuffles:
    """Statements of one block that pick rows by permutations of one length: by permutation, the names that are given
    what it picked, and the line."""

    file: str
    function: str  # that they are in
    groups: tuple[tuple[frozenset[str], int], ...]
    alone: bool = False  # one permutation, whose names keep what it picked of them
    others: frozenset[str] = frozenset()  # names that permutations pick elsewhere in the file


@detector("loss-input")
class ShuffledApart(Detector):
    """Inputs and labels that are shuffled by two permutations: ``x = x[randperm(n)]``, ``y = y[randperm(n)]``. Row i of
    one belongs to another sample than row i of the other, and nothing can be learnt.

    So it is where one of the two is shuffled alone: ``x = x[randperm(n)]``, and nothing picks the labels so.

    Evidence: the two statements of one block; what a layer is given lies in what one of them made, and the labels of
    the loss in what the other did, or in a tensor of as many rows that no permutation picks.
    Mistaken for: two sets that are not paired and both go to layers, permutations of different lengths, labels that are
    made of what was shuffled, a permutation of its own name (``mixed = x[perm]``): not told.
    Cost: the source is read once; where it has such statements, in sampled iterations a look at what layers and losses
    are given.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._known: dict[str, tuple[_Shuffles, ...]] = {}
        self._given: set[tuple[_Shuffles, int]] = set()  # groups that a layer was given
        self._told = False

    def applied(self) -> bool:
        return any(self._known.values())

    def operator(self, call: OperatorCall) -> None:
        name, line = plain(call.name), line_of(call.lines)
        if self._told or call.error is not None or call.in_backward or line is None or not call.grad_mode:
            return
        loss = "loss" in name or "entropy" in name
        if (name not in _TAKES and not loss) or len(call.operands) < 2:
            return
        if not call.results or (loss and shape(call.results[0])):
            return  # of each row: what it is for is not known
        for each in call.lines:
            for shuffles in self._of(each.file):
                if self._told:
                    return
                if loss:
                    self._compare(shuffles, call.operands[1], line)
                elif any(one.is_leaf and one.requires_grad for one in call.operands):
                    for value in call.operands:
                        if not value.requires_grad and (at := self._group(shuffles, value)) is not None:
                            self._given.add((shuffles, at))

    def composite(self, call: OperatorCall) -> None:
        self.operator(call)

    def iteration_end(self) -> None:
        self._given = set()

    def _of(self, file: str) -> tuple[_Shuffles, ...]:
        if file not in self._known:
            self._known[file] = tuple(_shuffles(file))
        return self._known[file]

    def _group(self, shuffles: _Shuffles, value: Any) -> int | None:
        """Which of the permutations picked it, as the running functions have the names."""
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if code.co_name == shuffles.function and _whole(code.co_filename) == shuffles.file:
                for at, (names, _) in enumerate(shuffles.groups):
                    for name in names:
                        held = local(frame, name)
                        if self.facts.backend.is_tensor(held) and self.facts.share_memory(held, value):
                            return at
            frame = frame.f_back
        return None

    def _compare(self, shuffles: _Shuffles, labels: Any, line: SourceLine) -> None:
        at = self._group(shuffles, labels) if not labels.requires_grad else None
        others = [other for known, other in self._given if known is shuffles and other != at]
        if at is None and shuffles.alone and (shuffles, 0) in self._given and not labels.requires_grad:
            self._compare_alone(shuffles, labels, line)
        if at is None or not others or shuffles.alone or (shuffles, at) in self._given:
            return
        self._told = True
        first, second = shuffles.groups[others[0]], shuffles.groups[at]
        where = SourceLine(shuffles.file, second[1], line.function)
        before = SourceLine(shuffles.file, first[1], line.function)
        facts = self.facts
        facts.tell(
            Finding(
                0, "loss-input", "warning", 0.85,
                f"{_listed(first[0])} and {_listed(second[0])} are shuffled by two permutations: the labels that "
                f"{place(line)} compares with belong to other samples than what the layers are given",
                None, None, facts.iteration + 1, line, facts.cause(where),
                [
                    f"{place(before)} picks rows by one permutation: {facts.text_of(before)}",
                    f"{place(where)} by another one: {facts.text_of(where)}",
                    f"the labels at {place(line)} lie in {_listed(second[0])}, what the first layer is given in "
                    f"{_listed(first[0])}",
                ],
                [f"list {place(where)}"],
            )
        )  # fmt: skip

    def _compare_alone(self, shuffles: _Shuffles, labels: Any, line: SourceLine) -> None:
        names, at = shuffles.groups[0]
        name, rows = self._labels_of(shuffles, labels)
        before = assigned_before(shuffles.file, at, name) if name else None
        if not name or name in names or name in shuffles.others or (before is not None and before[0] > at):
            return
        self._told = True
        facts, where = self.facts, SourceLine(shuffles.file, at, line.function)
        facts.tell(
            Finding(
                0, "loss-input", "error", 0.88,
                f"{place(where)} shuffles {_listed(names)} alone: {name}, which {place(line)} compares with, stays in "
                "its order, so that the labels belong to other samples than what the layers are given",
                None, None, facts.iteration + 1, line, facts.cause(where),
                [
                    f"{place(where)} picks rows by a permutation: {facts.text_of(where)}",
                    f"the labels at {place(line)} lie in {name}, of as many rows ({rows}); no permutation picks them",
                    f"what the first layer is given lies in {_listed(names)}",
                ],
                [f"list {place(where)}"],
            )
        )  # fmt: skip

    def _labels_of(self, shuffles: _Shuffles, labels: Any) -> tuple[str, int]:
        """The variable that they lie in, of as many rows as what is shuffled, and these; ("", 0): there is none."""
        backend, frame = self.facts.backend, sys._getframe(1)
        walked: types.FrameType | None = frame
        while walked is not None:
            if walked.f_code.co_name == shuffles.function and _whole(walked.f_code.co_filename) == shuffles.file:
                held = [local(walked, name) for name in shuffles.groups[0][0]]
                rows = {shape(each)[0] for each in held if backend.is_tensor(each) and shape(each)}
                for name, value in locals_of(walked).items():
                    fits = backend.is_tensor(value) and shape(value)[:1] and shape(value)[0] in rows
                    if fits and self.facts.share_memory(value, labels):
                        return name, shape(value)[0]
            walked = walked.f_back
        return "", 0


@functools.lru_cache(512)
def _whole(file: str) -> str:
    return os.path.abspath(file)


def _listed(names: Iterable[str]) -> str:
    return " and ".join(sorted(names))


def _shuffles(file: str) -> Iterator[_Shuffles]:
    for node in nodes_of(file) if is_programs(file) else ():
        for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
            if isinstance(block, list):
                found = _picked(block)
                function = getattr(scope_at(file, found[0][1]), "name", "<module>") if found else ""
                own = _kept(block) if len(found) == 1 and not _ON_PURPOSE.search(function) else set()
                if own and own <= found[0][0]:
                    others = frozenset(name for each in _picked(list(nodes_of(file)), True) for name in each[0]) - own
                    yield _Shuffles(file, function, ((frozenset(own), found[0][1]),), True, others)
                if len(found) > 1 and not _ON_PURPOSE.search(" ".join([function, *(min(each[0]) for each in found)])):
                    yield _Shuffles(file, function, tuple((frozenset(names), line) for names, line in found))


def _kept(block: Sequence[ast.AST]) -> set[str]:
    """Names of the block that are given their own rows in another order: ``x = x[perm]``."""
    return {
        each.targets[0].id for each in block
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name) and len(each.targets) == 1
        and isinstance(each.value, ast.Subscript) and ast.unparse(each.value.value) == each.targets[0].id
    }  # fmt: skip


def _picked(block: Sequence[ast.AST], every: bool = False) -> list[tuple[set[str], int]]:
    """(names, line) by permutation, of the statements of one block; of permutations of one length alone."""
    named: dict[str, ast.Call] = {}
    groups: dict[ast.Call, tuple[set[str], int]] = {}
    for each in block:
        if not isinstance(each, ast.Assign) or len(each.targets) != 1:
            continue
        if isinstance(each.value, ast.Call) and called_name(each.value) in _PERMUTES:
            named.update(dict.fromkeys(assigned_names(each), each.value))
            continue
        pairs = [(each.targets[0], each.value)]
        if isinstance(each.targets[0], ast.Tuple) and isinstance(each.value, ast.Tuple):
            pairs = list(zip(each.targets[0].elts, each.value.elts))
        for target, value in pairs:
            by = value.slice if isinstance(value, ast.Subscript) else None
            call = named.get(by.id) if isinstance(by, ast.Name) else by if called_name(by or target) else None
            if isinstance(call, ast.Call) and called_name(call) in _PERMUTES and isinstance(target, ast.Name):
                groups.setdefault(call, (set(), each.lineno))[0].add(target.id)
    lengths = {tuple(map(ast.unparse, call.args)) for call in groups}
    return list(groups.values()) if len(lengths) == 1 or every else []

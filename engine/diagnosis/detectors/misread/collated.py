"""Batches whose parts were put in different orders: sequences sorted by length, labels left as they were, or shuffled
by another permutation."""

from __future__ import annotations

import ast
import functools
import itertools
import os
import re
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, LoaderEvent, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.numbers.values import numbers
from adbg.engine.diagnosis.source import (
    assigned_names,
    called_name,
    function_called,
    function_named,
    inside,
    nodes_of,
    scope_at,
)
from adbg.engine.frames import local
from adbg.engine.outside import own
from adbg.engine.own_files import is_library, is_programs
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_SAMPLES = 512  # of a batch
_FEW = 64  # numbers of a part of a sample that are compared
_ORDERS = frozenset({"sort", "sorted", "argsort", "topk", "randperm", "permutation", "shuffle", "flip", "reversed"})
Part = tuple[float, ...]


@detector("loss-input")
class PartsInOtherOrders(Detector):
    """The function that puts samples together (``collate_fn``) brings one part of them into another order (sequences
    sorted by length, as packing wants them) and leaves another part (the labels) in the order of the samples: row i of
    one belongs to another sample than row i of the other.

    Evidence: which rows of which part come from which sample, by their numbers.
    Mistaken for: parts that are all in the new order, those that do not tell their samples apart, and an order by
    anything but length (pairs that are exchanged on purpose, to be told from true ones): not told.
    Cost: a comparison of the first batches that a function of the program's puts together in this process.
    """

    needs = Need.LOADERS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._any = False
        self._told: set[int] = set()

    def applied(self) -> bool:
        return self._any

    def loader(self, event: LoaderEvent) -> None:
        code = event.collates
        if event.what != "collated" or code is None or id(code) in self._told:
            return
        self._any = True
        samples = event.samples
        if type(samples) is not list or not 3 <= len(samples) <= _SAMPLES:
            return
        given = [list(self._fields(each)) for each in samples]
        if len({len(each) for each in given}) != 1 or not given[0]:
            return
        rows = list(self._rows(event.result, len(samples)))
        orders = {name: _order(parts, given) for name, parts in rows}
        kept = {order[0] for order in orders.values() if order is not None and order[1] == sorted(order[1])}
        moved = next(  # of what is there in its own order as well, it is another look: negatives
            ((name, order[1]) for name, order in orders.items()
             if order is not None and order[1] != sorted(order[1]) and order[0] not in kept), None
        )  # fmt: skip
        if moved is None or any(_is_order(parts, moved[1]) for _, parts in rows):
            return
        field = next(order[0] for order in orders.values() if order is not None and order[1] == moved[1])
        if not _is_sorted([len(given[at][field]) for at in moved[1]]):
            return  # exchanged on purpose: pairs that do not belong together
        for name, parts in rows:
            if name != moved[0] and _follows(parts, given, None) and not _follows(parts, given, moved[1]):
                self._told.add(id(code))
                self._tell(code, moved, name)
                return

    def _fields(self, sample: Any) -> Iterator[Part]:
        """The numbers of each part of a sample."""
        values = (
            list(sample.values()) if type(sample) is dict else sample if type(sample) in (tuple, list) else [sample]
        )
        for each in values:
            yield self._numbers(each)

    def _rows(self, batch: Any, count: int) -> Iterator[tuple[str, list[Part]]]:
        """(what it is called, the numbers of each row) of the parts of a batch with a row for each sample."""
        if type(batch) is dict:
            named = [(repr(key), value) for key, value in batch.items()]
        else:
            several = batch if type(batch) in (tuple, list) else [batch]
            named = [(f"part {at}", value) for at, value in enumerate(several, 1)]
        for name, value in named:
            sizes = shape(value)
            if sizes[:1] != [count]:
                continue
            flat = self._numbers(value, count * _FEW * 64)
            if flat and len(flat) % count == 0:
                width = len(flat) // count
                yield name, [flat[at * width : at * width + min(width, _FEW)] for at in range(count)]

    def _numbers(self, value: Any, most: int = _FEW * 64) -> Part:
        if type(value) in (int, float, bool):
            return (float(value),)
        try:
            if type(value) in (list, tuple):
                return tuple([float(each) for each in value[:_FEW] if type(each) in (int, float, bool)])
            if hasattr(value, "tolist") and type(value).__module__.partition(".")[0] == "numpy":
                if value.size > most:
                    return ()
                return tuple([float(each) for each in value.reshape(-1).tolist()])
            read = numbers(self.facts.backend, value)
        except own(Exception):
            return ()
        return tuple(read.flat) if read is not None and len(read.flat) <= most else ()

    def _tell(self, code: types.CodeType, moved: tuple[str, list[int]], left: str) -> None:
        facts, (name, order) = self.facts, moved
        first = next(at for at, of in enumerate(order) if at != of)
        line = _ordered_at(code) or SourceLine(code.co_filename, code.co_firstlineno, code.co_name)
        facts.tell(
            Finding(
                0, "loss-input", "error", 0.93,
                f"{code.co_name} at {place(line)} puts {name} of a batch into another order and leaves {left} as it "
                "was: a row of one belongs to another sample than that row of the other",
                None, None, facts.iteration + 1, line, facts.cause(line),
                [
                    f"row {first} of {name} is sample {order[first]}, row {first} of {left} is sample {first}",
                    f"of {len(order)} rows {sum(at != of for at, of in enumerate(order))} have moved",
                ],
                [f"b {place(line)}"],
            )
        )  # fmt: skip


def _begins(row: Part, part: Part) -> bool:
    """A row is a part of a sample, with padding behind it: the same number all over."""
    some = part[: len(row)]
    return bool(some) and row[: len(some)] == some and len(set(row[len(some) :])) <= 1


def _order(rows: Sequence[Part], given: Sequence[Sequence[Part]]) -> tuple[int, list[int]] | None:
    """The place of the part of samples that tells them apart, and the sample of each row by it; None: none does."""
    for field in range(len(given[0])):
        parts = [sample[field] for sample in given]
        if len(set(parts)) < len(parts):
            continue
        order = []
        by_first: dict[float, list[int]] = {}
        for at, part in enumerate(parts):
            by_first.setdefault(part[0] if part else 0.0, []).append(at)
        for row in rows:
            fits = [at for at in by_first.get(row[0] if row else 0.0, ()) if _begins(row, parts[at])]
            if len(fits) != 1:
                break
            order.append(fits[0])
        if len(order) == len(rows) and len(set(order)) == len(order):
            return field, order
    return None


def _is_sorted(lengths: Sequence[int]) -> bool:
    pairs = list(itertools.pairwise(lengths))
    up, down = any(a < b for a, b in pairs), any(a > b for a, b in pairs)
    return up != down


def _is_order(rows: Sequence[Part], order: Sequence[int]) -> bool:
    """The order goes with the batch, or how to put it back: who takes it does so."""
    told = [int(row[0]) for row in rows if len(row) == 1 and row[0] == int(row[0])]
    back = [order.index(at) for at in range(len(order))]
    return told in (list(order), back)


def _follows(rows: Sequence[Part], given: Sequence[Sequence[Part]], order: Sequence[int] | None) -> bool:
    """Whether the rows are a part of the samples, in that order; None: in their own."""
    for field in range(len(given[0])):
        parts = [given[at][field] for at in order] if order is not None else [sample[field] for sample in given]
        if all(len(row) == len(part) and _begins(row, part) for row, part in zip(rows, parts, strict=True)):
            return True
    return False


def _ordered_at(code: types.CodeType) -> SourceLine | None:
    """The line of a function that sorts, or that calls what does."""
    function = function_named(code.co_filename, code.co_firstlineno)
    if function is None or is_library(code.co_filename):
        return None
    for node in sorted(inside(function), key=lambda each: getattr(each, "lineno", 0)):
        inner = function_called(code.co_filename, node) if called_name(node) else None
        names = {called_name(node), *(called_name(each) for each in (inside(inner) if inner is not None else ()))}
        if names & _ORDERS:
            return SourceLine(code.co_filename, node.lineno, code.co_name)  # type: ignore[attr-defined]
    return None


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


@detector("loss-input")
class ShuffledApart(Detector):
    """Inputs and labels that are shuffled by two permutations: ``x = x[randperm(n)]``, ``y = y[randperm(n)]``. Row i of
    one belongs to another sample than row i of the other, and nothing can be learnt.

    Evidence: the two statements of one block; what a layer is given lies in what one of them made, and the labels of
    the loss in what the other did.
    Mistaken for: two sets that are not paired and both go to layers, permutations of different lengths: not told.
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
        if at is None or not others or (shuffles, at) in self._given:
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
                if len(found) > 1 and not _ON_PURPOSE.search(" ".join([function, *(min(each[0]) for each in found)])):
                    yield _Shuffles(file, function, tuple((frozenset(names), line) for names, line in found))


def _picked(block: Sequence[ast.AST]) -> list[tuple[set[str], int]]:
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
    return list(groups.values()) if len(lengths) == 1 else []

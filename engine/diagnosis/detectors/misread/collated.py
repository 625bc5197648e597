"""Batches whose parts were put in different orders: sequences sorted by length, labels left as they were."""

from __future__ import annotations

import itertools
import types
from collections.abc import Iterator, Sequence
from typing import Any

from adbg.engine.diagnosis.detector import Detector, LoaderEvent, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import place, shape
from adbg.engine.diagnosis.detectors.numbers.values import numbers
from adbg.engine.diagnosis.source import (
    called_name,
    function_called,
    function_named,
    inside,
)
from adbg.engine.outside import own
from adbg.engine.own_files import is_library
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

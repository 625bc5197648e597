"""Graphs that are put together into one, whose edges still count the nodes of each from 0."""

from __future__ import annotations

import ast
import itertools
import math
import types
from collections.abc import Sequence
from typing import Any

from adbg.engine.diagnosis.detector import Detector, LoaderEvent, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import place, shape
from adbg.engine.diagnosis.detectors.numbers.values import numbers
from adbg.engine.diagnosis.source import called_name, function_named, inside
from adbg.engine.outside import own
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_MOST = 1 << 16  # numbers of one part
_SHARE = 0.8  # of the samples whose highest index is their last node
_JOINS = frozenset({"cat", "concat", "concatenate", "hstack", "append", "extend"})


@detector("loss-input")
class IndicesWithoutOffset(Detector):
    """``collate_fn`` joins the nodes of several graphs to one table and their edges to one list, and adds nothing to
    the edges: they count the nodes of each graph from 0, so that all messages run among the first nodes of the table.

    Evidence: the indices of each sample, which are in the batch as they were, and go up to its last node; how many
    nodes come before.
    Mistaken for: labels and tokens, which do not go up to the number of nodes of each sample, one number for each node,
    graphs of one size that are stacked, and a batch that says how many nodes each sample has: not told.
    Cost: a look at the first batches that a function of the program's puts together in this process.
    """

    needs = Need.LOADERS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._any = False
        self._told: set[int] = set()

    def applied(self) -> bool:
        return self._any

    def loader(self, event: LoaderEvent) -> None:
        code, samples = event.collates, event.samples
        if event.what != "collated" or code is None or id(code) in self._told or type(samples) is not list:
            return
        self._any = True
        fields = [_fields(each) for each in samples]
        if len(samples) < 2 or len({len(each) for each in fields}) != 1:
            return
        results = list(_fields(event.result))
        for at in range(len(fields[0])):
            nodes = [_length(sample[at]) for sample in fields]
            total = sum(nodes)
            if min(nodes) < 2 or len(set(nodes)) < 2 or not any(_length(each) == total for each in results):
                continue
            if any(self._counts(each, nodes) for each in results):
                continue  # who takes the batch knows where each begins
            for other in range(len(fields[0])):
                if other != at and self._is_unmoved([sample[other] for sample in fields], nodes, results):
                    self._told.add(id(code))
                    self._tell(code, nodes)
                    return

    def _is_unmoved(self, parts: Sequence[Any], nodes: Sequence[int], results: Sequence[Any]) -> bool:
        """Whether these are indices of nodes, each sample's from 0, and are in the batch as they are."""
        read = [self._whole(part) for part in parts]
        if any(each is None for each in read):
            return False
        indices = [each for each in read if each is not None]
        if any(each and not 0 <= min(each) <= max(each) < count for each, count in zip(indices, nodes)):
            return False
        if any(len(each) == count for each, count in zip(indices, nodes)):
            return False  # one for each node: its place, a label
        full = sum(bool(each) and max(each) == count - 1 for each, count in zip(indices, nodes))
        if full < _SHARE * len(nodes):
            return False
        size = sum(map(len, indices))
        for result in results:
            if math.prod(shape(result) or [0]) == size and shape(result)[:1] != [sum(nodes)]:
                joined = self._whole(result)
                if joined is not None and sorted(joined) == sorted(number for each in indices for number in each):
                    return True
        return False

    def _counts(self, value: Any, nodes: Sequence[int]) -> bool:
        told = self._whole(value) if math.prod(shape(value) or [0]) in (len(nodes), len(nodes) + 1) else None
        ends = list(itertools.accumulate(nodes))
        return told is not None and told in (list(nodes), ends, [0, *ends], [0, *ends[:-1]])

    def _whole(self, value: Any) -> list[int] | None:
        """Of an array or a tensor of whole numbers; None for anything else."""
        if "int" not in str(getattr(value, "dtype", "")) or math.prod(shape(value) or [0]) > _MOST:
            return None
        try:
            if type(value).__module__.partition(".")[0] == "numpy":
                return [int(each) for each in value.reshape(-1).tolist()]
            read = numbers(self.facts.backend, value)
        except own(Exception):
            return None
        return [int(each) for each in read.flat] if read is not None else None

    def _tell(self, code: types.CodeType, nodes: Sequence[int]) -> None:
        facts = self.facts
        line = _joined_at(code) or SourceLine(code.co_filename, code.co_firstlineno, code.co_name)
        facts.tell(
            Finding(
                0, "loss-input", "error", 0.92,
                f"{code.co_name} at {place(line)} joins the nodes of {len(nodes)} samples to one table of {sum(nodes)} "
                "and leaves their indices as they were: those of each sample count from 0, and mean the first nodes",
                None, None, facts.iteration + 1, line, facts.cause(line),
                [
                    f"the samples have {', '.join(map(str, nodes[:6]))}{', …' if len(nodes) > 6 else ''} nodes, and "
                    "indices up to the last of these; in the batch they are the same",
                    f"to those of the second one {nodes[0]} are to be added, to those of the third {sum(nodes[:2])}",
                ],
                [f"b {place(line)}"],
            )
        )  # fmt: skip


def _fields(value: Any) -> list[Any]:
    if type(value) is dict:
        return list(value.values())
    if type(value) in (tuple, list):
        return list(value)
    kept = getattr(value, "__dict__", None)
    return list(kept.values()) if type(kept) is dict else [value]


def _length(value: Any) -> int:
    sizes = shape(value)
    return sizes[0] if sizes and "float" in str(getattr(value, "dtype", "")) else 0


def _joined_at(code: types.CodeType) -> SourceLine | None:
    """The line of the function that takes the indices of a sample, by a name that speaks of edges, else of an index."""
    function = function_named(code.co_filename, code.co_firstlineno)
    if function is None:
        return None
    joins = [each for each in inside(function) if isinstance(each, ast.Call) and called_name(each) in _JOINS]
    for word in ("edge", "adj", "index", "idx", "src", "face", "pair", "bond"):
        named = sorted(each.lineno for each in joins if word in ast.unparse(each).lower())
        if named:
            return SourceLine(code.co_filename, named[0], code.co_name)
    return None

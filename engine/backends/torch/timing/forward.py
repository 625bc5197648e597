"""How long the operators of a forward took on torch.

From torch's own records of its operators (``RecordFunction``), as its profiler of old collects them: on one thread, in
memory, without Kineto. A record has the number that the next node of its thread gets, so the last one with a node's
number that goes by the node's name is of the operator that made it; also inside a composite (``F.cross_entropy``,
``F.linear`` under autocast), which a function mode sees as one call. Nothing that the program asks answers otherwise:
under a function mode torch.compile compiles again, and modules leave their fast path (``has_torch_function``), which
changes bits.

A forward of small operators (162, 2,096 records) took 1.9 times as long while it was recorded, under a function mode
1.5 times, and its records 1.3 us each to collect. What records inside an operator cost is measured and subtracted.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

from adbg.engine.backends.base import ForwardTimer, ForwardTimes, Graph
from adbg.engine.backends.torch import private
from adbg.engine.median import median
from adbg.engine.outside import own

_BACKWARD = re.compile(r"Backward\d*\Z")
_IN_PLACE = "torch::autograd::CopySlices"  # an operation in place on a view: its own node has the number before
_FROM_CPP = "torch::autograd::CppNode"
_ROUNDS, _RECORDS = 7, 60  # of measuring what a record costs
_NAME = "adbg"


class TorchForward(ForwardTimer):
    """Switches the records on and off."""

    def __init__(self) -> None:
        self._thread = 0  # that is recorded now; 0: none
        self._ways: list[tuple[Any, str, Any, Any]] = []  # (module, name, original, ours)
        self._cost: float | None = None  # us of a record, for what it is inside of

    def begin(self) -> bool:
        self.problem = ""
        if not private.can_record():
            self.problem = "this torch keeps no records of its operators"
            return False
        if self._thread or private.profiling():
            self.problem = "the program has a profiler on"
            return False
        try:
            if self._cost is None:
                self._cost = _cost_of_a_record()
            self._put_in()
            private.record()
        except own(RuntimeError, TypeError) as error:
            self._take_out()
            self.problem = f"torch keeps no records: {error}"
            return False
        self._thread = threading.get_ident()
        return True

    def end(self) -> ForwardTimes | None:
        if self._thread != threading.get_ident():
            return None
        self._thread = 0
        self._take_out()
        try:
            return TorchTimes(private.records(), self._cost or 0.0)
        except own(RuntimeError) as error:
            self.problem = f"the records are gone: {error}"
            return None

    def abandon(self) -> None:
        self.end()

    # ---- making way for a profiler of the program's, which torch refuses on the same thread

    def _put_in(self) -> None:
        for module, name in private.PROFILERS:
            original = getattr(module, name, None)
            if original is not None:
                ours = self._stand_in(original)
                self._ways.append((module, name, original, ours))
                setattr(module, name, ours)

    def _take_out(self) -> None:
        for module, name, original, ours in self._ways:
            if getattr(module, name, None) is ours:
                setattr(module, name, original)
        self._ways = []

    def _stand_in(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def starts(*args: Any, **kwargs: Any) -> Any:
            if self._thread == threading.get_ident():
                self.end()
                self.problem = "the program started its own profiler"
            return original(*args, **kwargs)

        return starts


class TorchTimes(ForwardTimes):
    """Read when it is first asked: 0.5 us a record."""

    def __init__(self, records: Sequence[Any], cost: float) -> None:
        self._records: Sequence[Any] | None = records
        self._cost = cost
        self._known: dict[int, list[tuple[str, float]]] = {}  # by number: (operator, us), the first begun first
        self._graph: Graph | None = None  # that was asked about last
        self._numbers: dict[int, int] = {}  # of its nodes, how many have it: each thread counts for itself

    def of(self, graph: Graph, key: int) -> float | None:
        if self._records is not None:
            self._known, self._records = _by_number(self._records, self._cost), None
        if self._graph is not graph:
            self._graph, self._numbers = graph, _numbers(graph)
        node = graph.node(key)
        number = private.sequence(node)
        if number is None or self._numbers.get(number, 1) > 1:
            return None
        name = str(node.name())
        if name == _IN_PLACE:
            return next((us for op, us in reversed(self._known.get(number - 1, ())) if op.endswith("_")), None)
        wanted = _BACKWARD.sub("", name)
        for op, us in reversed(self._known.get(number, ())):
            if op == wanted or _titled(op) == wanted or name.startswith(_FROM_CPP):
                return us
        return None


def _numbers(graph: Graph) -> dict[int, int]:
    found: dict[int, int] = {}
    for key in graph.order():
        number = private.sequence(graph.node(key))
        if number is not None:
            found[number] = found.get(number, 0) + 1
    return found


def _by_number(records: Sequence[Any], cost: float) -> dict[int, list[tuple[str, float]]]:
    found: dict[int, list[tuple[str, float]]] = {}
    open_: list[tuple[Any, int, int]] = []  # (record, place among those of its number, records seen before it)
    seen = 0
    for record in records:
        kind = record.kind()
        if kind == "push":
            seen += 1
            number = record.sequence_nr()
            place = -1
            if number >= 0:
                rows = found.setdefault(number, [])
                place = len(rows)
                rows.append(("", 0.0))
            open_.append((record, place, seen))
        elif kind == "pop" and open_:
            begun, place, before = open_.pop()
            if place >= 0:
                us = max(begun.cpu_elapsed_us(record) - cost * (seen - before), 0.0)
                found[begun.sequence_nr()][place] = begun.name(), us
    return {number: [row for row in rows if row[0]] for number, rows in found.items()}  # without those that never ended


_TITLES: dict[str, str] = {}


def _titled(op: str) -> str:
    """ "MaxPool2DWithIndices" of "aten::max_pool2d_with_indices", as torch names its nodes."""
    known = _TITLES.get(op)
    if known is None:
        known = _TITLES[op] = "".join(word.title() for word in op.rpartition("::")[2].split("_"))
    return known


def _cost_of_a_record() -> float:
    """Microseconds, by records of no operator."""

    def taken() -> float:
        begin = perf_counter_ns()
        for _ in range(_RECORDS):
            with record:
                pass
        return (perf_counter_ns() - begin) / _RECORDS / 1000

    record = private.record_of(_NAME)
    if record is None:
        return 0.0
    plain, recorded = [], []
    for _ in range(_ROUNDS):
        plain.append(taken())
        private.record()
        try:
            recorded.append(taken())
        finally:
            private.records()
    return max(median(recorded) - median(plain), 0.0)

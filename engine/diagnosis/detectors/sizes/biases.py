"""Biases that were given a value below 0 before training, of which nothing after them comes above 0 again."""

from __future__ import annotations

from dataclasses import dataclass, field

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, plain, writes
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.types import SourceLine

_ADDS = frozenset({"linear", "addmm", "conv1d", "conv2d", "conv3d", "add"})  # the result is a sum with the bias


@dataclass(slots=True)
class Low:
    """A bias that is ``value`` all over: without it the layer would reach ``reach``, which is above 0."""

    value: float
    line: SourceLine
    reach: float | None = None  # None: not so, or not seen
    looks: int = 0
    names: set[str] = field(default_factory=set)  # Paddle's parts are known by longer ones later


class LowBiases:
    """``look`` at each operator of sampled iterations."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._known: Marks[Low] = Marks()
        self._seen: dict[int, Low] = {}  # those that layers were computed with: as the program ends they are gone
        self._any = False

    def look(self, call: OperatorCall) -> None:
        if not self._facts.iteration:
            for each in writes(call):
                self._written(each, call)
        if not self._any or plain(call.name) not in _ADDS or not call.results:
            return
        for each in call.operands[1:]:
            known = self._known.of(each)
            if known is None or known.what.value >= 0:  # such as none is read: 3 ms a result of a million elements
                continue
            read = values.stats(self._facts.backend, call.results[0])
            if read is not None and read.max is not None:
                low = known.what
                dead = low.value < read.max < 0 and (low.reach is not None or not low.looks)
                low.reach = max(low.reach or 0.0, read.max - low.value) if dead else None
                low.looks += 1
                low.names.add(self._facts.title_of(each))
                self._seen[id(low)] = low

    def _written(self, value: object, call: OperatorCall) -> None:
        meta, line = self._facts.backend.meta(value), line_of(call.lines)
        if meta.shape is None or len(meta.shape) != 1 or line is None:
            return
        if not meta.requires_grad and self._known.of(value) is None:
            return
        read = values.stats(self._facts.backend, value)
        low = read.max if read is not None and read.min == read.max else None
        self._any = True
        self._known.put(value, Low(low if low is not None else 0.0, line), call.name, line)

    def of(self, names: list[str]) -> tuple[str, Low] | None:
        """The one among parameters of these names, where in every look all after it was below 0 by it alone."""
        low = [(name, each) for name in names for each in self._seen.values() if name in each.names]
        return next(((name, each) for name, each in low if each.reach is not None), None)

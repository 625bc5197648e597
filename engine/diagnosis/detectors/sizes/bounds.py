"""What operators that hold numbers within bounds (clamp, hardtanh, maximum) were given, beside the bounds; and what to
call a parameter whose module never runs itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

from adbg.engine.backends.base import BackwardCall
from adbg.engine.diagnosis.detector import OperatorCall
from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.operator_names import plain_name
from adbg.engine.diagnosis.source import assigned_on
from adbg.engine.types import SourceLine

BOUNDED = frozenset({"clamp", "hardtanh", "relu6", "maximum", "minimum"})
_OF = {"relu6": [0.0, 6.0], "hardtanh": [-1.0, 1.0]}
_MOST = 200  # lines
_ATTRIBUTE = re.compile(r"\bself\.([A-Za-z_]\w*)(?!\w|\(|\.\w+(?![\w(]))")  # none that is called, or a part of one


class Bounds:
    """``look`` at each operator of sampled iterations."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._seen: dict[SourceLine, str] = {}  # what was given last

    def look(self, call: OperatorCall) -> None:
        op = plain_name(call.name)
        if op not in BOUNDED or not call.lines or not call.operands or len(self._seen) >= _MOST:
            return
        ranges = [_range(self._facts, each) for each in call.operands[:3]]
        if ranges[0]:
            limits = [*map(values.plain, [*_numbers(call)] or _OF.get(op, [])), *[each for each in ranges[1:] if each]]
            beside = f", beside {' and '.join(limits)}" if limits else ""
            self._seen[call.lines[0]] = f"{call.name} was given {ranges[0]}{beside}"

    def at(self, line: SourceLine | None) -> list[str]:
        return [self._seen[line]] if line is not None and line in self._seen else []


class HeldLeaves:
    """Parameters that an optimizer holds and no module that has run has: another method than its forward was called.
    ``look`` at each operator of sampled iterations."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._names: dict[str, str] = {}  # by the place in the optimizer
        self._used: dict[SourceLine, set[str]] = {}  # places, by the line that computes with them

    def look(self, call: OperatorCall) -> None:
        facts = self._facts
        for each in call.operands if call.lines and not call.in_backward else ():
            place = facts.places.get(id(each))
            if place is None or facts.backend.has_graph(each) or not facts.backend.meta(each).requires_grad:
                continue
            if facts.name_of(each) == place and len(self._used) < _MOST:
                self._names.setdefault(place, self._name(each, call.lines[0]) or place)
                self._used.setdefault(call.lines[0], set()).add(place)

    def name_at(self, call: BackwardCall, key: int) -> str:
        """Of an accumulate node, by its tensor or by the line that used it first; "" where that is not known."""
        line = call.describe(key).forward
        used = self._used.get(line, set()) if line is not None else set()
        places = {self._facts.places.get(id(saved.value), "") for saved in call.saved(key)} or used
        place = places.pop() if len(places) == 1 else ""
        name = self._names.get(place, place)
        return f"{name} ({place})" if name != place else place

    def _name(self, tensor: object, line: SourceLine) -> str:
        """The only attribute in the line that uses it, or as the line that made it has it."""
        names = list({*_ATTRIBUTE.findall(self._facts.text_of(line))})
        born = self._facts.born(tensor) if len(names) != 1 else None
        names = assigned_on(born.file, born.line) if born is not None else names
        return names[0].removeprefix("self.") if len(names) == 1 else ""


def _range(facts: Facts, value: object) -> str:
    read = values.stats(facts.backend, value)
    if read is None or read.min is None or read.max is None:
        return ""
    low, high = values.plain(read.min), values.plain(read.max)
    return low if low == high else f"{low} to {high}"


def _numbers(call: OperatorCall) -> Iterator[float]:
    for each in (*call.arguments, *call.keywords.values()):
        if type(each) in (int, float):
            yield float(each)

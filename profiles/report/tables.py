"""Profiles as rows: what took how long itself and with all that it called; and the difference of two profiles."""

from __future__ import annotations

import enum
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from adbg.profiles.report.model import SAMPLES, Call, Frame, Profile, Sample
from adbg.profiles.report.phases import Phases


class Grouping(str, enum.Enum):
    """What one row stands for."""

    FUNCTION = "function"
    LINE = "line"
    FILE = "file"
    MODULE = "module"
    SIDE = "side"
    ORIGIN = "origin"
    THREAD = "thread"
    PHASE = "phase"


class Order(str, enum.Enum):
    SELF = "self"
    CUMULATIVE = "cumulative"
    CALLS = "calls"
    PER_CALL = "percall"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Row:
    """One function, line, file, … of a profile."""

    frame: Frame  # the name and place of what the row stands for
    own: float
    cumulative: float
    calls: int | None = None  # None where the profiler counts none
    primitive: int | None = None  # calls not within itself
    forward: float | None = None  # of nodes: the operators that made them; None: not measured

    @property
    def per_call(self) -> float | None:
        """Cumulative time of one call that is not within itself, as pstats has it."""
        return self.cumulative / self.primitive if self.primitive else None


@dataclass(frozen=True, slots=True)
class Table:
    rows: tuple[Row, ...]
    total: float
    unit: str


def table(profile: Profile, grouping: Grouping = Grouping.FUNCTION, order: Order = Order.SELF) -> Table:
    """All rows, the first of ``order`` first."""
    if grouping is Grouping.FUNCTION and profile.calls:
        rows = [_counted(profile, call) for call in profile.calls]
    else:
        rows = list(_sampled(profile, grouping))
    rows.sort(key=_KEYS[order])
    return Table(tuple(rows), profile.total, profile.unit)


def matching(rows: Iterable[Row], pattern: re.Pattern[str]) -> list[Row]:
    """Rows whose name, place or module the pattern is found in."""
    return [row for row in rows if matches(row.frame, pattern)]


def matches(frame: Frame, pattern: re.Pattern[str]) -> bool:
    """Whether the pattern is found in the name, or in the place."""
    return bool(pattern.search(frame.name) or pattern.search(f"{frame.file}:{frame.line} {frame.module}"))


_KEYS: dict[Order, Callable[[Row], tuple[float | str, ...]]] = {
    Order.SELF: lambda row: (-row.own, -row.cumulative, row.frame.name),
    Order.CUMULATIVE: lambda row: (-row.cumulative, -row.own, row.frame.name),
    Order.CALLS: lambda row: (-(row.calls or 0), -row.own, row.frame.name),
    Order.PER_CALL: lambda row: (-(row.per_call or 0.0), -row.own, row.frame.name),
    Order.NAME: lambda row: (row.frame.name.lower(), row.frame.file, row.frame.line),
}


def _counted(profile: Profile, call: Call) -> Row:
    return Row(profile.frames[call.frame], call.own, call.cumulative, call.calls, call.primitive)


def _sampled(profile: Profile, grouping: Grouping) -> Iterable[Row]:
    grouped = grouped_stacks(profile, grouping)
    own: dict[int, float] = defaultdict(float)
    cumulative: dict[int, float] = defaultdict(float)
    for stack, weight, _ in grouped.samples:
        if stack:
            own[stack[-1]] += weight
        for index in set(stack):
            cumulative[index] += weight
    lines = _heaviest(profile) if grouping is Grouping.FUNCTION and grouped is not profile else {}
    return (
        Row(lines.get(grouped.frames[index], grouped.frames[index]), own[index], weight)
        for index, weight in cumulative.items()
    )


def _heaviest(profile: Profile) -> dict[Frame, Frame]:
    """Function -> the executed line of it that took most: where to look."""
    weights: dict[int, float] = defaultdict(float)
    for stack, weight, _ in profile.samples:
        for index in set(stack):
            weights[index] += weight
    found: dict[Frame, Frame] = {}
    for index in sorted(weights, key=lambda index: weights[index]):
        frame = profile.frames[index]
        found[_group(frame, Grouping.FUNCTION)] = frame
    return found


def grouped_stacks(profile: Profile, grouping: Grouping) -> Profile:
    """The same samples in frames of the group: functions without their executed lines, files, libraries, …"""
    if grouping is Grouping.LINE or (grouping is Grouping.FUNCTION and profile.lines == "first"):
        return profile
    if grouping is Grouping.THREAD:
        return _single(profile, lambda sample: sample.thread or "(no thread)")
    if grouping is Grouping.PHASE:
        phases = Phases(profile.frames)
        return _single(profile, lambda sample: phases.of(sample.stack))
    numbers: dict[Frame, int] = {}
    mapped = [numbers.setdefault(_group(frame, grouping), len(numbers)) for frame in profile.frames]
    samples = []
    for stack, weight, thread in profile.samples:
        short: list[int] = []
        for index in stack:
            number = mapped[index]
            if grouping is Grouping.FUNCTION or not short or short[-1] != number:
                short.append(number)
        samples.append(Sample(tuple(short), weight, thread))
    return replace(profile, frames=tuple(numbers), samples=tuple(samples), lines="first", calls=())


def _single(profile: Profile, name: Callable[[Sample], str]) -> Profile:
    numbers: dict[Frame, int] = {}
    samples = tuple(
        Sample((numbers.setdefault(Frame(name(sample), side=""), len(numbers)),), sample.weight, sample.thread)
        for sample in profile.samples
    )
    return replace(profile, frames=tuple(numbers), samples=samples, lines="first", calls=())


def _group(frame: Frame, grouping: Grouping) -> Frame:
    if grouping is Grouping.FUNCTION:
        return replace(frame, line=0)
    if grouping is Grouping.FILE:
        return Frame(frame.file or frame.module or frame.name, frame.file, 0, frame.side, frame.module)
    if grouping is Grouping.MODULE:
        return Frame(frame.module or frame.file or frame.name, "", 0, frame.side, frame.module)
    return Frame(frame.origin if grouping is Grouping.ORIGIN else frame.side, side="")


@dataclass(frozen=True, slots=True)
class Change:
    """A row of two profiles; None where one has none such."""

    frame: Frame
    before: Row | None
    after: Row | None
    own: float  # after − before
    cumulative: float


@dataclass(frozen=True, slots=True)
class Difference:
    changes: tuple[Change, ...]
    before: float  # totals
    after: float
    unit: str


def difference(before: Profile, after: Profile, grouping: Grouping = Grouping.FUNCTION, *, shares: bool) -> Difference:
    """What takes more and what takes less, the largest change first. ``shares``: of each profile's total, for two of
    different length or unit. Functions are the same by name and file; their lines may have moved."""
    first, second = table(before, grouping), table(after, grouping)
    scales = [1 / one.total if shares and one.total else 1.0 for one in (first, second)]
    old, new = (_by_place(one.rows, scale) for one, scale in zip((first, second), scales))
    changes = []
    for key in {**old, **new}:
        a, b = old.get(key), new.get(key)
        present = b or a
        assert present is not None
        own = (b.own if b else 0.0) - (a.own if a else 0.0)
        cumulative = (b.cumulative if b else 0.0) - (a.cumulative if a else 0.0)
        changes.append(Change(present.frame, a, b, own, cumulative))
    changes.sort(key=lambda change: (-abs(change.own), -abs(change.cumulative), change.frame.name))
    unit = "shares" if shares else first.unit
    return Difference(tuple(changes), first.total, second.total, unit)


def comparable(before: Profile, after: Profile) -> bool:
    """Whether the two can be subtracted as they are: one unit, and that not a number of samples of unlike rates."""
    return before.unit == after.unit and (before.unit != SAMPLES or before.period == after.period != 0)


def _by_place(rows: Sequence[Row], scale: float) -> dict[tuple[str, str, str, int], Row]:
    """By name, file and module; functions of one name in one file by their order there."""
    found: dict[tuple[str, str, str, int], Row] = {}
    for row in sorted(rows, key=lambda row: row.frame.line):
        ordinal = 0
        while (key := (row.frame.name, row.frame.file, row.frame.module, ordinal)) in found:
            ordinal += 1
        found[key] = replace(row, own=row.own * scale, cumulative=row.cumulative * scale)
    return found

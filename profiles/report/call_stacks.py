"""Stacks out of a table of calls, which has none: who called whom, and how long that took together.

A function's time is shared among its callers as the profiler measured each pair; what a function does further down is
taken to be the same whoever called it (as gprof and snakeviz take it). Self times, and so the sum, stay exact.

Functions that call each other in a circle (a module's ``forward`` calls ``__call__``, which calls the ``forward`` of
the next module) are folded, as gprof's cycles are: each stands once below where the circle is entered, on the shortest
way from there, with what it took at all depths. Who called whom within a circle, and when, is not in the table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from adbg.profiles.report.model import Call, Sample

_SMALLEST = 1e-4  # of the total: a branch that is smaller ends in its function, with all of its time
_MOST = 200_000  # stacks


def call_tree(calls: Sequence[Call]) -> tuple[Sample, ...]:
    by_frame = {call.frame: call for call in calls}
    total = sum(call.own for call in calls)
    children: dict[int, list[tuple[int, float, float]]] = defaultdict(list)  # (callee, own, cumulative) of the pair
    for call in calls:
        again = sum(row.own for row in call.callers if row.frame == call.frame)  # called by itself
        more = call.own / (call.own - again) if call.own > again else 1.0
        for row in call.callers:
            if row.frame != call.frame:
                children[row.frame].append((call.frame, row.own * more, row.cumulative))
    circles = {member: circle for circle in _circles(calls) for member in circle.members}
    found: dict[tuple[int, ...], float] = defaultdict(float)
    left = {call.frame: call.own for call in calls}
    work: list[tuple[tuple[int, ...], float, float]] = []
    for call in calls:
        if call.frame in circles:
            begun = circles[call.frame].begun.get(call.frame, 0.0)
            if begun > _SMALLEST * total:
                work.append(((call.frame,), 0.0, begun))
            continue
        inside = sum(row.own for row in call.callers)
        share = sum(row.cumulative for row in call.callers if row.frame != call.frame)
        rest = call.cumulative - share
        if not call.callers or (rest > _SMALLEST * total and call.own - inside > 0):
            work.append(((call.frame,), max(call.own - inside, 0.0) if call.callers else call.own, max(rest, 0.0)))
    while work and len(found) < _MOST:
        stack, own, cumulative = work.pop()
        frame = stack[-1]
        if frame in circles:
            for inside_it, part, below in circles[frame].entered(frame, cumulative):
                way = (*stack[:-1], *inside_it)
                part = min(part, left[way[-1]])
                if part > 0:
                    found[way] += part
                    left[way[-1]] -= part
                work += [((*way, callee), amount, more) for callee, amount, more in below]
            continue
        own = min(own, left[frame])
        if own > 0:
            found[stack] += own
            left[frame] -= own
        whole = by_frame[frame].cumulative
        scale = min(cumulative / whole, 1.0) if whole > 0 else 0.0
        if cumulative <= _SMALLEST * total:
            continue
        for callee, part, inner in children[frame]:
            if callee not in stack:
                work.append(((*stack, callee), part * scale, inner * scale))
    for frame, own in left.items():  # rounding, recursion and what was cut off: its place is not known
        if own > 1e-12:
            found[(frame,)] += own
    return tuple(Sample(stack, weight) for stack, weight in found.items())


class _Circle:
    """Functions each of which calls, through others, all of them."""

    def __init__(self, members: Sequence[Call], calls: Sequence[Call]) -> None:
        self.members = {call.frame for call in members}
        self._own = {call.frame: call.own for call in members}
        self._inner: dict[int, list[int]] = defaultdict(list)
        self._outer: dict[int, list[tuple[int, float, float]]] = defaultdict(list)
        for call in calls:
            for row in call.callers:
                if row.frame in self.members:
                    if call.frame in self.members:
                        self._inner[row.frame].append(call.frame)
                    else:
                        self._outer[row.frame].append((call.frame, row.own, row.cumulative))
        self.total = sum(self._own.values()) + sum(row[2] for rows in self._outer.values() for row in rows)
        told = sum(row.cumulative for call in members for row in call.callers if row.frame not in self.members)
        # Calls by what was entered before the profiler have no row: what is left of the time is theirs
        outside = {call.frame: call.calls - sum(row.calls for row in call.callers) for call in members}
        number = sum(count for count in outside.values() if count > 0)
        rest = max(self.total - told, 0.0)
        self.begun = {frame: rest * count / number for frame, count in outside.items() if count > 0}

    def entered(
        self, frame: int, cumulative: float
    ) -> Iterator[tuple[tuple[int, ...], float, list[tuple[int, float, float]]]]:
        """(way from ``frame``, own time, what it calls outside) of each member, for so much of the circle's time."""
        share = min(cumulative / self.total, 1.0) if self.total > 0 else 0.0
        ways: dict[int, tuple[int, ...]] = {frame: (frame,)}
        for member in (queue := [frame]):
            for callee in self._inner[member]:
                if callee not in ways:
                    ways[callee] = (*ways[member], callee)
                    queue.append(callee)
            below = [(callee, own * share, inner * share) for callee, own, inner in self._outer[member]]
            yield ways[member], self._own[member] * share, below


def _circles(calls: Sequence[Call]) -> list[_Circle]:
    """The strongly connected parts of more than one function (Kosaraju, without recursion: stacks are deep)."""
    by_frame = {call.frame: call for call in calls}
    callees: dict[int, list[int]] = defaultdict(list)
    for call in calls:
        for row in call.callers:
            if row.frame in by_frame:
                callees[row.frame].append(call.frame)
    done: set[int] = set()
    order: list[int] = []
    for call in calls:
        work = [(call.frame, iter(callees[call.frame]))] if call.frame not in done else []
        done.add(call.frame)
        while work:
            frame, rest = work[-1]
            following = next((each for each in rest if each not in done), None)
            if following is None:
                order.append(frame)
                work.pop()
            else:
                done.add(following)
                work.append((following, iter(callees[following])))
    parts: list[list[Call]] = []
    taken: set[int] = set()
    for frame in reversed(order):
        if frame in taken:
            continue
        taken.add(frame)
        part = [frame]
        for member in part:
            above = {row.frame for row in by_frame[member].callers if row.frame in by_frame} - taken
            taken |= above
            part += above
        if len(part) > 1:
            parts.append([by_frame[member] for member in part])
    return [_Circle(part, calls) for part in parts]

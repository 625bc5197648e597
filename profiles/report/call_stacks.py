"""Stacks out of a table of calls, which has none: who called whom, and how long that took together.

A function's time is shared among its callers as the profiler measured each pair; what a function does further down is
taken to be the same whoever called it (as gprof and snakeviz take it). Self times, and so the sum, stay exact.

Functions that call each other in a circle (a module's ``forward`` calls ``__call__``, which calls the ``forward`` of
the next module) are folded, as gprof's cycles are: each stands once below where the circle is entered, on the shortest
way from there, with what it took at all depths. Who called whom within a circle, and when, is not in the table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from adbg.profiles.report.model import DEEPEST, Call, Caller, Sample

_SMALLEST = 1e-4  # of the total: a branch that is smaller ends in its function, with all of its time
_MOST = 200_000  # stacks
# Times that contradict each other (each of ten layers of four functions takes as long as the whole) lead to millions
# of ways, most of which end in no stack.
_STEPS = 400_000  # calls that are looked at
_FRAMES = 20_000_000  # frames of the ways to them together

_Called = dict[int, list[tuple[int, Caller]]]  # what a function calls, and the row of the two


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
    circles = {member: circle for circle in _circles(calls, by_frame) for member in circle.members}
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
    steps, frames = _STEPS, _FRAMES
    while work and len(found) < _MOST and steps > 0 and frames > 0:
        stack, own, cumulative = work.pop()
        frame = stack[-1]
        steps -= 1
        frames -= len(stack)
        if frame in circles:
            for inside_it, part, below in circles[frame].entered(frame, cumulative, DEEPEST - len(stack)):
                way = (*stack[:-1], *inside_it)
                steps -= 1 + len(below)
                frames -= len(way) * (1 + len(below))
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
        if cumulative <= _SMALLEST * total or len(stack) >= DEEPEST:
            continue
        steps -= len(children[frame])
        for callee, part, inner in children[frame]:
            if callee not in stack:
                work.append(((*stack, callee), part * scale, inner * scale))
    for frame, own in left.items():  # rounding, recursion and what was cut off: its place is not known
        if own > 1e-12:
            found[(frame,)] += own
    return tuple(Sample(stack, weight) for stack, weight in found.items())


class _Circle:
    """Functions each of which calls, through others, all of them."""

    def __init__(self, members: Sequence[Call], called: _Called) -> None:
        self.members = {call.frame for call in members}
        self._own = {call.frame: call.own for call in members}
        self._inner: dict[int, list[int]] = defaultdict(list)
        self._outer: dict[int, list[tuple[int, float, float]]] = defaultdict(list)
        for member in self._own:
            for callee, row in called[member]:
                if callee in self.members:
                    self._inner[member].append(callee)
                else:
                    self._outer[member].append((callee, row.own, row.cumulative))
        self.total = sum(self._own.values()) + sum(row[2] for rows in self._outer.values() for row in rows)
        told = sum(row.cumulative for call in members for row in call.callers if row.frame not in self.members)
        # Calls by what was entered before the profiler have no row: what is left of the time is theirs
        outside = {call.frame: call.calls - sum(row.calls for row in call.callers) for call in members}
        number = sum(count for count in outside.values() if count > 0)
        rest = max(self.total - told, 0.0)
        self.begun = {frame: rest * count / number for frame, count in outside.items() if count > 0}

    def entered(
        self, frame: int, cumulative: float, room: int
    ) -> Iterator[tuple[tuple[int, ...], float, list[tuple[int, float, float]]]]:
        """(way from ``frame``, own time, what it calls outside) of each member, for so much of the circle's time; of
        those that no more than ``room`` calls lead to."""
        share = min(cumulative / self.total, 1.0) if self.total > 0 else 0.0
        ways: dict[int, tuple[int, ...]] = {frame: (frame,)}
        for member in (queue := [frame]):
            for callee in self._inner[member] if len(ways[member]) <= room else ():
                if callee not in ways:
                    ways[callee] = (*ways[member], callee)
                    queue.append(callee)
            below = [(callee, own * share, inner * share) for callee, own, inner in self._outer[member]]
            yield ways[member], self._own[member] * share, below


def _circles(calls: Sequence[Call], by_frame: Mapping[int, Call]) -> list[_Circle]:
    """The strongly connected parts of more than one function (Kosaraju, without recursion: stacks are deep)."""
    called: _Called = defaultdict(list)
    for call in calls:
        for row in call.callers:
            if row.frame in by_frame:
                called[row.frame].append((call.frame, row))
    done: set[int] = set()
    order: list[int] = []
    for call in calls:
        work = [(call.frame, iter(called[call.frame]))] if call.frame not in done else []
        done.add(call.frame)
        while work:
            frame, rest = work[-1]
            following = next((each for each, _ in rest if each not in done), None)
            if following is None:
                order.append(frame)
                work.pop()
            else:
                done.add(following)
                work.append((following, iter(called[following])))
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
    return [_Circle(part, called) for part in parts]

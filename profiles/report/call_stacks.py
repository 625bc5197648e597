"""Stacks out of a table of calls, which has none: who called whom, and how long that took together.

A function's time is shared among its callers as the profiler measured each pair; what a function does further down is
taken to be the same whoever called it (as gprof and snakeviz take it). Self times, and so the sum, stay exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

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
    found: dict[tuple[int, ...], float] = defaultdict(float)
    left = {call.frame: call.own for call in calls}
    work: list[tuple[tuple[int, ...], float, float]] = []
    for call in calls:
        inside = sum(row.own for row in call.callers)
        share = sum(row.cumulative for row in call.callers if row.frame != call.frame)
        rest = call.cumulative - share
        if not call.callers or (rest > _SMALLEST * total and call.own - inside > 0):
            work.append(((call.frame,), max(call.own - inside, 0.0) if call.callers else call.own, max(rest, 0.0)))
    while work and len(found) < _MOST:
        stack, own, cumulative = work.pop()
        frame = stack[-1]
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

"""cProfile's files (``.pstats``, ``.prof``): the marshalled dict of ``pstats.Stats``."""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from adbg.profiles.report.call_stacks import call_tree
from adbg.profiles.report.formats import chrome, marshalled
from adbg.profiles.report.formats.problem import FormatError, damaged
from adbg.profiles.report.model import NATIVE, PYTHON, SECONDS, Builder, Call, Caller, Frame, Profile
from adbg.profiles.report.tables import Grouping, grouped_stacks

_KIND = "pstats file"
_Key = tuple[str, int, str]
_Counts = tuple[int, int, float, float]


def is_pstats(head: bytes) -> bool:
    """A marshalled dict whose first key is a tuple of three, or that is empty. The top bit of a marshalled type says
    that the object may be referred to again; without it a dict begins with JSON's "{"."""
    if len(head) < 2 or head[0] & 0x7F != ord("{"):
        return False
    return head[1:2] == b"0" or (head[1] & 0x7F == ord(")") and head[2:3] == b"\x03")


def read(path: Path) -> Profile:
    try:
        table = marshalled.loads(path.read_bytes())
    except ValueError as error:
        raise damaged(path, _KIND, str(error)) from None
    try:
        return _profile(table)  # type: ignore[arg-type]
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise damaged(path, _KIND, f"its entries are not what pstats writes ({error})") from None


def _profile(table: dict[_Key, tuple[int, int, float, float, dict[_Key, _Counts]]]) -> Profile:
    builder = Builder()
    calls = []
    for key, (primitive, count, own, cumulative, callers) in table.items():
        rows = tuple(
            Caller(builder.frame(_frame(caller)), int(nc), int(cc), float(tt), float(ct))
            for caller, (nc, cc, tt, ct) in _callers(callers)
        )
        calls.append(Call(builder.frame(_frame(key)), int(count), int(primitive), float(own), float(cumulative), rows))
    frames = builder.frames
    samples = call_tree(calls)
    note = "stacks are estimated from who called whom: cProfile keeps none"
    return Profile(frames, samples, SECONDS, tuple(calls), lines="first", meta={"profiler": "cProfile", "note": note})


def _callers(callers: dict[_Key, _Counts]) -> Iterator[tuple[_Key, _Counts]]:
    for key, counts in callers.items():
        # cProfile writes (calls, primitive calls, own, cumulative); the old profile module a number of calls
        yield key, counts if isinstance(counts, tuple) else (counts, counts, 0.0, 0.0)


def _frame(key: _Key) -> Frame:
    file, line, name = key
    if not (isinstance(file, str) and isinstance(line, int) and isinstance(name, str)):
        raise ValueError(f"{key!r} is not (file, line, function)"[:200])
    if file == "~" and line == 0:  # a built-in function
        return Frame(name, side=NATIVE)
    return Frame(name, file, line, PYTHON)


def write(profile: Profile, path: Path) -> None:
    """As cProfile writes it. On a time line each event is a call; a sampled profile has none: there a function counts
    the stacks that it is in."""
    if profile.unit != SECONDS:
        raise FormatError(f"a pstats file has times, this profile has {profile.unit}", "write it as collapsed stacks")
    table = _counted(profile) if profile.calls else _sampled(profile)
    path.write_bytes(marshal.dumps(table))


def _key(frame: Frame) -> _Key:
    if frame.side == PYTHON or frame.file:
        return (frame.file or "?", frame.line, frame.name)
    return ("~", 0, frame.name)


def _counted(profile: Profile) -> dict[_Key, tuple[int, int, float, float, dict[_Key, _Counts]]]:
    keys = [_key(frame) for frame in profile.frames]
    return {
        keys[call.frame]: (
            call.primitive,
            call.calls,
            call.own,
            call.cumulative,
            {keys[row.frame]: (row.calls, row.primitive, row.own, row.cumulative) for row in call.callers},
        )
        for call in profile.calls
    }


def _sampled(profile: Profile) -> dict[_Key, tuple[int, int, float, float, dict[_Key, _Counts]]]:
    group = grouped_stacks(profile, Grouping.FUNCTION)
    numbers: dict[_Key, int] = {}  # frames of one key (of two libraries, of two modules) are one
    of_frame = [numbers.setdefault(_key(frame), len(numbers)) for frame in group.frames]
    keys = list(numbers)
    own = [0.0] * len(keys)
    cumulative = [0.0] * len(keys)
    counts = [0] * len(keys)
    period = profile.period
    edges: list[dict[_Key, list[float]]] = [{} for _ in keys]
    for frames, weight, _ in group.samples:
        stack = [of_frame[frame] for frame in frames]
        times = max(round(weight / period), 1) if period else 1
        for index in set(stack):
            cumulative[index] += weight
            counts[index] += times
        seen = set()
        for above, index in pairwise(stack):
            if (above, index) not in seen and above != index:
                seen.add((above, index))
                row = edges[index].setdefault(keys[above], [0, 0.0, 0.0])
                row[0] += times
                row[2] += weight
        if stack:
            own[stack[-1]] += weight
            if len(stack) > 1 and stack[-1] != stack[-2]:
                edges[stack[-1]][keys[stack[-2]]][1] += weight
    primitive = counts
    if profile.spans:
        counts, primitive = _calls(chrome.counted(profile.spans), numbers, edges, keys)
    return {
        key: (
            primitive[i], counts[i], own[i], cumulative[i],
            {caller: (int(n), int(n), tt, ct) for caller, (n, tt, ct) in edges[i].items()},
        )
        for i, key in enumerate(keys)
    }  # fmt: skip


def _calls(
    counted: chrome.Counted, numbers: dict[_Key, int], edges: list[dict[_Key, list[float]]], keys: list[_Key]
) -> tuple[list[int], list[int]]:
    """(all calls, those not within themselves) of each function, and into ``edges`` those by each of its callers."""

    def number(frame: Frame) -> int | None:
        return numbers.get(_key(replace(frame, line=0)))

    calls, primitive = [0] * len(keys), [0] * len(keys)
    for frame, count in counted.calls.items():
        if (at := number(frame)) is not None:
            calls[at] += count
            primitive[at] += counted.primitive[frame]
    for rows in edges:
        for row in rows.values():
            row[0] = 0
    for (caller, frame), count in counted.by.items():
        above, at = number(caller), number(frame)
        if above is not None and at is not None and keys[above] in edges[at]:
            edges[at][keys[above]][0] += count
    return calls, primitive

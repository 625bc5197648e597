"""Two profiles compared, as plain text. Pure; any thread."""

from __future__ import annotations

import os
from statistics import median
from textwrap import wrap

from adbg.profiles.report.comparison import Pair
from adbg.profiles.report.model import SECONDS, Profile
from adbg.profiles.report.tables import Change, Difference
from adbg.profiles.report.verdict import judge, whole
from adbg.tui.text.profile_report import amount_text, columns, place_text


def difference_lines(
    difference: Difference, names: tuple[str, str], width: int, limit: int, pair: Pair | None = None
) -> list[str]:
    """What takes more (+) and less (−) in the second of the two, below what has become of the whole. ``pair``: the
    profiles that were compared."""
    unit = difference.unit
    changed = [change for change in difference.changes if change.own or change.cumulative]
    shown = changed[:limit] if limit else changed
    heads = ["self +/-", "cumulative +/-", "self before", "after"]
    body = [(_change(change, unit), change.frame.name, place_text(change.frame)) for change in shown]
    lines = [" → ".join(told_apart(*names))]
    if pair is not None:
        lines += [part for line in became_lines(difference, pair) for part in wrap(line, width, subsequent_indent="  ")]
    lines += columns(heads, body, width)
    if len(shown) < len(changed):
        lines.append(f"{len(changed) - len(shown):,} rows more (--limit 0 shows all)")
    return lines


def told_apart(one: str, other: str) -> tuple[str, str]:
    """Names of two files: as short as tells them apart, so of two runs' profiles from the folder on that differs."""
    parts = [os.path.normpath(each).split(os.sep) for each in (one, other)]
    for back in range(1, min(map(len, parts)) + 1):
        if parts[0][-back] != parts[1][-back]:
            return os.sep.join(parts[0][-back:]), os.sep.join(parts[1][-back:])
    return (one, other) if one != other else (os.path.basename(one), os.path.basename(other))


def became_lines(difference: Difference, pair: Pair) -> list[str]:
    """The whole, the usual iteration and the verdict, before and after; and how they were compared."""
    lines = [] if pair.shares else ["total " + _became(difference.before, difference.after, difference.unit)]
    usual = [_usual_iteration(each) for each in (pair.before, pair.after)]
    if usual[0] is not None and usual[1] is not None:
        lines.append("iteration, median " + _became(usual[0], usual[1], SECONDS))
    judged = [judge(each) for each in (pair.before, pair.after)]
    if any(judged):
        words = (f"{each.bound.value} {100 * each.share:.0f}%" if each else "no verdict" for each in judged)
        lines.append(" → ".join(words))
    return lines + [f"note: {text}" for text in compared_words(pair)]


def compared_words(pair: Pair) -> list[str]:
    """How two profiles are compared, and what speaks against it."""
    told = ["in shares of each total: they have no common unit of time"] if pair.shares else []
    if pair.rounds:
        told.append(f"of one iteration each: {pair.rounds[0]:,} and {pair.rounds[1]:,} were measured")
    return [*told, *pair.notes]


def _became(before: float, after: float, unit: str) -> str:
    share = f" ({100 * (after - before) / before:+.0f}%)" if before else ""
    return f"{amount_text(before, unit)} → {amount_text(after, unit)}{share}"


def _usual_iteration(profile: Profile) -> float | None:
    rows = whole(profile.iterations) or profile.iterations
    return median(row.total for row in rows) if rows else None


def _change(change: Change, unit: str) -> list[str]:
    return [
        _signed(change.own, unit),
        _signed(change.cumulative, unit),
        amount_text(change.before.own, unit) if change.before else "new",
        amount_text(change.after.own, unit) if change.after else "gone",
    ]


def _signed(value: float, unit: str) -> str:
    return ("+" if value > 0 else "") + amount_text(value, unit)

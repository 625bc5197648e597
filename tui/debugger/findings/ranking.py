"""Findings in the order in which they are read: causes first, consequences folded under them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from adbg.engine.protocol.messages import Examined, Finding
from adbg.tui.debugger.findings.job import ends_ranks, is_aborted, is_apart, is_averaged, is_lost, is_passed_by
from adbg.tui.text.findings import Ranked

_SEVERITIES = ("error", "warning", "note")
_RESULTS = ("not applicable", "clear", "could not look", "finding")  # the last one counts, of several processes


@dataclass(frozen=True, slots=True)
class Told:
    """A finding of one process, as it told it last. ``rank`` None: not a rank of a job."""

    process: int
    rank: int | None
    finding: Finding


def ranked(told: Iterable[Told]) -> list[Ranked]:
    """What to show, numbered from 1.

    What was taken back (confidence 0) is left out, and a consequence (``victim_of``) goes under its cause. The same
    finding of several processes is one with their ranks; two of one line are one, the lesser under the other. Order:
    notes after all else, errors before warnings; then the earlier iteration, forward before backward, the higher
    confidence. That a rank lost its connection to another one, or was
    ended by its transport, follows from what ended the other, and a gradient that is
    not finite once it was averaged between ranks from what made another rank's so.
    """
    alive = {(each.process, each.finding.id): each for each in told if each.finding.confidence > 0}
    groups: dict[object, list[Told]] = {}
    for each in sorted(alive.values(), key=lambda each: (_order(each.finding), each.process)):
        groups.setdefault(_same(each.finding), []).append(each)
    home = {(each.process, each.finding.id): key for key, group in groups.items() for each in group}
    tops: dict[object, Ranked] = {}
    of_line: dict[object, object] = {}
    under: dict[object, object] = {}
    for key, group in groups.items():
        first = group[0]
        cause = home.get(_root(first, alive), key)
        line = first.finding.cause and (first.finding.cause.file, first.finding.cause.line)
        if cause != key:
            under[key] = cause
        elif line is not None and line in of_line:
            under[key] = of_line[line]
        else:
            if line is not None:
                of_line[line] = key
            tops[key] = Ranked(0, first.finding, first.process, _ranks(group))
    # Of one rank, from another one; of all ranks, from one.
    follow: list[tuple[Callable[[Finding], bool], Callable[[Told, list[Told]], bool]]] = [
        (is_lost, _ends_others),
        (is_averaged, _spread),
        (is_apart, lambda one, _: _explains(one)),
        (is_aborted, lambda one, _: ends_ranks(one.finding)),
    ]
    for follows, causes in follow:
        for key in [key for key in tops if follows(groups[key][0].finding)]:
            others = [each for each in tops if each != key and causes(groups[each][0], groups[key])]
            if others:
                under[key] = min(others, key=lambda each: _order(groups[each][0].finding))
                del tops[key]
    for key, cause in under.items():
        seen = {key}
        while cause in under and cause not in seen:  # of a cause that was folded itself
            seen.add(cause)
            cause = under[cause]
        if cause in tops:
            tops[cause] = replace(tops[cause], also=(*tops[cause].also, groups[key][0].finding))
        else:  # they name each other
            first = groups[key][0]
            tops[key] = Ranked(0, first.finding, first.process, _ranks(groups[key]))
    rows = sorted(tops.values(), key=lambda row: _order(row.finding))
    return [replace(row, number=number) for number, row in enumerate(rows, 1)]


def _order(finding: Finding) -> tuple[object, ...]:
    severity = _SEVERITIES.index(finding.severity) if finding.severity in _SEVERITIES else len(_SEVERITIES)
    early = finding.iteration if finding.iteration is not None else 0
    return severity, early, finding.backward is not None, -finding.confidence, finding.id


def _same(finding: Finding) -> object:
    """What tells it from another one, whichever process told it."""
    cause, node = finding.cause, finding.node
    if cause is None:
        return finding.kind, finding.message
    return finding.kind, cause.file, cause.line, node and (node.unique_name, node.module, node.parameter)


def _root(told: Told, alive: dict[tuple[int, int], Told]) -> tuple[int, int]:
    """The finding whose consequence it is, in the end; itself where there is none, or that was taken back."""
    here, seen = told, {told.finding.id}
    while (cause := here.finding.victim_of) is not None and cause not in seen and (told.process, cause) in alive:
        seen.add(cause)
        here = alive[told.process, cause]
    return told.process, here.finding.id


def _ends_others(told: Told, lost: list[Told]) -> bool:
    """Whether it can have ended the rank that those waited for."""
    elsewhere = told.rank is None or told.rank not in {each.rank for each in lost}
    return told.finding.severity == "error" and elsewhere and not is_lost(told.finding)


def _spread(told: Told, averaged: list[Told]) -> bool:
    """Whether those gradients can have their NaN from it."""
    one, since = told.finding, averaged[0].finding.iteration
    elsewhere = told.rank is None or told.rank not in {each.rank for each in averaged}
    early = one.iteration is None or since is None or one.iteration <= since
    return one.kind == "nonfinite" and one.severity == "error" and elsewhere and early and not is_averaged(one)


def _explains(told: Told) -> bool:
    """Whether it says why parameters drift."""
    return is_passed_by(told.finding)


def _ranks(group: list[Told]) -> tuple[int, ...]:
    return tuple(sorted({each.rank for each in group if each.rank is not None}))


def is_error(rows: Iterable[Ranked]) -> bool:
    """Something is certainly wrong."""
    return any(each.severity == "error" for row in rows for each in (row.finding, *row.also))


def merged(rows: Iterable[Examined]) -> list[Examined]:
    """What all processes came to, one row a kind, by kind."""
    found: dict[str, Examined] = {}
    for row in rows:
        before = found.get(row.kind)
        if before is None or _RESULTS.index(row.result) > _RESULTS.index(before.result):
            found[row.kind] = row
    return sorted(found.values(), key=lambda row: row.kind)

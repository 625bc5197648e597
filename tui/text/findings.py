"""Findings in words: a line each while they come, the list at the end, and what was looked at."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from adbg.engine.protocol.messages import Cause, Examined, Finding
from adbg.engine.types import SourceLine
from adbg.tui.text.formatting import file_text, place_text

NOBODY = "adbg got into no Python process of the program"
NO_BACKWARD = "nothing is known so far: no backward has ended since diagnosis was switched on"
INTERRUPTED = "SIGINT"  # of a program whose launcher hides how it ended
PROOF, ADVICE = "what proves it", "what to try"  # headings of a finding in full
_LABEL = 10  # cells of a label and what parts it from its text


@dataclass(frozen=True, slots=True)
class Ranked:
    """A finding at its place in the list, counted from 1. ``also``: what is folded under it: its consequences, and
    lesser ones of the same line. ``ranks``: those that told it, where it is a job's."""

    number: int
    finding: Finding
    process: int = 1
    ranks: tuple[int, ...] = ()
    also: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class FindingLine:
    """A line of the list: its text, a style of the app's theme, where it leads, and the number of the finding."""

    text: str
    style: str = ""
    place: SourceLine | None = None
    number: int = 0


def place_of(finding: Finding) -> SourceLine | None:
    """The line to look at: the one to change, else the one that made the node."""
    cause = finding.cause
    return SourceLine(cause.file, cause.line, cause.function) if cause is not None else finding.forward


def told_line(finding: Finding, what: str = "told", rank: int | None = None) -> str:
    """One line, as it becomes known."""
    place = place_of(finding)
    where = f" ({file_text(place.file)}:{place.line})" if place is not None else ""
    of_rank = f" of rank {rank}" if rank is not None else ""
    if what == "taken back":
        return f"taken back: {finding.kind}{of_rank}: {finding.message}"
    return f"{finding.severity}{of_rank}: {finding.kind}: {finding.message}{where}"


def cause_text(cause: Cause) -> str:
    where = f"{file_text(cause.file)}:{cause.line}"
    return f"{where} in {cause.function}" if cause.function else where


def finding_lines(row: Ranked, width: int, whole: bool = True, keys: bool = False) -> list[FindingLine]:
    """One finding: what is wrong and which line to change, then under a heading each what proves it and what to try.
    ``whole``: these too. ``keys``: commands are numbered, by the key that runs each."""
    finding, number = row.finding, row.number
    style = {"error": "bad", "warning": "warn"}.get(finding.severity, "")
    place = place_of(finding)
    ranks = f" (rank{'s' * (len(row.ranks) > 1)} {', '.join(map(str, row.ranks))})" if row.ranks else ""
    head = f"{number}. {finding.severity}  {finding.kind}{ranks}: {finding.message}"
    heads = wrap(head, width, subsequent_indent="     ", break_on_hyphens=False)
    lines = [FindingLine(text, style, place, number) for text in heads]
    if finding.cause is not None:
        lines.append(FindingLine(f"     {'change':<{_LABEL}}{cause_text(finding.cause)}", "bold", place, number))
        if finding.cause.text:
            lines.append(FindingLine(f"     {'':<{_LABEL}}    {finding.cause.text}", "code", place, number))
    if not whole:
        return lines

    def add(label: str, text: str, at: SourceLine | None = place, style: str = "") -> None:
        first, rest = f"     {label:<{_LABEL}}", " " * (5 + _LABEL)
        parts = wrap(_here(text), max(20, width - len(rest)), break_long_words=False, break_on_hyphens=False) or [""]
        for i, part in enumerate(parts):
            lines.append(FindingLine((rest if i else first) + part, style, at, number))

    node, seen = _node_text(finding), _seen_text(finding)
    lines.append(FindingLine(f"   {PROOF}", "title", place, number))
    if node:
        add("node", node, finding.forward or place)
    elif seen:
        add("seen", seen, finding.forward or place)
    for i, proof in enumerate(each for each in finding.evidence if each not in finding.advice):
        add("" if i else "evidence", proof)
    for other in row.also:
        at = place_of(other)
        where = f" ({file_text(at.file)}:{at.line})" if at is not None and at != place else ""
        add("also", f"{other.severity}: {other.kind}: {other.message}{where}", at, "dim")
    if finding.confidence < 0.9:
        add("certainty", f"{finding.confidence:.0%}", style="dim")
    if lines[-1].text.strip() == PROOF:
        del lines[-1]
    if finding.next or finding.advice:
        lines.append(FindingLine(f"   {ADVICE}", "title", place, number))
    for i, text in enumerate(finding.advice):
        add("" if i else "advice", text)
    for i, command in enumerate(finding.next):
        add("" if i else "next", f"{i + 1}  {command}" if keys else command, style="dim")
    return lines


def _here(text: str) -> str:
    """Files below the working directory as they are called from there."""
    return text.replace(os.getcwd() + os.sep, "")


def _node_text(finding: Finding) -> str:
    """The node, what made it, and when; "" where it is about none."""
    node = finding.node
    name = node and (node.unique_name or node.name)
    if node is None or not name:
        return ""
    parts = [name, f"of parameter {node.parameter}" if node.parameter else f"of module {node.module}"]
    made = [f"made at {place_text(finding.forward)}"] if finding.forward is not None else []
    return ", ".join([*parts[: 2 if node.parameter or node.module else 1], *made, *_when(finding)])


def _seen_text(finding: Finding) -> str:
    """Of what, when it was seen first, and where, unless that is the line to change."""
    node, forward = finding.node, finding.forward
    of = [f"parameter {node.parameter}"] if node is not None and node.parameter else []
    of = of or ([f"module {node.module}"] if node is not None and node.module else [])
    where = [] if forward is None or forward == place_of(finding) else [f"at {place_text(forward)}"]
    return ", ".join([*of, *where, *_when(finding)])


def _when(finding: Finding) -> list[str]:
    if finding.backward is not None:
        return [f"in backward {finding.backward}"]
    return [f"in iteration {finding.iteration}"] if finding.iteration is not None else []


def list_lines(rows: Sequence[Ranked], width: int, whole: bool = True) -> list[FindingLine]:
    """The whole list, an empty line between two."""
    lines: list[FindingLine] = []
    for row in rows:
        lines += [FindingLine("")] if lines else []
        lines += finding_lines(row, width, whole)
    return lines


def count_text(rows: Sequence[Ranked], so_far: str = "") -> str:
    """ "2 findings: 1 error, 1 note"; "1 finding, an error"; "nothing found". ``so_far``: " so far", of a program that
    may tell more."""
    if not rows:
        return f"nothing found{so_far}"
    total = len(rows)
    head = f"{total} finding{'s' * (total > 1)}{so_far}"
    counts = {name: sum(row.finding.severity == name for row in rows) for name in ("error", "warning", "note")}
    there = [name for name, count in counts.items() if count]
    if len(there) == 1:
        return f"{head}, all {there[0]}s" if total > 1 else f"{head}, {'an' if there[0] == 'error' else 'a'} {there[0]}"
    return f"{head}: " + ", ".join(f"{counts[name]} {name}{'s' * (counts[name] > 1)}" for name in there)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far diagnosis is. ``alive``: the program may tell more; ``known``: it said what it looked at; ``ended``: as
    it came to its end, or as diagnosis was switched off; ``on``: it was asked for; ``cut``: what ended the program
    before ("SIGKILL"), where that is known, or ``NOBODY``."""

    iterations: int = 0
    alive: bool = False
    known: bool = True
    ended: bool = True
    on: bool = True
    cut: str = ""


def headline(rows: Sequence[Ranked], examined: Sequence[Examined], progress: Progress) -> str:
    """The count; where none is no all-clear, why: nothing was watched, the program was cut short, detectors failed."""
    now = progress
    many = iterations_text(now.iterations)
    if now.alive and not now.ended:
        if not rows and not now.on:
            return "diagnosis is not on"
        if not now.iterations:
            return count_text(rows, " so far") if rows else NO_BACKWARD
        return f"{count_text(rows, ' so far')}, in {many}"
    if now.cut == NOBODY and not rows:
        return f"nothing was looked at: {NOBODY}"
    if not now.ended and (now.on or rows):
        told = count_text(rows) if rows else "nothing was told"
        if not now.cut:
            return f"cut short: {told} until the program ended without a word (a signal, os._exit); more may be there"
        return f"cut short by {now.cut}{f' after {many}' if now.known else ''}: {told}; more may be there"
    if not now.ended:
        return "diagnosis was not on while the program ran"
    if not rows and not now.iterations:
        return "no backward began while it watched: next to nothing was looked at"
    failed = len({row.kind for row in examined if row.result == "could not look"})
    kinds = f"{failed} kind{'s' * (failed > 1)} of findings could not be looked for"
    if failed and not rows and not any(row.result == "clear" for row in examined):
        return kinds
    return f"{count_text(rows)}, and {kinds}" if failed else count_text(rows)


def report_lines(
    rows: Sequence[Ranked], examined: Sequence[Examined], progress: Progress, words: str, width: int
) -> list[str]:
    """All of it, in lines of ``width`` cells: the headline, the findings, what was looked at, and where their commands
    are typed. ``words``: the program's, as ``adbg run`` takes it."""
    lines = [headline(rows, examined, progress), *(line.text for line in list_lines(rows, width))]
    ends = examined_lines(examined, progress, bool(rows))
    if any(not each.startswith("adbg ") for row in rows for each in row.finding.next):
        ends.append(f"`adbg run {words or 'SCRIPT'}` opens the debugger: type there what stands after `next`")
    for each in ends:
        lines += wrap(each, max(width, 20), break_on_hyphens=False)  # names of kinds stay whole
    return lines


def recorded_text(backwards: int, nodes: int, kind: str, words: str) -> str:
    """Of a run in which diagnosis was not on: what of its record was looked at, and the ``kind`` that such a run can be
    judged for. ``words`` as above."""
    off = "diagnosis was not on in this run"
    if not nodes:
        again = f"`adbg diagnose {words or 'SCRIPT'}` runs the script again, with all that it can look for"
        return f"{off}, and no node was recorded (`record on`), by which it could be judged for {kind}: {again}"
    calls = f"{backwards} backward call{'s' * (backwards != 1)}"
    return f"{off}: {nodes} node{'s' * (nodes != 1)} of {calls} were looked at, which can be judged for {kind} alone"


def iterations_text(count: int) -> str:
    return f"{count} iteration{'s' * (count != 1)}"


def taken_back_lines(findings: Sequence[Finding]) -> list[str]:
    """What the list does not show any more: the last few, each place once."""
    last = {(each.kind, each.cause): each for each in findings}
    shown = list(last.values())[-_TAKEN_BACK:]
    more = f" (and {len(last) - len(shown)} before)" if len(last) > len(shown) else ""
    return [
        f"taken back, it turned out otherwise{more if each is shown[0] else ''}: {each.kind}: {each.message}"
        for each in shown
    ]


_TAKEN_BACK = 3  # of them are shown
_SEVERAL = 8  # iterations: "not-optimized" and "no-gradient" tell in the sixth and the eighth


def examined_lines(examined: Sequence[Examined], progress: Progress, found: bool) -> list[str]:
    """What could not be looked at, a line a reason, then what was. Without a backward that is next to nothing, and no
    kind is listed as not found."""
    if not progress.known:
        told = progress.on and not progress.alive and progress.cut != NOBODY
        return ["what was looked at is not known: the program did not come to its end"] if told else []
    seen = iterations_text(progress.iterations)
    clear = [row.kind for row in examined if row.result == "clear"]
    away = [row.kind for row in examined if row.result == "not applicable"]
    reasons: dict[str, list[str]] = {}
    for row in examined:
        if row.result == "could not look":
            reasons.setdefault(row.why, []).append(row.kind)
    lines = [f"could not look for {', '.join(kinds)}: {why}" for why, kinds in reasons.items()]
    if not progress.iterations:
        if found:
            return [*lines, "no backward has begun since it watches: little else was looked for"]
        return lines
    if clear and progress.alive and not progress.ended and progress.iterations == 1:
        lines.append("the first iteration is under way: little was looked at, and what is not found is told after it")
    elif clear:
        yet = " so far" if progress.alive and not progress.ended else ""
        others = f"{len(clear)} other kind{'s' * (len(clear) > 1)} of findings" if found else ", ".join(clear)
        lines.append(
            f"not found{yet}, in {seen}: {others}" if found else f"looked for in {seen}, and not found{yet}: {others}"
        )
        if progress.iterations < _SEVERAL and (yet or not found):
            lines.append(f"what only several iterations show (what grows, what stays away) needs {_SEVERAL} or so")
    if away and not found:
        lines.append(f"nothing there to look at: {', '.join(away)}")
    return lines

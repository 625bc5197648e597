"""Findings in words: a line each while they come, the list at the end, and what was looked at."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from adbg.engine.protocol.messages import Cause, Examined, Finding
from adbg.engine.types import SourceLine
from adbg.tui.text.formatting import file_text, place_text

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
    """One finding: what is wrong, which line to change, what proves it, what shows it. ``whole``: evidence and
    commands too. ``keys``: commands are numbered, by the key that runs each."""
    finding, number = row.finding, row.number
    style = {"error": "bad", "warning": "warn"}.get(finding.severity, "")
    place = place_of(finding)
    ranks = f" (rank{'s' * (len(row.ranks) > 1)} {', '.join(map(str, row.ranks))})" if row.ranks else ""
    head = f"{number}. {finding.severity}  {finding.kind}{ranks}: {finding.message}"
    lines = [FindingLine(text, style, place, number) for text in wrap(head, width, subsequent_indent="     ")]
    if finding.cause is not None:
        lines.append(FindingLine(f"     {'change':<{_LABEL}}{cause_text(finding.cause)}", "bold", place, number))
        if finding.cause.text:
            lines.append(FindingLine(f"     {'':<{_LABEL}}    {finding.cause.text}", "code", place, number))
    if not whole:
        return lines

    def add(label: str, text: str, at: SourceLine | None = place, style: str = "") -> None:
        first, rest = f"     {label:<{_LABEL}}", " " * (5 + _LABEL)
        parts = wrap(_here(text), max(20, width - len(rest)), break_long_words=False) or [""]
        for i, part in enumerate(parts):
            lines.append(FindingLine((rest if i else first) + part, style, at, number))

    node = _node_text(finding)
    if node:
        add("node", node, finding.forward or place)
    for i, proof in enumerate(finding.evidence):
        add("" if i else "evidence", proof)
    for i, command in enumerate(finding.next):
        add("" if i else "next", f"{i + 1}  {command}" if keys else command, style="dim")
    for other in row.also:
        at = place_of(other)
        where = f" ({file_text(at.file)}:{at.line})" if at is not None and at != place else ""
        add("also", f"{other.severity}: {other.kind}: {other.message}{where}", at, "dim")
    if finding.confidence < 0.9:
        add("certainty", f"{finding.confidence:.0%}", style="dim")
    return lines


def _here(text: str) -> str:
    """Files below the working directory as they are called from there."""
    return text.replace(os.getcwd() + os.sep, "")


def _node_text(finding: Finding) -> str:
    node = finding.node
    parts = []
    if node is not None:
        name = node.unique_name or node.name
        parts += [name] if name else []
        parts += [f"of {node.parameter}"] if node.parameter else [f"of module {node.module}"] if node.module else []
    if finding.forward is not None:
        parts.append(f"made at {place_text(finding.forward)}")
    if parts and finding.backward is not None:
        parts.append(f"in backward {finding.backward}")
    elif parts and finding.iteration is not None:
        parts.append(f"certain in iteration {finding.iteration}")  # the node, or parameter, is older
    return ", ".join(parts)


def list_lines(rows: Sequence[Ranked], width: int, whole: bool = True) -> list[FindingLine]:
    """The whole list, an empty line between two."""
    lines: list[FindingLine] = []
    for row in rows:
        lines += [FindingLine("")] if lines else []
        lines += finding_lines(row, width, whole)
    return lines


def count_text(rows: Sequence[Ranked]) -> str:
    """ "2 findings: 1 error, 1 note"; "nothing found"."""
    if not rows:
        return "nothing found"
    counts = [(name, sum(row.finding.severity == name for row in rows)) for name in ("error", "warning", "note")]
    words = ", ".join(f"{count} {name}{'s' * (count > 1)}" for name, count in counts if count)
    return f"{len(rows)} finding{'s' * (len(rows) > 1)}: {words}"


def headline(rows: Sequence[Ranked], examined: Sequence[Examined], ended: bool) -> str:
    """The count, and where none is no all-clear, why: the program ended without a word, or detectors failed."""
    counts = count_text(rows)
    if not ended:
        told = counts if rows else "nothing was told"
        return f"cut short: {told} until the program ended without a word (a signal, os._exit); more may be there"
    failed = len({row.kind for row in examined if row.result == "could not look"})
    kinds = f"{failed} kind{'s' * (failed > 1)} of findings could not be looked for"
    if failed and not rows and not any(row.result == "clear" for row in examined):
        return kinds
    return f"{counts}, and {kinds}" if failed else counts


def examined_lines(examined: Sequence[Examined], iterations: int, ended: bool, found: bool) -> list[str]:
    """What could not be looked at, a line a reason, then what was. ``ended``: said so by the program, or by a stop of
    diagnosis."""
    if not ended:
        return ["what was looked at is not known: the program did not come to its end"]
    seen = f"{iterations} iteration{'s' * (iterations != 1)}"
    clear = [row.kind for row in examined if row.result == "clear"]
    away = [row.kind for row in examined if row.result == "not applicable"]
    reasons: dict[str, list[str]] = {}
    for row in examined:
        if row.result == "could not look":
            reasons.setdefault(row.why, []).append(row.kind)
    lines = [f"could not look for {', '.join(kinds)}: {why}" for why, kinds in reasons.items()]
    if not iterations:
        lines.append("no backward was called while it watched: only what shows without one was looked for")
    elif found and clear:
        lines.append(f"{len(clear)} other kind{'s' * (len(clear) > 1)} of findings were looked for in {seen}: none")
    elif clear:
        lines.append(f"looked for in {seen}, and not found: {', '.join(clear)}")
    if away and not found and iterations:
        lines.append(f"nothing there to look at: {', '.join(away)}")
    return lines

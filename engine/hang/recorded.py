"""The facts of a verdict, from the run directory: also of ranks that were killed in their collective.

What a rank called in the quarter second before it was killed is in its crash journal alone; that it was killed in the
last of these, the Python stacks tell that ``faulthandler`` left.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from adbg.engine.collectives.kept import kept_row
from adbg.engine.errors import AdbgError, CommandError
from adbg.engine.hang.conditioned import function_at
from adbg.engine.hang.standing import OPEN
from adbg.engine.hang.values import Life, RankFacts
from adbg.engine.hang.verdict import KILLED, UNKNOWN_RANK
from adbg.engine.places import source_tree
from adbg.engine.protocol.codec import from_json
from adbg.engine.protocol.messages import Collective, CollectivesBody, ProcessGroup
from adbg.engine.record.crash import crashed_labels, read_journal
from adbg.engine.record.files import labels
from adbg.engine.record.journal import faults_path, journal_path
from adbg.engine.record.reader import RunReader
from adbg.engine.types import SourceLine

_LINE = re.compile(r"(?P<file>.+):(?P<line>\d+) in (?P<function>.+)")  # as ``CrashNotes`` writes it
ROWS = 5000  # of each rank


def facts_of_run(run_dir: str | os.PathLike[str]) -> list[RankFacts]:
    """One for each process that was in a process group.

    Raises:
        CommandError: no process of the run was in one, the ranks of several are not known, or nothing can be read.
    """
    folder = Path(run_dir)
    crashed = set(crashed_labels(folder))
    found: dict[int, RankFacts] = {}
    unknown: list[RankFacts] = []
    idle: dict[int, RankFacts] = {}  # called none that is known: what C++ calls, as DDP's reducer does, has no row
    killed = _killed_at(folder, crashed)
    for label in labels(folder):
        try:
            reader = RunReader(folder, label)
        except CommandError:  # cut off before its first event
            continue
        try:
            rank, facts = reader.info.get("rank"), _rank(reader, _kept(folder, label), label in crashed, killed)
            if facts.at is not None and not facts.at.frames and facts.life is not Life.ENDED:
                facts = replace(facts, at=replace(facts.at, frames=_last_seen(folder, label)))
        finally:
            reader.close()
        if facts.at is not None and not facts.at.rows and not facts.at.groups:
            if isinstance(rank, int):
                idle[rank] = facts
        elif not isinstance(rank, int):
            unknown.append(facts)
        elif rank not in found or _speaks_for(facts) > _speaks_for(found[rank]):
            found[rank] = facts
    if unknown and not found:
        if len(unknown) > 1:
            raise CommandError(f"the ranks of the {len(unknown)} processes that are recorded in {folder} are not known")
        found[0] = unknown.pop()
    if not found:
        raise CommandError(
            f"no collective is recorded in {folder}: no process of the run was in a process group while adbg was in it",
            "a run of `adbg run` records them by itself",
        )
    found = {**idle, **found}
    ranks = [_until(found[rank], max(map(_newest, found.values()))) for rank in sorted(found)]
    return [_noted(ranks[0], UNKNOWN_RANK), *ranks[1:]] if unknown else ranks


def _speaks_for(facts: RankFacts) -> tuple[bool, float]:
    """Of two processes with one rank (its worker, or itself started again), the one that is the rank."""
    return facts.at is not None and bool(facts.at.rows), _newest(facts)


def _newest(facts: RankFacts) -> float:
    rows = facts.at.rows if facts.at is not None else []
    return max((row.ended or row.begun or 0.0 for row in rows), default=0.0)


def _until(facts: RankFacts, now: float) -> RankFacts:
    """All records of a run are of one host, and of one clock."""
    return facts if facts.at is None else replace(facts, at=replace(facts.at, now=now))


def _noted(facts: RankFacts, note: str) -> RankFacts:
    body = facts.at
    return facts if body is None else replace(facts, at=replace(body, notes=[*body.notes, note]))


def _kept(folder: Path, label: str) -> tuple[list[Collective], list[ProcessGroup]]:
    """The rows of the crash journal, of which nothing tells how they ended, and their groups. "called": it was killed
    in that."""
    entries = read_journal(journal_path(folder, label), 2)
    kept = [each for each in (kept_row(entry.fields) for entry in entries) if each is not None]
    rows, groups = [row for row, _ in kept], list({group.name: group for _, group in kept}.values())
    place = rows[-1].place if rows else None
    if place is not None:
        with contextlib.suppress(OSError):
            stacks = faults_path(folder, label).read_text(errors="replace")
            block = stacks.partition(f"hread 0x{rows[-1].thread:016x} ")[2].partition("\n\n")[0]
            at = f'File "{place.file}", line {place.line} in {place.function}'
            if "Aborted" in stacks.partition("\n")[0] and at in block:
                rows[-1] = replace(rows[-1], state="called")
    return rows, groups


def _killed_at(folder: Path, crashed: Iterable[str]) -> float:
    """When the first rank was killed in its collective: one that ended after that, for it lost its connection, did not
    end by itself. inf: none was."""
    rows = [rows[-1] for rows in (_kept(folder, label)[0] for label in crashed) if rows and rows[-1].state == "called"]
    return min((row.begun or math.inf for row in rows), default=math.inf)


def _last_seen(folder: Path, label: str) -> list[SourceLine]:
    """The forward line of the last node that the crash journal has, of one that was killed before its record was
    written: near where it was. Not of a leaf, which was made long before."""
    for entry in reversed(read_journal(journal_path(folder, label))):
        _, _, _, name, _, _, line, *_ = (*entry.fields, *[""] * 7)
        found = _LINE.fullmatch(line)
        if found is not None and "Accum" not in name:
            return [SourceLine(found["file"], int(found["line"]), found["function"])]
    return []


def _rank(
    reader: RunReader, kept: tuple[Sequence[Collective], Sequence[ProcessGroup]], crashed: bool, killed: float
) -> RankFacts:  # fmt: skip
    """``killed``: when the first rank was killed."""
    info = reader.info
    rows = reader.collectives(ROWS)
    known = max((row.id for row in rows), default=0)
    later = [row for row in kept[0] if row.id > known]
    gone = {row.thread for row in later}  # what such a thread was in has returned since
    rows = [replace(row, state="unknown") if row.state in OPEN and row.thread in gone else row for row in rows] + later
    groups = _groups(info) or list(kept[1])
    calls = reader.backwards()
    last = calls[-1] if calls else None
    over = info.get("ended") or 0.0
    outlived = over > killed
    inside = last is not None and (last.us is None or outlived)
    frames = [_place(last.file, last.line)] if last is not None and inside and last.file else []
    if not frames and rows and rows[-1].place is not None:
        frames = [rows[-1].place]
    state = reader.state
    life = Life.ENDED if over and not outlived else Life.DIED if crashed and state == "crashed" else Life.RUNNING
    body = CollectivesBody(
        rank=_number(info.get("rank")),
        pid=_number(info.get("pid")),
        now=0.0,
        total=len(rows),
        groups=groups,
        rows=rows,
        frames=frames,
        call=f"backward {last.number}" if last is not None and inside else "",
        backwards=len(calls),
        notes=[KILLED] if state == "crashed" and not crashed else [],
    )
    return RankFacts(_number(info.get("rank")), life, _number(info.get("pid")), body, recorded=True)


def _place(file: str, line: int) -> SourceLine:
    tree = source_tree(file)
    function = function_at(tree, line) if tree is not None else None
    return SourceLine(file, line, function.name if function is not None else "")


def _groups(info: Mapping[str, Any]) -> list[ProcessGroup]:
    found = info.get("process_groups")
    groups = []
    for each in found if isinstance(found, list) else ():
        try:
            groups.append(from_json(ProcessGroup, each, "process group"))
        except AdbgError:  # of another version
            continue
    return groups


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0

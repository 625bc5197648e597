"""The facts of a verdict, from the run directory: also of ranks that were killed in their collective."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from adbg.engine.errors import AdbgError, CommandError
from adbg.engine.hang.values import Life, RankFacts
from adbg.engine.hang.verdict import KILLED, UNKNOWN_RANK
from adbg.engine.protocol.codec import from_json
from adbg.engine.protocol.messages import CollectivesBody, ProcessGroup
from adbg.engine.record.crash import crashed_labels
from adbg.engine.record.files import labels
from adbg.engine.record.reader import RunReader
from adbg.engine.types import SourceLine

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
    for label in labels(folder):
        try:
            reader = RunReader(folder, label)
        except CommandError:  # cut off before its first event
            continue
        try:
            rank, facts = reader.info.get("rank"), _rank(reader, label in crashed)
        finally:
            reader.close()
        if facts is None:
            continue
        if not isinstance(rank, int):
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


def _rank(reader: RunReader, crashed: bool) -> RankFacts | None:
    info = reader.info
    rows = reader.collectives(ROWS)
    groups = _groups(info)
    if not rows and not groups:
        return None
    calls = reader.backwards()
    last = calls[-1] if calls else None
    inside = last is not None and last.us is None
    frames = [SourceLine(last.file, last.line, "")] if last is not None and inside and last.file else []
    if not frames and rows and rows[-1].place is not None:
        frames = [rows[-1].place]
    state = reader.state
    life = Life.ENDED if info.get("ended") else Life.DIED if crashed and state == "crashed" else Life.RUNNING
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

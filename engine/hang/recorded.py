"""The facts of a verdict, from the run directory: also of ranks that were killed in their collective."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adbg.engine.errors import AdbgError, CommandError
from adbg.engine.hang.values import Life, RankFacts
from adbg.engine.hang.verdict import KILLED
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
        CommandError: no process of the run was in one, or nothing can be read.
    """
    folder = Path(run_dir)
    crashed = set(crashed_labels(folder))
    found: dict[int, RankFacts] = {}
    for label in labels(folder):
        try:
            reader = RunReader(folder, label)
        except CommandError:  # cut off before its first event
            continue
        try:
            facts = _rank(reader, label in crashed)
        finally:
            reader.close()
        if facts is not None:
            found[facts.rank] = facts
    if not found:
        raise CommandError(
            f"no collective is recorded in {folder}: no process of the run was in a process group while adbg was in it",
            "a run of `adbg run` records them by itself",
        )
    return [found[rank] for rank in sorted(found)]


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
    life = Life.DIED if crashed else Life.ENDED if info.get("ended") else Life.RUNNING
    body = CollectivesBody(
        rank=_number(info.get("rank")),
        pid=_number(info.get("pid")),
        now=rows[-1].begun or 0.0 if rows else 0.0,
        total=len(rows),
        groups=groups,
        rows=rows,
        frames=frames,
        call=f"backward {last.number}" if last is not None and inside else "",
        backwards=len(calls),
        notes=[KILLED] if state == "crashed" and not crashed else [],
    )
    return RankFacts(_number(info.get("rank")), life, _number(info.get("pid")), body)


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

"""``adbg attach`` without a number where nothing can be picked: a list, or JSON lines."""

from __future__ import annotations

import json
import os

from adbg.tui.attach.offers import Offer, lines_of, offers
from adbg.tui.batch import lines


def print_list() -> None:
    """The processes, numbered by their pid, with what keeps adbg out of them."""
    rows = offers()
    if not rows:
        print("no Python process of yours runs")
        return
    for line in lines_of(rows):
        print(line)


def print_json() -> None:
    """One JSON line a process."""
    for row in offers():
        print(json.dumps(lines.as_json(_line(row)), ensure_ascii=False))


def _line(row: Offer) -> lines.Process:
    seen = row.seen
    return lines.Process(
        pid=seen.pid,
        parent=seen.parent,
        rank=seen.rank,
        frameworks=list(seen.frameworks),
        program=row.program,
        argv=list(seen.command),
        cpu=round(seen.cpu, 1),
        memory=seen.memory,
        age=round(seen.age, 1),
        state=seen.state,
        ranks=list(row.ranks),
        obstacle=row.obstacle,
        cwd=_folder(seen.pid),
    )


def _folder(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""

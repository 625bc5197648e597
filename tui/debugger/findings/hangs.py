"""What stands behind a job that hangs, as a finding."""

from __future__ import annotations

import linecache

from adbg.engine.hang.values import HangKind, HangVerdict
from adbg.engine.protocol.messages import Cause, Finding
from adbg.engine.types import SourceLine
from adbg.tui.debugger.findings.job import OWN
from adbg.tui.text.hang import hang_lines, headline

_ID = OWN + 1000  # behind those of the facts of ranks
_SURE = 0.5
_CERTAIN = (HangKind.MISMATCH, HangKind.COUNTS, HangKind.DEADLOCK)


def hang_finding(verdict: HangVerdict, over: bool = False) -> Finding | None:
    """None where nothing hangs, or it is not known why: a rank that is slow may come, and one that raised has told
    that itself. ``over``: the job has ended by it."""
    if verdict.kind not in (*_CERTAIN, HangKind.MISSING) or verdict.confidence < _SURE:
        return None
    line = _line(verdict)
    severity = "error" if over or verdict.kind in _CERTAIN else "warning"
    what = "a rank was killed because the ranks called different collectives" if over else "the job hangs"
    text = linecache.getline(line.file, line.line).strip() if line is not None else ""
    return Finding(
        _ID, "hang", severity, verdict.confidence, f"{what}: {headline(verdict)}",
        cause=Cause(line.file, line.line, line.function, text) if line is not None else None,
        evidence=[each.strip() for each in hang_lines(verdict, over)[1:] if not each.startswith("next: ")],
        next=[] if over else ["why hang"],
    )  # fmt: skip


def _line(verdict: HangVerdict) -> SourceLine | None:
    """Where the rank is that does otherwise than the others, or the call that leads only some ranks there; of a
    collective that some called more often, the condition under which the others left the loop, or its line;
    the condition on its data under which one comes to what the others passed by."""
    if verdict.condition is not None:
        return verdict.condition.call
    if verdict.left is not None and verdict.left.leaves is not None:
        return verdict.left.leaves
    if verdict.left is not None and verdict.kind is HangKind.MISSING:
        return verdict.left.loop
    if verdict.branch is not None:
        return verdict.branch.test
    if verdict.kind is HangKind.COUNTS and verdict.collective is not None:
        return verdict.collective.place
    if verdict.divergence is not None:
        rows = verdict.divergence.rows
        odd = [rank for rank in verdict.culprits if rank in rows] or sorted(rows)
        return rows[odd[0]].place if odd else None
    who = verdict.culprits or verdict.cycle or verdict.waiting
    places = {each.rank: each.place for each in verdict.standings}
    found = next((places[rank] for rank in who if places.get(rank) is not None), None)
    return found or (verdict.collective.place if verdict.collective is not None else None)

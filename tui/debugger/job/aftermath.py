"""What the ranks of a job called last, once the job is over: where one was killed in a collective that met another one
(gloo ends a process for that), no rank can be asked any more, and the run directory tells."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from adbg.engine.errors import AdbgError
from adbg.engine.hang.recorded import facts_of_run
from adbg.engine.hang.values import HangKind, HangVerdict, Life
from adbg.engine.hang.verdict import judge
from adbg.engine.record.crash import crashed_labels
from adbg.engine.record.journal import faults_path


def verdict_after(folder: str) -> HangVerdict | None:
    """None where no rank was killed, or nothing tells that it was for what the ranks called."""
    try:
        facts = facts_of_run(folder)
    except (AdbgError, OSError, sqlite3.Error):  # no process was in a group, nothing is recorded, or it is cut off
        return None
    if not any(each.life is Life.DIED for each in facts) or not _aborted(folder):
        return None
    verdict = judge(facts)
    killed = [each for each in verdict.standings if each.life is Life.DIED and each.waits is not None]
    return verdict if killed and verdict.kind in (HangKind.MISMATCH, HangKind.MISSING) else None


def _aborted(folder: str) -> bool:
    """Whether a rank ended by SIGABRT, as gloo has it: one that crashed otherwise, as it waited, is another matter.
    True where no stack says by which signal."""
    heads = []
    for label in crashed_labels(folder):
        try:
            heads.append(faults_path(Path(folder), label).read_text("utf-8", "replace").partition("\n")[0])
        except OSError:
            continue
    known = [each for each in heads if each.startswith("Fatal Python error")]
    return not known or any("Aborted" in each for each in known)

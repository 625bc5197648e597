"""What to say when the program ended and the debugger had nothing to show. Pure, any thread."""

from __future__ import annotations

import re

from adbg.engine.names import FRAMEWORKS
from adbg.engine.types import SpecKind
from adbg.tui.debugger.breakpoint_list import Breakpoint
from adbg.tui.debugger.debugger import Debugger

_MISSING = re.compile(rf"(?:No module named '|import of )({'|'.join(FRAMEWORKS)})\b")


def end_notes(debugger: Debugger) -> list[str]:
    """Why nothing stopped, one line each; empty when all is as expected, or a command ended the program."""
    if debugger.run.ended_by:
        return []
    missing = _MISSING.search(debugger.run.tail) if debugger.run.exit_code else None
    if missing and missing[1] not in debugger.run.frameworks_seen:
        return [f"the program's Python has no {missing[1]}: `adbg doctor` lists what is there and how to get it"]
    rows = [row for row in debugger.settings.breakpoints if row.enabled and row.after != debugger.run.number]
    if not (rows or debugger.settings.stop_at_entry):
        return []
    if not debugger.run.joined:
        return _silence(debugger)
    if not debugger.run.begun:
        return []
    if not debugger.run.frameworks_seen:
        return [
            f"the program never imported a framework that adbg knows ({', '.join(FRAMEWORKS)}): "
            "there was no backward to stop in"
        ]
    if debugger.run.iterations == 0 and not debugger.run.ever_stopped:
        names = ", ".join(sorted(debugger.run.frameworks_seen))
        return [f"no backward was ever called, though {names} was imported: does the script call loss.backward()?"]
    notes = []
    for row in rows:
        if not row.hits:
            why = "; ".join(filter(None, (row.message, _reason(debugger, row))))
            notes.append(f"breakpoint {row.id} ({row.spec}) was never hit{': ' + why if why else ''}")
    return notes


def _reason(debugger: Debugger, row: Breakpoint) -> str:
    cut = debugger.run.cut
    unseen = f" in the first {cut:,} nodes of a backward, and the rest ran unseen" if cut else ""
    if row.kind is SpecKind.INDEX:
        if cut:
            return f"nodes after the first {cut:,} of a backward ran unseen"
        return f"the largest backward had {debugger.run.largest} nodes"
    if row.kind is SpecKind.NONFINITE:
        return f"no nan and no inf was seen{unseen}"
    return (
        f"no {row.kind.value} was seen{unseen}"
        if row.kind in (SpecKind.NAN, SpecKind.INF)
        else f"looked at{unseen}"
        if unseen
        else ""
    )


def _silence(debugger: Debugger) -> list[str]:
    script = getattr(debugger.program, "script", None)
    if script is None:
        return []
    from adbg.engine.launch.command_line import explain_silence

    return [str(explain_silence(script.command))]

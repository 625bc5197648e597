"""Two runs of the same script, compared by what their records have of every node: where they part first."""

from __future__ import annotations

import contextlib
from pathlib import Path

from adbg.engine.protocol.messages import Finding, FoundAt
from adbg.engine.record.reader import RecordedBackward, RunReader
from adbg.tui.debugger.findings.kinds import REPEATED

_NEXT = ["adbg diagnose --deep --only run-differs SCRIPT"]  # whether it is the same node each time


def compare(first: Path, second: Path) -> Finding | None:
    """None where all that both recorded is the same to the last digit. Raises CommandError for a run without a
    record."""
    with contextlib.closing(RunReader(first)) as one, contextlib.closing(RunReader(second)) as other:
        calls, again = one.backwards(), other.backwards()
        for number, (call, same) in enumerate(zip(calls, again)):
            if (call.nodes, call.roots) != (same.nodes, same.roots):
                return _of_graphs(call, same)
            norms, others = _norms(one, call), _norms(other, same)
            for place in sorted(norms.keys() & others.keys()):
                if norms[place] != others[place]:
                    return _of_node(one, call, place, (norms[place], others[place]), number)
        if len(calls) != len(again):
            return _finding(
                f"two runs of the script differ: {len(calls)} backward calls, then {len(again)}",
                ["what both have is the same to the last digit"],
                True,
            )
    return None


def _norms(reader: RunReader, call: RecordedBackward) -> dict[tuple[int, str], str]:
    """As text: NaN is like NaN. By index and phase, not by time: threads may run nodes in any order."""
    events = reader.events(call.number)
    return {(event.index, event.phase): repr(event.norm) for event in events if event.norm is not None}


def _of_graphs(call: RecordedBackward, same: RecordedBackward) -> Finding:
    return _finding(
        f"two runs of the script differ: backward {call.number} has {call.nodes} nodes, then {same.nodes}",
        [f"it begins at {', '.join(call.roots)}, then at {', '.join(same.roots)}"],
        call.number > 1,
        backward=call.number,
    )


def _of_node(
    reader: RunReader, call: RecordedBackward, place: tuple[int, str], norms: tuple[str, str], equal: int
) -> Finding:
    index, phase = place
    row = next(iter(reader.graph(call.number, index, 1)), None)
    name = row.unique_name if row is not None else f"node #{index}"
    seeded = equal > 0
    message = f"two runs of the script differ, first at {name} in backward {call.number}"
    if not seeded:
        message += ": are its seeds set?"
    where = "what flows into it" if phase == "before" else "what leaves it"
    evidence = [f"norm of {where}: {norms[0]}, then {norms[1]}"]
    if equal:
        evidence.append(f"the {equal} backward call{'s' * (equal > 1)} before are the same to the last digit")
    return _finding(
        message,
        evidence,
        seeded,
        node=FoundAt(row.name, row.unique_name, row.module, row.parameter) if row is not None else None,
        backward=call.number,
        forward=row.forward if row is not None else None,
    )


def _finding(message: str, evidence: list[str], seeded: bool, **fields: object) -> Finding:
    """Of a script that sets no seed it says nothing: a note."""
    severity, confidence = ("warning", 0.8) if seeded else ("note", 0.4)
    if not seeded:
        evidence = [
            *evidence,
            "with seeds (of the framework, numpy and random) it would show whether it repeats itself",
        ]
    return Finding(0, REPEATED, severity, confidence, message, evidence=evidence, next=_NEXT, **fields)  # type: ignore[arg-type]

"""Two runs of the same script, compared by what their records have of every node: where they part first."""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import replace
from pathlib import Path

from adbg.engine.protocol.messages import Finding, FoundAt
from adbg.engine.record.reader import RecordedBackward, RunReader
from adbg.tui.debugger.findings.kinds import REPEATED
from adbg.tui.debugger.findings.unrepeated import likely, sources

_MOST = 4  # lines that may be it
_SAME = 2e-6  # relative
_NEXT = ["adbg diagnose --deep --only run-differs SCRIPT"]  # whether it is the same node each time


def compare(first: Path, second: Path) -> Finding | None:
    """None where the norms of all gradients that both recorded are the same. Raises CommandError for a run without a
    record."""
    with contextlib.closing(RunReader(first)) as one, contextlib.closing(RunReader(second)) as other:
        calls, again = one.backwards(), other.backwards()
        for number, (call, same) in enumerate(zip(calls, again)):
            if (call.nodes, call.roots) != (same.nodes, same.roots):
                return _with_source(_of_graphs(call, same), one, call)
            norms, others = _norms(one, call), _norms(other, same)
            for place in sorted(norms.keys() & others.keys()):
                if _differ(norms[place], others[place]):
                    both = (repr(norms[place]), repr(others[place]))
                    return _with_source(_of_node(one, call, place, both, number), one, call)
        if len(calls) != len(again):
            return _finding(
                f"two runs of the script differ: {len(calls)} backward calls, then {len(again)}",
                ["what both have is the same"],
                True,
            )
    return None


def _with_source(found: Finding, reader: RunReader, call: RecordedBackward) -> Finding:
    """The line that may make them differ, where the source has only one. The first node that differs does not tell: it
    is the last of the forward that computed with other values."""
    rows = reader.graph(call.number, 1, call.nodes or 1)
    files = [call.file, *(row.forward.file for row in rows if row.forward is not None)]
    files = [file for file in dict.fromkeys(files) if file]
    evidence = list(found.evidence)
    if found.forward is not None:
        place = f"{os.path.basename(found.forward.file)}:{found.forward.line}"
        evidence.append(f"the forward computed with other values at {place}, or before")
    one = likely(files)
    if one is not None:
        place = f"{os.path.basename(one.cause.file)}:{one.cause.line}"
        evidence.append(
            f"all that may differ between runs in the source of {_files(len(files))}: {place} has {one.what}"
        )
        return replace(found, message=f"{found.message}; {place} has {one.what}", cause=one.cause, evidence=evidence)
    several = [f"{os.path.basename(each.cause.file)}:{each.cause.line} has {each.what}" for each in sources(files)]
    return replace(found, evidence=[*evidence, *several[:_MOST]])


def _files(count: int) -> str:
    return f"{count} file{'s' * (count != 1)}"


def _norms(reader: RunReader, call: RecordedBackward) -> dict[tuple[int, str], float]:
    """By index and phase, not by time: threads may run nodes in any order."""
    events = reader.events(call.number)
    return {(event.index, event.phase): event.norm for event in events if event.norm is not None}


def _differ(one: float, other: float) -> bool:
    """The extension and the framework sum squares in another order: of the same numbers their norms may be 1e-6 apart.
    Which of them took a node's may differ from run to run."""
    same = one == other or (math.isnan(one) and math.isnan(other))
    return not same and not math.isclose(one, other, rel_tol=_SAME)


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
        evidence.append(f"the {equal} backward call{'s' * (equal > 1)} before are the same")
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

"""Findings of a recorded run: those that were told while it ran, else what its record alone can prove."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from adbg.engine.errors import CommandError
from adbg.engine.protocol.messages import DiagnosisEnds, Examined, Finding, FoundAt, RankFacts
from adbg.engine.record.files import labels, read_exit, run_state
from adbg.engine.record.reader import NodeEvent, RecordedBackward, RunReader
from adbg.engine.types import ExitStatus, GraphRow
from adbg.tui.debugger.findings.job import Job
from adbg.tui.debugger.findings.own_words import in_own_words, words_of
from adbg.tui.debugger.findings.ranking import Told, merged, ranked
from adbg.tui.text.findings import INTERRUPTED, Progress, Ranked

_WATCHES = "adbg diagnose --only nonfinite SCRIPT"  # the forward too: it names the operator and its line
KIND = "nonfinite"  # the one kind that recorded nodes can prove


@dataclass(slots=True)
class Looked:
    """What was read of a record, up to the first call in which something is not finite."""

    backwards: int = 0
    nodes: int = 0


class RecordedFindings:
    """Of every process of a run directory. ``live``: diagnosis was on in the run; else the nodes that were recorded
    are judged. ``only``: kinds, empty for all. Raises CommandError where the record cannot be read."""

    def __init__(self, folder: Path, only: Collection[str] = ()) -> None:
        self._only = frozenset(only)
        self.told: list[Told] = []
        self._ends: list[DiagnosisEnds] = []
        self.live = False
        self.looked = Looked()  # in all processes; nothing of a live one
        self._facts: list[tuple[int, RankFacts]] = []
        self._folder = folder
        self.words = ""  # the program's, for ``adbg run``
        if not labels(folder):
            raise CommandError(f"no recorded events in {folder}", "`adbg diagnose SCRIPT` runs the script again")
        for number, label in enumerate(labels(folder), 1):
            with contextlib.closing(RunReader(folder, label)) as reader:
                self._read(number, reader)
        self._compare()

    def _read(self, number: int, reader: RunReader) -> None:
        findings, end = reader.diagnosis()
        known = reader.info.get("rank")
        rank = known if isinstance(known, int) and len(labels(reader.run_dir)) > 1 else None
        if findings or end is not None:
            self.live = True
        elif not self.live:
            looked = Looked()
            findings, end = judge(reader, looked)
            self.looked.backwards += looked.backwards
            self.looked.nodes += looked.nodes
        words = words_of([str(each) for each in reader.info.get("argv") or ()], str(reader.info.get("cwd") or ""))
        self.words = self.words or words
        self.told += [
            Told(number, rank, in_own_words(finding, words)) for finding in findings if self._wanted(finding.kind)
        ]
        self._ends += [end] if end is not None else []
        self._facts += [(rank, facts) for facts in reader.rank_facts()] if rank is not None else []

    def _compare(self) -> None:
        """What the ranks told of themselves, in the order of their iterations."""
        job, last = Job(), {}
        for rank, facts in sorted(self._facts, key=lambda each: (each[1].what == "end", each[1].iteration, each[0])):
            last.update({finding.id: finding for finding in job.add(rank, facts)})
        self.told += [Told(0, None, finding) for finding in last.values() if self._wanted(finding.kind)]

    def _wanted(self, kind: str) -> bool:
        return not self._only or kind in self._only

    def ranked(self) -> list[Ranked]:
        return ranked(self.told)

    def examined(self) -> list[Examined]:
        return merged(row for end in self._ends for row in end.examined if self._wanted(row.kind))

    @property
    def iterations(self) -> int:
        return max((end.iterations for end in self._ends), default=0)

    @property
    def told_end(self) -> bool:
        return bool(self._ends) and not self._interrupted

    @property
    def _interrupted(self) -> bool:
        """Ctrl-C ended a process."""
        return any(end.interrupted for end in self._ends)

    def progress(self) -> Progress:
        """How far it came."""
        code = read_exit(self._folder)
        cut = ExitStatus(signal=-code).signal_name if code is not None and code < 0 else ""
        cut = cut or (INTERRUPTED if self._interrupted else "")
        alive = run_state(self._folder) == "running"
        return Progress(self.iterations, alive, bool(self._ends), self.told_end, True, cut)


def judge(reader: RunReader, looked: Looked) -> tuple[list[Finding], DiagnosisEnds]:
    """Where numbers first stopped being finite among the nodes that were recorded. ``looked`` is filled in."""
    calls = reader.backwards()
    losses = reader.bad_losses()
    for call in calls:
        events = reader.events(call.number)
        looked.backwards += 1
        looked.nodes += len({event.index for event in events})
        bad = next((event for event in events if event.nonfinite), None)
        if call.number in losses:
            return [_of_forward(reader, call, bad, losses[call.number])], _end(calls, "finding", "")
        if bad is not None:
            return [_origin(reader, call, events, bad)], _end(calls, "finding", "")
    if not looked.nodes:
        return [], _end(calls, "could not look", "no node was recorded: `record on`, or `adbg diagnose` of the script")
    return [], _end(calls, "clear", "")


def _end(calls: list[RecordedBackward], result: str, why: str) -> DiagnosisEnds:
    return DiagnosisEnds([Examined(KIND, result, why)], sum(call.depth == 0 for call in calls))


def _of_forward(
    reader: RunReader, call: RecordedBackward, bad: NodeEvent | None, loss: tuple[int, int, int]
) -> Finding:
    """The loss was not finite as its backward began: what backward makes of it follows, and is no origin."""
    nan, infinite, numel = loss
    where = f" in {os.path.basename(call.file)}:{call.line}" if call.file else ""
    parts = [f"{nan:,} NaN"] * bool(nan) + [f"{infinite:,} infinite"] * bool(infinite)
    evidence = [f"its root{where} had {' and '.join(parts)} of {numel:,} elements before a node ran"]
    if bad is not None:
        name = _name({row.index: row for row in reader.graph(call.number, bad.index, 1)}, bad.index)
        evidence.append(f"{name}, #{bad.index} of {call.nodes}, is the first node that shows it: a consequence")
    if not nan:
        evidence.append("a loss scaler that overflows float16 while it looks for its scale skips such a step")
    return Finding(
        id=1, kind=KIND, severity="error" if nan else "warning", confidence=0.9 if nan else 0.6,
        message=f"the loss of backward {call.number} was {'NaN' if nan else 'infinite'} already when its backward "
        "began: the forward made it so, and forwards are not recorded",
        backward=call.number, iteration=call.iteration or None, evidence=evidence, next=[_WATCHES],
    )  # fmt: skip


def _origin(reader: RunReader, call: RecordedBackward, events: list[NodeEvent], bad: NodeEvent) -> Finding:
    rows = {row.index: row for row in reader.graph(call.number, 1, call.nodes or 1)}
    row = rows.get(bad.index)
    name = _name(rows, bad.index)
    entered = next((e for e in events if e.index == bad.index and e.phase == "before"), None)
    recorded = {event.index for event in events}
    evidence: list[str] = []
    made = bad.phase == "after" and entered is not None and not entered.nonfinite
    if not made and (maker := _maker(rows, events, bad)) is not None:  # what left it was not measured
        row, entered = rows[maker.index], maker
        name, made = row.unique_name, True
        evidence.append(f"what left it, into {_name(rows, bad.index)}, was not")
    gap = bool(call.nodes) and len(recorded) < call.nodes
    if made:
        message = f"{name} made NaN or infinity from finite gradients in backward {call.number}"
        if entered is not None and entered.norm is not None:
            evidence.append(f"what flowed into it was finite: norm {entered.norm:.4g}")
    elif bad.index == 1 or (row is not None and row.name in call.roots):
        message = f"backward {call.number} was given a gradient that is not finite"
        evidence.append("the gradient that the first node got was NaN or infinite; the loss was finite")
    elif gap:
        message = f"NaN or infinity flows into {name} in backward {call.number}, from nodes that were not recorded"
    else:
        givers = [row.unique_name for row in rows.values() if bad.index in row.edges]
        message = f"NaN or infinity flows into {name} in backward {call.number}, from one of {' and '.join(givers)}"
        evidence.append("what flowed into those was finite")
    index = row.index if row is not None else bad.index
    evidence.insert(0, f"{name} is #{index} of {call.nodes} nodes of backward {call.number}")
    if gap:
        evidence.append(f"{len(recorded)} of {call.nodes} nodes were recorded: one before it may have made it")
    return Finding(
        id=1,
        kind=KIND,
        severity="error" if made and not gap else "warning",
        confidence=0.95 if made and not gap else 0.6,
        message=message,
        node=_found_at(row),
        backward=call.number,
        iteration=call.iteration or None,
        forward=row.forward if row is not None else None,
        evidence=evidence,
        next=[_WATCHES],
    )


def _name(rows: dict[int, GraphRow], index: int) -> str:
    return rows[index].unique_name if index in rows else f"node #{index}"


def _maker(rows: dict[int, GraphRow], events: list[NodeEvent], bad: NodeEvent) -> NodeEvent | None:
    """What flowed into the one node that gave ``bad`` its gradient, where that was finite: then it is the maker."""
    givers = [row.index for row in rows.values() if bad.index in row.edges]
    before = [each for each in events if each.index in givers and each.phase == "before"]
    return before[0] if bad.phase == "before" and len(givers) == 1 == len(before) and not before[0].nonfinite else None


def _found_at(row: GraphRow | None) -> FoundAt | None:
    return FoundAt(row.name, row.unique_name, row.module, row.parameter) if row is not None else None

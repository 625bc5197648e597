"""A process that a signal killed, as a finding: nothing in it could tell, so the crash journal does."""

from __future__ import annotations

import linecache
import os
from dataclasses import replace
from pathlib import Path

from adbg.engine.own_files import is_written
from adbg.engine.protocol.messages import Cause, Finding, FoundAt
from adbg.engine.record.crash import Crash, crash_of
from adbg.engine.record.faults import inner, repeated
from adbg.engine.types import SourceLine
from adbg.tui.debugger.crashes import MAIN
from adbg.tui.debugger.findings.job import OWN
from adbg.tui.debugger.findings.kinds import CRASHED

_ID = OWN + 2000  # behind those of jobs that hang
_MEANS = {
    "SIGSEGV": "memory was accessed that is not the process's",
    "SIGBUS": "memory was accessed that is not there: a file that was cut off, a full /dev/shm",
    "SIGFPE": "an integer was divided by 0 in native code",
    "SIGABRT": "native code gave up: its last words are in the output",
    "SIGILL": "native code was executed that this processor has not",
}


def crash_finding(
    folder: str, label: str, signum: int | None, number: int = 0, survived: bool = False
) -> Finding | None:  # fmt: skip
    """None where no Python stack of the crash was left: the journal alone names no line. ``number``: which process of
    those that crashed, from 0. ``survived``: it was another process of a program that came to its end."""
    crash = crash_of(Path(folder), label, signum) if folder and os.path.isdir(folder) else None
    if crash is None or not crash.frames:
        return None
    itself = repeated(crash.frames)
    place = itself if itself is not None else next(filter(_is_programs, crash.frames), None)
    cause = None
    if place is not None:
        text = linecache.getline(place.file, place.line).strip()
        cause = Cause(os.path.abspath(place.file), place.line, place.function, text)
    id, confidence = _ID + number, 0.75 if place is not None else 0.5
    evidence = _evidence(crash)
    if survived:
        confidence = 0.45
        evidence.append("the program came to its end all the same: whether it expects that decides it")
    found = Finding(
        id, CRASHED, "note" if survived else "error", confidence, _message(label, crash, place, itself), cause=cause,
        evidence=evidence,
    )  # fmt: skip
    if crash.node:
        backward, index, name, *_ = crash.node
        found = replace(found, backward=int(backward), node=FoundAt(name, f"{name}#{index}"))
    return found


def _message(label: str, crash: Crash, place: SourceLine | None, itself: SourceLine | None) -> str:
    which = "the process" if label == MAIN else f"process {label} of the program"
    told = f"{which} was killed by {crash.signal}"
    if place is not None:
        told += f" while {place.function} ran this line"
    if itself is not None:
        return f"{told}: {itself.function} calls itself until the stack is full"
    return f"{told}: {_MEANS[crash.signal]}" if crash.signal in _MEANS else told


def _evidence(crash: Crash) -> list[str]:
    found = []
    if crash.node:
        backward, index, name, *_ = crash.node
        found.append(f"node #{index} {name} of backward {backward} was running")
    itself = repeated(crash.frames)
    shown = inner(crash.frames, _is_programs)
    found += [f"at the crash: {each.file}:{each.line} in {each.function}" for each in (shown[:2] if itself else shown)]
    return found


def _is_programs(frame: SourceLine) -> bool:
    return is_written(frame.file)

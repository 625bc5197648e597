"""What is known of a crash, read from the journal and the log that the process left behind. In the front end."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from re import Match

from adbg.engine.glog import parse
from adbg.engine.record.faults import STACK_LINE, crashed_frames, signal_named
from adbg.engine.record.journal import BRIEF, BRIEF_AT, HEAD, RING, ROOM, SLOT, faults_path, journal_path
from adbg.engine.types import SourceLine

SHOWN = 6  # entries of the journal in a report
RECORDS = 8  # log records in a report
LOG_TAIL = 1 << 16  # bytes of the log that these are looked for in
STACK_LINES = 60
_RUNNING = "it was running"


def report_path(folder: Path, label: str) -> Path:
    return folder / f"crash-r{label}.txt"


@dataclass(frozen=True, slots=True)
class Entry:
    """``fields``: "before", "after", "begin" or "end", then what ``CrashNotes`` writes of it."""

    seq: int
    time: float
    fields: tuple[str, ...]


def read_journal(path: Path, ring: int = 0) -> list[Entry]:
    """Whole entries of nodes (ring 0), log records (1) or collectives (2), oldest first; [] where there is none."""
    try:
        data = path.read_bytes()[ring * RING : (ring + 1) * RING]
    except OSError:
        return []
    entries = []
    for offset in range(0, len(data) - SLOT + 1, SLOT):
        seq, when, length = HEAD.unpack_from(data, offset)
        if seq and length <= ROOM:
            text = data[offset + HEAD.size : offset + HEAD.size + length].decode("utf-8", "replace")
            entries.append(Entry(seq, when, tuple(text.split("\t"))))
    entries.sort(key=lambda entry: entry.seq)
    first = next((n for n in range(len(entries) - 1, 0, -1) if entries[n].seq != entries[n - 1].seq + 1), 0)
    return entries[first:]


def _with_brief(entries: list[Entry], path: Path) -> list[Entry]:
    """``entries``, and the last call that was not looked into, where it came after them."""
    try:
        number, begun, ended = BRIEF.unpack_from(path.read_bytes(), BRIEF_AT)
    except (OSError, struct.error):
        return entries
    last, when = (entries[-1].seq, entries[-1].time) if entries else (0, 0.0)
    added = [Entry(last + 1, begun, ("begin", str(number)))] if number and begun >= when else []
    if number and ended and ended >= when:  # it may have been looked into after its begin
        added.append(Entry(last + 2, ended, ("end", str(number))))
    return [*entries, *added]


def crashed_labels(folder: str | os.PathLike[str]) -> list[str]:
    """Processes that left a fault behind, or a report of one."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            for head, tail in (("faults-r", ".log"), ("crash-r", ".txt")):
                if entry.name.startswith(head) and entry.name.endswith(tail) and entry.stat().st_size:
                    found.add(entry.name[len(head) : -len(tail)])
    return sorted(found)


@dataclass(frozen=True, slots=True)
class Crash:
    """``frames``: of the thread that crashed, the innermost first. ``node``: what the journal knows of the node that
    ran, () where it is not known that one did: (backward, index, name, nested, module, the line that made it)."""

    signal: str
    frames: tuple[SourceLine, ...]
    node: tuple[str, ...]


def crash_of(folder: Path, label: str, signum: int | None) -> Crash | None:
    """None: nothing is known of a crash."""
    path = journal_path(folder, label)
    entries = _with_brief(read_journal(path), path)
    faults = _faults_lines(faults_path(folder, label))
    if signum is None and not faults:
        return None
    last = entries[-1] if entries else None
    running = last is not None and last.fields[0] == "before" and _state(entries, last) == _RUNNING
    node = last.fields[1:7] if last is not None and running else ()
    return Crash(_signal_name(signum, faults), crashed_frames(faults), node)


def crash_report(folder: Path, label: str, log: Path, signum: int | None) -> str:
    """What is known of a crash, as text; "" when nothing is."""
    entries = _with_brief(read_journal(journal_path(folder, label)), journal_path(folder, label))
    faults = _faults_text(faults_path(folder, label))
    records = _last_records(log, read_journal(journal_path(folder, label), 1))
    if not entries and not faults and signum is None:
        return ""
    lines = [f"crash journal: the program was killed by {_signal_name(signum, faults)}"]
    if signum == signal.SIGKILL:
        lines.append("nobody had adbg do that: often it is the kernel, when memory runs out (`dmesg` has a line then)")
    lines += _node_lines(entries)
    inside = open_customs(faults)
    if inside:
        lines.append(f"custom backwards under way, outermost first: {inside}")
    if records:
        lines += ["last log records:", *("  " + line for line in records)]
    if faults:
        lines += ["Python stacks at the crash:", *("  " + line for line in faults)]
    return "\n".join(lines)


def keep_report(folder: Path, label: str, text: str) -> str:
    """Write it beside the record; returns the path, "" when it cannot be written."""
    path = report_path(folder, label)
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError:
        return ""
    return str(path)


def _signal_name(signum: int | None, faults: Sequence[str]) -> str:
    if signum is not None:
        with contextlib.suppress(ValueError):
            return signal.Signals(signum).name
        return f"signal {signum}"
    return signal_named(faults[0].removeprefix("Fatal Python error: ")) if faults else "an unknown signal"


def _node_lines(entries: Sequence[Entry]) -> list[str]:
    if not entries:
        return ["no node was hooked, so the last one is not known: `record on` hooks every node (armed journal)"]
    nodes = [entry for entry in entries if entry.fields[0] in ("before", "after")]
    if not nodes:
        return [f"no node was hooked; last seen: {_entry_text(entries[-1])}"]
    last = nodes[-1]
    _, backward, index, name, depth, path, line, *values = (*last.fields, *[""] * 7)
    begun = last.fields[0] == "before"
    nested = f", nested {depth} deep" if depth not in ("", "0") else ""
    lines = [f"last node seen: #{index} {name} of backward {backward}{nested}; {_state(entries, last)}"]
    if line:
        lines.append(f"  made by {line}")
    if path:
        lines.append(f"  inside {path}")
    role = "grad_outputs" if begun else "grad_inputs"
    lines += [f"  {role}[{number}]  {value}" for number, value in enumerate(filter(None, values))]
    earlier = [entry for entry in entries if entry.seq < last.seq][-SHOWN:]
    if earlier:
        lines += ["before it:", *(f"  {_entry_text(entry)}" for entry in earlier)]
    later = [entry for entry in entries if entry.seq > last.seq][-SHOWN:]
    if later:
        lines += ["after it:", *(f"  {_entry_text(entry)}" for entry in later)]
    return lines


def _state(entries: Sequence[Entry], last: Entry) -> str:
    """Where the node was at the crash, ``last`` being the last entry of any node."""
    kind, backward, _, name, *_ = (*last.fields, *[""] * 4)
    if _ended(entries, backward, last.seq):
        return "that backward had ended; the crash came later"
    if kind == "after":
        return "it had ended; a node that was not hooked may have run after it"
    if any(_end_untold(entries, entry) for entry in entries if entry.fields[:4:3] == ("before", name)):
        return "it was running, or had ended and a node that was not hooked ran after it (ends were not hooked)"
    return _RUNNING


def _ended(entries: Sequence[Entry], backward: str, since: int) -> bool:
    return any(entry.seq > since and entry.fields[:2] == ("end", backward) for entry in entries)


def _end_untold(entries: Sequence[Entry], begun: Entry) -> bool:
    """What came later tells that the node ended, but no entry says so: a breakpoint by name hooks the begin alone."""
    _, backward, *node = (*begun.fields, *[""] * 4)[:4]
    later = [entry.fields for entry in entries if entry.seq > begun.seq]
    if any(fields[:4] == ("after", backward, *node) for fields in later):
        return False
    another = any(fields[:2] == ("before", backward) and fields[2:4] != (*node,) for fields in later)
    return another or _ended(entries, backward, begun.seq)


_CALLERS = (("py_layer.py", "backward"), ("function.py", "apply"))  # who calls a PyLayer's and a Function's backward


def open_customs(faults: Sequence[str]) -> str:
    """The PyLayers or Functions whose backward was under way in the thread that crashed, outermost first, by line; ""
    where ``faults``, the stacks as ``faulthandler`` writes them, show none."""
    found: list[str] = []
    below: Match[str] | None = None
    for line in faults:
        if line.startswith("Thread "):
            break
        here = STACK_LINE.match(line)
        if here is None:
            continue
        if (os.path.basename(here["file"]), here["function"]) in _CALLERS and below is not None:
            found.append(f"{os.path.basename(below['file'])}:{below['line']}")
        below = here
    return " > ".join(reversed(found))


def _entry_text(entry: Entry) -> str:
    when = time.strftime("%H:%M:%S", time.localtime(entry.time)) + f".{int(entry.time % 1 * 1e6):06d}"
    kind, backward, index, name, *rest = (*entry.fields, "", "", "")
    if kind in ("before", "after"):
        return f"{when}  {kind:<6} #{index} {name}  {'  '.join(filter(None, rest[3:]))}".rstrip()
    return f"{when}  backward {backward} {kind}s"


def _faults_lines(path: Path) -> list[str]:
    try:
        return _without_own_threads(path.read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError:
        return []


def _faults_text(path: Path) -> list[str]:
    kept = _faults_lines(path)
    if len(kept) <= STACK_LINES:
        return kept
    return [*kept[:STACK_LINES], f"... {len(kept) - STACK_LINES} lines more in {path}"]


def _without_own_threads(lines: Sequence[str]) -> list[str]:
    """The thread that crashed first, the program's other threads behind it; adbg's own waiting threads left out."""
    blocks: list[list[str]] = [[]]
    for line in lines:
        if line.strip() and not line.startswith("Extension modules:"):
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
    kept = [b for b in blocks if b and (b[0].startswith(("Current", "Fatal")) or not any(own in line for line in b))]
    kept.sort(key=lambda block: 0 if block[0].startswith("Fatal") else 1 if block[0].startswith("Current") else 2)
    return [line for block in kept for line in block]


def _last_records(log: Path, entries: Sequence[Entry]) -> list[str]:
    """The newest records, one line each: of the log's end and of the journal."""
    data = b""
    with contextlib.suppress(OSError), open(log, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_TAIL))
        data = file.read()
    found = [record for record in parse(data) if record.severity]
    known = {(record.time, record.text) for record in found}
    newer = [record for entry in entries for record in parse("\t".join(entry.fields)) if record.severity]
    found += [record for record in newer if (record.time, record.text) not in known]
    records = sorted(found, key=lambda record: record.time)[-RECORDS:]
    shown = []
    for record in records:
        text = record.text or next((line for line in record.continuation if line.strip()), "")
        more = len(record.continuation) - (not record.text)
        tail = f"  (+{more} lines)" if more > 0 else ""
        shown.append(f"{'  ' * record.indent}{record.severity} {record.file}:{record.line}] {text.strip()}{tail}")
    return shown

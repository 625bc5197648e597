"""The record of a run as one time line: iterations, backward calls, nodes, VLOG records. Main thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from adbg.engine import glog
from adbg.engine.record.files import labels
from adbg.engine.record.reader import RecordedBackward, RunReader
from adbg.profiles.report.formats import chrome
from adbg.profiles.report.model import Iteration, Profile, Span

Facts = dict[str, str | int | float]

_MICRO = 1e-6
_LONGEST = 200  # letters of a record


def is_run(path: Path) -> bool:
    """Whether it is the folder of a run."""
    return path.is_dir() and (path / "run.json").is_file()


def read(run_dir: Path) -> Profile:
    """Raises CommandError where nothing was recorded."""
    spans = [span for label in labels(run_dir) or [""] for span in _process(run_dir, label)]
    first = min((span.begin for span in spans), default=0.0)
    moved = [span._replace(begin=span.begin - first) for span in spans]
    whole = chrome.of_spans(moved, {"profiler": "record", "region": str(run_dir)})
    iterations = [span for span in moved if span.category == "iteration"]
    return replace(whole, iterations=tuple(Iteration(n, span.duration) for n, span in enumerate(iterations, 1)))


def _process(run_dir: Path, label: str) -> Iterator[Span]:
    reader = RunReader(run_dir, label)
    try:
        backwards = reader.backwards()
        process = f"program {reader.label}"
        yield from _iterations(backwards, process)
        for call in backwards:
            yield from _call(reader, call, process)
        year = datetime.now().year
        with suppress(KeyError, TypeError, ValueError):
            year = datetime.fromtimestamp(float(reader.info["started"])).year
        yield from _log(reader.log_path, year, process)
    finally:
        reader.close()


def _iterations(backwards: list[RecordedBackward], process: str) -> Iterator[Span]:
    """Each from the end of an outermost backward call to the end of the next; the first from its call's begin."""
    outermost = [call for call in backwards if call.depth == 0 and call.us is not None]
    begin = outermost[0].time if outermost else 0.0
    for number, call in enumerate(outermost, 1):
        end = call.time + (call.us or 0.0) * _MICRO
        yield Span(f"iteration {number}", "iteration", begin, max(end - begin, 0.0), "iterations", process)
        begin = end


def _call(reader: RunReader, call: RecordedBackward, process: str) -> Iterator[Span]:
    thread = f"thread {call.thread}"
    if call.us is not None:
        whole: Facts = {"file": call.file, "line": call.line, "nodes": call.nodes}
        yield Span(f"backward #{call.number}", "backward", call.time, call.us * _MICRO, thread, process, whole)
    rows = {row.index: row for row in reader.graph(call.number, 1, call.nodes or 1)}
    for event in reader.events(call.number):
        row = rows.get(event.index)
        if event.phase != "after" or event.us is None or row is None:
            continue
        took = event.us * _MICRO
        facts: Facts = {"module": row.module or ""}
        if row.forward:
            facts = {**facts, "file": row.forward.file, "line": row.forward.line}
        yield Span(row.unique_name, "node", event.time - took, took, thread, process, facts)


def _log(path: Path, year: int, process: str) -> Iterator[Span]:
    """VLOG records as moments. Their time is local and has no year."""
    try:
        data = path.read_bytes()
    except OSError:
        return
    for record in glog.parse(data):
        if not record.severity:
            continue
        with suppress(ValueError):
            moment = datetime.strptime(f"{year} {record.time}", "%Y %m%d %H:%M:%S.%f").timestamp()
            facts: Facts = {
                "level": record.level if record.level is not None else -1,
                "place": f"{record.file}:{record.line}",
            }
            yield Span(record.text[:_LONGEST], "vlog", moment, 0.0, f"VLOG of thread {record.tid}", process, facts)

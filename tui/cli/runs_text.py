"""Recorded runs listed, shown, deleted, as text on stdout. Main thread."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from adbg.engine.errors import CommandError
from adbg.engine.hang.recorded import facts_of_run
from adbg.engine.hang.verdict import judge
from adbg.engine.launch.command_line import without_interpreter
from adbg.engine.protocol.codec import to_json
from adbg.engine.record.budget import beginning
from adbg.engine.record.crash import report_path
from adbg.engine.record.files import labels
from adbg.engine.record.journal import faults_path
from adbg.engine.record.reader import RunReader
from adbg.engine.record.runs import RunSummary, delete_run, find_run, list_runs, runs_root, script_of, summary
from adbg.engine.types import ExitStatus
from adbg.tui.app.profile.artifacts import saved
from adbg.tui.text.formatting import file_text, place_in_run, table_text
from adbg.tui.text.hang import hang_lines
from adbg.tui.text.quantities import duration, size

SHOWN = 20  # backward calls and stops of each process that `show` lists
NEWEST = 25  # runs listed unasked: a screenful
DAY = 86400.0


def show_run(name: str, root: str | None) -> int:
    """Raises CommandError when no run, or several, are called so."""
    print("\n".join(run_lines(str(find_run(name, root)))))
    return 0


def why_hung(name: str, root: str | None, as_json: bool) -> int:
    """Raises CommandError when no run, or several, are called so, or it has no collectives."""
    verdict = judge(facts_of_run(find_run(name, root)))
    if as_json:
        print(json.dumps({"type": "hang", **to_json(verdict)}))
    else:
        print("\n".join(hang_lines(verdict, recorded=True)))
    return 0


def show_list(root: str | None, everything: bool) -> int:
    runs = list_runs(root)
    if not runs:
        print(f"no recorded runs in {root or runs_root()}: `adbg run SCRIPT` makes one")
        return 0
    listed = runs if everything else runs[:NEWEST]
    columns = ("name", "state", "exit", "started", "lasted", "size", "processes", "script")
    print(table_text(columns, [_row(run) for run in listed]))
    if len(listed) < len(runs):
        print(f"and {len(runs) - len(listed)} older ones: `adbg runs list --all`")
    print(f"in {root or runs_root()}; `adbg runs show NAME` says more, `adbg runs delete NAME` removes")
    return 0


def _row(run: RunSummary) -> tuple[object, ...]:
    started = datetime.fromtimestamp(run.started).strftime("%Y-%m-%d %H:%M")
    code = "" if run.exit is None else str(_ended(run.exit).status)
    state = ", ".join([run.state, *["journal"] * bool(run.crash), *["pruned"] * run.pruned])
    lasted, nbytes = f"{run.seconds:.1f} s", size(run.size, spaced=True)
    return run.name, state, code, started, lasted, nbytes, run.ranks, script_text(run)


def _ended(code: int) -> ExitStatus:
    """``code`` as ``exit.json`` counts: -9 of a program that signal 9 ended."""
    return ExitStatus(code=code) if code >= 0 else ExitStatus(signal=-code)


def _exit_text(code: int | None) -> str:
    """As a shell counts, which is what ``adbg run`` ended with too."""
    if code is None:
        return ""
    ended = _ended(code)
    return f", exit status {ended.status}{f' ({ended.signal_name})' if ended.signal_name else ''}"


def script_text(run: RunSummary) -> str:
    """The script, without the interpreter that ran it."""
    return script_of(without_interpreter(run.argv)) or run.script


def run_lines(path: str) -> list[str]:
    """One run in full."""
    run = summary(path)
    lines = [
        f"{run.name}  {run.state}{_exit_text(run.exit)}",
        f"  script   {script_text(run)}",
        f"  started  {datetime.fromtimestamp(run.started):%Y-%m-%d %H:%M:%S}, lasted {run.seconds:.1f} s",
        f"  size     {size(run.size, spaced=True)}",
        f"  folder   {run.path}",
    ]
    for label in run.crash:
        report, faults = report_path(Path(run.path), label), faults_path(Path(run.path), label)
        lines.append(f"  crash    journal of process {label}: {report if report.exists() else faults}")
    lines += [f"  profile  {each.name}: {each.what}; adbg profile {each.path}" for each in saved(str(run.path))]
    for label in labels(run.path):
        try:
            reader = RunReader(run.path, label)
        except CommandError as error:
            lines.append(f"  {label}: {error}")
            continue
        try:
            lines += _reader_lines(reader)
        finally:
            reader.close()
    return lines


def _reader_lines(reader: RunReader) -> list[str]:
    info = reader.info
    frameworks = ", ".join(
        f"{f.get('name')} {f.get('version')}" for f in info.get("frameworks", []) if isinstance(f, dict)
    )
    lines = [f"process {reader.label}: {' '.join(map(str, info.get('argv', [])))}"]
    lines += [f"  frameworks  {frameworks}"] if frameworks else []
    lines += [
        f"  {name}  {path}{_shortened(path)}"
        for name, path in (("log", reader.log_path), ("output", reader.output_path))
        if path.exists()
    ]
    calls = reader.backwards()
    if info.get("pruned"):
        limit = size(float(info.get("limit") or 0), spaced=True)
        lines.append(f"  pruned: calls before backward {info['pruned']} were removed (--record-limit {limit})")
    lines.append(f"  {len(calls)} backward call{'s' if len(calls) != 1 else ''} recorded")
    rows = [
        (
            call.number,
            call.nodes,
            "did not end" if call.us is None else duration(call.us, spaced=True),
            f"{file_text(call.file)}:{call.line}",
            call.error,
        )
        for call in calls[:SHOWN]
    ]
    if rows:
        table = table_text(("backward", "nodes", "time", "called at", "error"), rows)
        lines += ["    " + line for line in table.splitlines()]
    lines += [f"    … and {len(calls) - SHOWN} more"] if len(calls) > SHOWN else []
    collectives = reader.collectives()
    if collectives:
        waits = [row for row in collectives if row.ended is None and row.state in ("called", "waiting")]
        ended = f", {len(waits)} did not end: `adbg runs why` compares the ranks" if waits else ""
        lines.append(f"  {len(collectives)} collective{'s' if len(collectives) != 1 else ''} recorded{ended}")
    stops = list(reader.stops())
    lines.append(f"  {len(stops)} stop{'s' if len(stops) != 1 else ''} recorded")
    lines += [f"    {stop.reason.value}: {place_in_run(stop)}" for _, _, stop in stops[:SHOWN]]
    lines += [f"    … and {len(stops) - SHOWN} more"] if len(stops) > SHOWN else []
    hits = [(id, text) for _, _, kind, id, text in reader.artifacts() if kind == "trace"]
    lines += [f"  {len(hits)} trace hit{'s' if len(hits) != 1 else ''} recorded"] if hits else []
    lines += [f"    trace {id}: {text}" for id, text in hits[:SHOWN]]
    lines += [f"    … and {len(hits) - SHOWN} more"] if len(hits) > SHOWN else []
    return lines


def _shortened(path: Path) -> str:
    gone = beginning(path)
    return f" (its first {size(gone, spaced=True)} were removed)" if gone else ""


def delete_runs(names: Sequence[str], older: float | None, force: bool, root: str | None) -> int:
    """Delete the named runs, and those that ended more than ``older`` days ago. Raises CommandError."""
    paths = [str(find_run(name, root)) for name in names]
    if older is not None:
        limit = time.time() - older * DAY
        paths += [r.path for r in list_runs(root) if r.started + r.seconds < limit and r.state != "running"]
    elif not paths:
        raise CommandError("which run?", "adbg runs delete NAME…, or --older DAYS")
    for path in dict.fromkeys(paths):
        delete_run(path, force)
        print(f"deleted {path}")
    if not paths:
        print(f"no run is older than {older:g} days")
    return 0

"""``adbg diagnose`` where nothing can be looked at, of runs that are only read, and what it refuses: no framework."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from support.program import adbg

from adbg.engine.launch.command_line import program_python
from adbg.engine.protocol.codec import to_json
from adbg.engine.protocol.messages import Cause, DiagnosisEnds, Examined, Finding, Found
from adbg.engine.record.recorder import Recorder

FOUND = Finding(
    1, "zero-grad", "error", 0.97, "gradients add up", cause=Cause("/train.py", 9, "", "opt.step()"),
    evidence=["norms 1, 2, 3"], next=["p grad", "adbg diagnose --deep SCRIPT"],
)  # fmt: skip
SINCE_SCHEMA = {2: (), 3: ("collective",), 4: ("nodes_ran", "same_graph")}  # tables that came with it


def recorded(folder: Path, *artifacts: tuple[str, object], schema: int = 4) -> Path:
    """A run directory as a process of ``train.py 4`` leaves it, of an earlier schema too."""
    folder.mkdir()
    recorder = Recorder.open(folder, argv=[program_python(), "train.py", "4"], cwd=str(folder.parent), schema=schema)
    for kind, value in artifacts:
        recorder.artifact(kind, "1", json.dumps(to_json(value)))
    recorder.close()
    database = sqlite3.connect(folder / "events-r0.sqlite")
    for since, tables in SINCE_SCHEMA.items():
        for table in tables if since > schema else ():
            database.execute(f"DROP TABLE {table}")
    database.commit()
    database.close()
    return folder


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        ((), 2, "the script is missing (for example: adbg diagnose train.py"),
        (("--only", ",", "quiet.py"), 2, "no kind in --only ',' (for example: --only nonfinite,in-place)"),
        (("--only", "nonfinit", "quiet.py"), 2, "unknown kind of finding 'nonfinit' (closest: nonfinite"),
        (("--iterations", "0", "quiet.py"), 2, "expected a number of iterations from 1, got '0'"),
        (("absent.py",), 2, "no such script: absent.py"),
        (("absent",), 2, "no such file, and no run 'absent' in "),
        (("2026",), 2, "'2026' names 2 runs (one of: "),
        (
            ("--deep", "--timeout", "9", "20260102-b"),
            2,
            "20260102-b is a recorded run, which is read and not run (leave",
        ),
        (("./empty",), 2, "./empty is no run directory, and has no __main__.py to run (`adbg runs` lists runs)"),
        (("quiet.py",), 3, "diagnosis: no backward began while it watched: next to nothing was looked at"),
        (("--", "sh", "-c", "exit 7"), 7, "diagnosis: nothing was looked at: adbg got into no Python process of the"),
    ],
    ids=lambda value: "_".join(value)[:24] if isinstance(value, tuple) else "",
)
def test_what_is_said_where_nothing_is_found(
    words: tuple[str, ...], status: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, with what to do next, and in JSON nothing but lines of JSON; no all-clear in either."""
    (tmp_path / "quiet.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "empty").mkdir()
    for name in ("20260101-a", "20260102-b"):
        recorded(tmp_path / name)
    monkeypatch.setenv("ADBG_RUNS", str(tmp_path))
    lines = adbg("diagnose", "--json", *words, cwd=tmp_path)
    text = adbg("diagnose", *words, cwd=tmp_path) if status != 2 else lines  # what is refused goes to stderr in both
    assert (text.status, lines.status) == (status, status) and "nothing found" not in text.stderr, str(text)
    assert says in text.stderr and "Traceback" not in text.stderr + lines.stderr, str(text)
    assert lines.stdout.count("\n") == len(lines.lines) and bool(lines.lines) is (status != 2), str(lines)
    if status != 2:
        assert lines.lines[-1]["type"] == "diagnosis" and not lines.lines[-1]["findings"], str(lines)


@pytest.mark.parametrize("schema", [1, 2, 3, 4])
def test_a_run_of_any_schema_is_read(schema: int, tmp_path: Path) -> None:
    end = DiagnosisEnds([Examined("zero-grad", "finding"), Examined("in-place", "clear")], 4)
    folder = recorded(tmp_path / "run", ("finding", Found(FOUND)), ("diagnosis", end), schema=schema)
    text, lines = adbg("diagnose", folder, cwd=tmp_path), adbg("diagnose", "--json", folder, cwd=tmp_path)
    assert text.status == lines.status == 1, str(text)
    assert text.stdout.startswith("1 finding, an error\n1. error  zero-grad: gradients add up\n"), str(text)
    for said in (
        "adbg diagnose --deep train.py 4",
        "`adbg run train.py 4` opens the debugger",
        "in 4 iterations: 1 oth",
    ):
        assert said in text.stdout, str(text)
    finding, last = lines.lines
    assert finding["next"] == ["p grad", "adbg diagnose --deep train.py 4"] and last["whole"] is True, str(lines)
    folder.joinpath("events-r0.sqlite").unlink()
    gone = adbg("diagnose", folder, cwd=tmp_path)
    assert gone.status == 2 and "no recorded events in" in gone.stderr, str(gone)

"""Recording and reading back: every table, readers beside the writer, all the ways a record can fail or be cut off."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.record_samples import EDGES, ROWS, STACK, STOP

from adbg.engine.errors import CommandError
from adbg.engine.node_batch import ROW
from adbg.engine.record import recorder as recorder_module
from adbg.engine.record.files import labels
from adbg.engine.record.reader import RunReader
from adbg.engine.record.recorder import Recorder
from adbg.engine.record.writer import RunWriter
from adbg.engine.types import BriefCall, BriefRun, BriefRuns, Edge


@pytest.fixture
def problems() -> list[str]:
    return []


@pytest.fixture
def recorder(tmp_path: Path, problems: list[str]) -> Iterator[Recorder]:
    recorder = Recorder.open(tmp_path / "run", 0, problems.append, argv=["train.py", "--lr", "1"], frameworks=[])
    assert recorder.recording, problems
    yield recorder
    recorder.close()


def record_all(recorder: Recorder) -> None:
    recorder.backward_begin(
        1, nodes=3, roots=["BmmBackward0"], file="/me/train.py", line=88, thread=7, iteration=4, create_graph=True
    )
    recorder.graph(1, ROWS, {1: STACK, 2: STACK}, EDGES)
    recorder.node_event(1, 1, "before", norm=0.5)
    recorder.node_event(1, 1, "after", 41.0)
    recorder.log("I1121 00:54:27.615494 22261 nodes:4] é first")
    recorder.node_event(1, 2, "before", norm=math.nan, nonfinite=True)
    recorder.stop(STOP)
    recorder.artifact("graph", "/me/graph.dot", "3 nodes")
    recorder.log("I1121 00:54:27.615494 22261 nodes:4] second\n")


def test_what_is_recorded_is_read_back(recorder: Recorder) -> None:
    record_all(recorder)
    assert recorder.flush(10)
    reader = RunReader(recorder.run_dir)
    (backward,) = reader.backwards()
    assert (backward.number, backward.nodes, backward.roots, backward.file, backward.line) == (
        1,
        3,
        ("BmmBackward0",),
        "/me/train.py",
        88,
    )
    assert (backward.thread, backward.iteration, backward.create_graph, backward.us) == (7, 4, True, None)
    rows = reader.graph(1)
    assert [row.edges for row in rows] == [(2, 3), (3,), ()]
    assert reader.edges(1) == {11: (Edge(0, 12), Edge(1, None), Edge(2, 13, 1)), 12: (Edge(0, 13),)}
    assert [row.state for row in rows] == ["done", "done", "todo"]
    assert (rows[0].us, rows[0].norm, rows[0].forward, rows[0].shape, rows[0].dtype) == (
        41.0,
        0.5,
        STACK[0],
        (2, 4),
        "f32",
    )
    assert math.isnan(rows[1].norm or 0) and rows[1].nonfinite and rows[1].custom and rows[1].shape == ()
    assert (rows[2].accumulate, rows[2].parameter, rows[2].shape) == (True, "w", None)
    assert [row.index for row in reader.graph(1, 2, 1)] == [2]
    assert reader.forward_stack(1, 1) == reader.forward_stack(1, 2) == STACK and reader.forward_stack(1, 3) == []
    assert [stop for _, _, stop in reader.stops()] == [STOP]
    assert reader.artifacts()[0][2:] == ("graph", "/me/graph.dot", "3 nodes")
    recorder.backward_end(1, 1234.5, "ValueError: x")
    recorder.flush(10)
    (backward,) = reader.backwards()
    assert (backward.us, backward.error) == (1234.5, "ValueError: x")


def test_one_counter_orders_events_stops_and_log(recorder: Recorder) -> None:
    record_all(recorder)
    recorder.backward_end(1, 5.0)
    recorder.flush(10)
    reader = RunReader(recorder.run_dir)
    (backward,) = reader.backwards()
    log = reader.log_index()
    happened = {
        backward.seq: "begin", backward.end_seq: "end",
        **{event.seq: f"{event.phase} {event.index}" for event in reader.events(1)},
        **{seq: "log" for seq, _, _ in log},
        **{seq: "stop" for seq, _, _ in reader.stops()},
        **{row[0]: "artifact" for row in reader.artifacts()},
    }  # fmt: skip
    assert [happened[seq] for seq in sorted(happened)] == [
        "begin", "before 1", "after 1", "log", "before 2", "stop", "artifact", "log", "end",
    ]  # fmt: skip
    data = reader.log_path.read_bytes()
    texts = [data[offset : offset + length].decode() for _, offset, length in log]
    assert [text[-9:] for text in texts] == ["] é first\n"[-9:], "] second\n"[-9:]]
    assert reader.events(1, after=reader.events(1)[0].seq)[0].phase == "after"


def test_files_are_private_and_named_as_the_design_says(recorder: Recorder) -> None:
    record_all(recorder)
    recorder.close()
    run = Path(recorder._writer.run_dir)  # type: ignore[union-attr]
    assert sorted(path.name for path in run.iterdir()) == [
        "events-r0.sqlite",
        "run.json",
        "vlog-r0.log",
    ]
    assert {path.stat().st_mode & 0o777 for path in run.iterdir()} == {0o600}
    assert run.stat().st_mode & 0o777 == 0o700
    info = json.loads((run / "run.json").read_text())
    assert info["argv"] == ["train.py", "--lr", "1"] and info["schema"] == 4 and info["ended"] >= info["started"]


def test_run_json_follows_the_run(recorder: Recorder) -> None:
    reader_info = lambda: RunReader(recorder._writer.run_dir).info  # type: ignore[union-attr]  # noqa: E731
    recorder.update_info(frameworks=[{"name": "torch"}])
    recorder.flush(10)
    assert reader_info()["frameworks"] == [{"name": "torch"}]
    assert RunReader(recorder.run_dir).state == "running"
    recorder.close()
    assert RunReader(recorder._writer.run_dir).state == "ended"  # type: ignore[union-attr]


def test_a_run_of_the_first_schema_is_read(recorder: Recorder) -> None:
    record_all(recorder)
    recorder.flush(10)
    run = recorder.run_dir
    recorder.close()
    with sqlite3.connect(Path(run) / "events-r0.sqlite") as db:
        db.execute("DROP TABLE edge")
        db.execute("CREATE TABLE edge (backward, idx, slot, to_idx, PRIMARY KEY (backward, idx, slot)) WITHOUT ROWID")
        db.executemany("INSERT INTO edge VALUES (1, ?, ?, ?)", [(1, 0, 2), (1, 1, 3), (2, 0, 3)])
    reader = RunReader(run)
    assert [row.edges for row in reader.graph(1)] == [(2, 3), (3,), ()]
    assert reader.edges(1) == {11: (Edge(0, 12), Edge(1, 13)), 12: (Edge(0, 13),)}


def test_a_closed_recorder_takes_everything_and_records_nothing(recorder: Recorder) -> None:
    recorder.close()
    recorder.close()
    record_all(recorder)
    assert not recorder.recording and not recorder.flush() and recorder.run_dir == ""


def test_many_threads_lose_nothing(recorder: Recorder, problems: list[str]) -> None:
    def write(thread: int) -> None:
        for i in range(1, 2001):
            recorder.node_event(thread, i, "after", 1.0)
            if i % 100 == 0:
                recorder.log(f"thread {thread} at {i}")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert recorder.flush(30) and recorder.dropped == 0 and problems == []
    reader = RunReader(recorder.run_dir)
    events = reader.events()
    assert len(events) == 8000 and len({event.seq for event in events}) == 8000
    assert [event.index for event in events if event.backward == 3] == list(range(1, 2001))
    assert len(reader.log_index()) == 80


def test_a_reader_beside_the_writer_sees_whole_transactions(recorder: Recorder) -> None:
    recorder.flush(10)
    reader = RunReader(recorder.run_dir)
    seen = [len(reader.events())]
    for _ in range(20):
        for i in range(300):
            recorder.node_event(1, i, "after")
        recorder.flush(10)
        seen.append(len(reader.events()))
    assert seen == [300 * i for i in range(21)]


def test_under_pressure_log_and_events_are_dropped_and_counted_stops_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "MAX_LOGS", 10)
    monkeypatch.setattr(recorder_module, "MAX_EVENTS", 20)
    held = threading.Event()
    write = RunWriter.write
    monkeypatch.setattr(RunWriter, "write", lambda self, *args: (held.wait(20), write(self, *args)))
    recorder = Recorder.open(tmp_path / "run")
    recorder.artifact("first", "")  # the recorder's thread is now held in its write
    deadline = time.monotonic() + 10
    while recorder._queue and time.monotonic() < deadline:
        time.sleep(0.01)
    for i in range(50):
        recorder.log(f"line {i}")
        recorder.node_event(1, i, "after")
        recorder.stop(STOP)
    dropped = recorder.dropped
    held.set()
    assert recorder.flush(20)
    reader = RunReader(recorder.run_dir)
    assert len(reader.stops()) == 50
    assert dropped == recorder.dropped == 100 - len(reader.log_index()) - len(reader.events())
    assert 0 < len(reader.log_index()) < len(reader.events()) < 50
    recorder.close()
    assert reader.info["dropped"] == dropped


# ------------------------------------------------------------------ failures


def expect_no_recording(run_dir: Any, reason: str) -> None:
    problems: list[str] = []
    recorder = Recorder.open(run_dir, 0, problems.append)
    record_all(recorder)
    recorder.close()
    assert not recorder.recording and recorder.run_dir == ""
    assert len(problems) == 1
    assert reason in problems[0] and "debugging continues without a record" in problems[0] and "\n" not in problems[0]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    expect_no_recording(tmp_path / "file" / "run", "Not a directory")
    expect_no_recording(tmp_path / "file", "File exists")


@pytest.mark.skipif(not os.path.isdir("/sys/kernel"), reason="needs a folder that nobody can write")
def test_a_folder_that_nobody_can_write() -> None:
    problems: list[str] = []
    assert not Recorder.open("/sys/kernel/adbg-run", 0, problems.append).recording
    assert len(problems) == 1 and "nothing is recorded" in problems[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not hold for root")
def test_a_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        expect_no_recording(tmp_path / "run", "Permission denied")
    finally:
        tmp_path.chmod(0o700)


def test_a_database_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(sqlite3, "connect", refuse)
    expect_no_recording(tmp_path / "run", "disk I/O error")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device"),
        (sqlite3.OperationalError("database or disk is full"), "database or disk is full"),
        (RuntimeError("odd"), "a defect of adbg: RuntimeError: odd"),
    ],
)
def test_a_write_that_fails_ends_the_recording_once(
    recorder: Recorder, problems: list[str], monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    recorder.node_event(1, 1, "after")
    assert recorder.flush(10)
    run_dir = recorder.run_dir

    def fail(*args: Any) -> None:
        raise error

    monkeypatch.setattr(RunWriter, "append_log", fail)
    recorder.log("x")
    assert not recorder.flush(10)
    for _ in range(3):
        record_all(recorder)
    recorder.close()
    assert len(problems) == 1 and reason in problems[0] and "continues without a record" in problems[0]
    assert not recorder.recording and not recorder._queue
    reader = RunReader(run_dir)
    assert len(reader.events()) == 1 and reason in reader.info["problem"]


def test_on_problem_may_fail(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not Recorder.open(tmp_path / "file", 0, lambda text: 1 / 0).recording


def run_python(code: str, *args: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **kwargs)


def test_a_full_disk_ends_the_record_and_not_the_program(tmp_path: Path) -> None:
    """RLIMIT_FSIZE makes write() fail in mid-file as a full disk does, log and database alike."""
    code = """
        import resource, sys
        from adbg.engine.record.recorder import Recorder
        problems = []
        recorder = Recorder.open(sys.argv[1], 0, problems.append)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        for i in range(40_000):
            recorder.node_event(1, i, "after", 1.0, 2.0)
            if i % 1000 == 0:
                recorder.flush()
        recorder.close()
        print(len(problems), recorder.recording, problems[0])
        """
    done = run_python(code, str(tmp_path / "run"))
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("1 False recording stopped: ") and done.stdout.count("\n") == 1
    kept = RunReader(tmp_path / "run").events()
    assert 500 <= len(kept) < 40_000 and [event.index for event in kept] == list(range(len(kept)))


WRITE_FOR_EVER = """
    import sys, itertools, time
    from adbg.engine.record.recorder import Recorder
    recorder = Recorder.open(sys.argv[1], 0, print)
    recorder.backward_begin(1, nodes=5, roots=["A"])
    for i in itertools.count(1):
        recorder.node_event(1, i, "after", 1.0)
        recorder.log(f"record {i}")
        if i == 3000:
            recorder.flush(30)
            print("ready", flush=True)
        if i > 3000:
            time.sleep(0.0005)
    """


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_writer_that_crashes_leaves_a_readable_run(tmp_path: Path, number: signal.Signals) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-c", textwrap.dedent(WRITE_FOR_EVER), str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            live = RunReader(run)
            assert live.state == "running" and len(live.events()) >= 3000
            process.send_signal(number)
            assert process.wait(20) == -number
        finally:
            process.kill()
    reader = RunReader(run)
    assert reader.state == "crashed" and reader.info["ended"] is None
    events = reader.events(1)
    assert [event.index for event in events] == list(range(1, len(events) + 1)) and len(events) >= 3000
    data = reader.log_path.read_bytes()
    for _, offset, length in reader.log_index()[::500]:
        assert data[offset : offset + length].startswith(b"record ")
    (backward,) = reader.backwards()
    assert backward.us is None and backward.end_seq is None


def test_a_program_that_just_ends_closes_its_record(tmp_path: Path) -> None:
    code = """
        import sys
        from adbg.engine.record.recorder import Recorder
        recorder = Recorder.open(sys.argv[1], 0, print)
        recorder.node_event(1, 1, "after")
        raise SystemExit(3)
        """
    assert run_python(code, str(tmp_path / "run")).returncode == 3
    reader = RunReader(tmp_path / "run")
    assert reader.state == "ended" and len(reader.events()) == 1


def test_a_forked_child_leaves_the_record_alone(tmp_path: Path) -> None:
    code = """
        import os, sys, warnings
        from adbg.engine.record.recorder import Recorder
        recorder = Recorder.open(sys.argv[1], 0, print)
        recorder.node_event(1, 1, "after"); recorder.flush()
        warnings.simplefilter("ignore")  # Python 3.12 warns of the recorder's thread; an agent sees to that
        pid = os.fork()
        if pid == 0:
            assert not recorder.recording and not recorder.flush(0.1)
            recorder.node_event(1, 99, "after"); recorder.close()
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        recorder.node_event(1, 2, "after"); recorder.close()
        """
    done = run_python(code, str(tmp_path / "run"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [event.index for event in RunReader(tmp_path / "run").events()] == [1, 2]


def test_processes_of_one_rank_and_of_others_do_not_meet(tmp_path: Path, recorder: Recorder) -> None:
    code = """
        import sys
        from adbg.engine.record.recorder import Recorder
        recorder = Recorder.open(sys.argv[1], int(sys.argv[2]), print, argv=["child"])
        recorder.node_event(int(sys.argv[2]), 5, "after")
        """
    for rank in ("0", "1"):
        assert run_python(code, recorder.run_dir, rank).stdout == ""
    recorder.node_event(1, 1, "after")
    recorder.flush(10)
    found = labels(recorder.run_dir)
    assert len(found) == 3 and found[0] == "0" and found[1].startswith("0-") and found[2] == "1"
    assert [RunReader(recorder.run_dir, label).info["argv"][0] for label in found] == ["train.py", "child", "child"]
    assert [[event.index for event in RunReader(recorder.run_dir, label).events()] for label in found] == [
        [1],
        [5],
        [5],
    ]
    assert [RunReader(recorder.run_dir, label).state for label in found] == ["running", "ended", "ended"]


def test_reading_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="No such file"):
        RunReader(tmp_path / "nothing")
    with pytest.raises(CommandError, match="no recorded events"):
        RunReader(tmp_path)
    (tmp_path / "events-r0.sqlite").write_text("this is no database" * 100)
    with pytest.raises(CommandError, match="cannot be read"):
        RunReader(tmp_path)


def test_the_recorders_thread_sleeps_while_nothing_happens(recorder: Recorder) -> None:
    recorder.node_event(1, 1, "after")
    recorder.flush(10)
    time.sleep(0.1)
    assert recorder._thread is not None
    ticks = Path(f"/proc/self/task/{recorder._thread.native_id}/stat")
    if not ticks.exists():
        pytest.skip("needs /proc")
    switches = Path(f"/proc/self/task/{recorder._thread.native_id}/status")

    def count() -> int:
        return sum(int(line.split()[1]) for line in switches.read_text().splitlines() if "ctxt_switches" in line)

    before = count()
    time.sleep(0.3)
    assert count() == before


def test_a_call_began_when_it_began_and_not_when_its_graph_was_walked(recorder: Recorder) -> None:
    recorder.backward_begin(1, ago=5.0)
    recorder.backward_begin(2)
    recorder.flush(10)
    first, second = RunReader(recorder.run_dir, "0").backwards()
    assert second.time - first.time == pytest.approx(5.0, abs=1.0) and time.time() - second.time < 60


def test_many_calls_at_once_are_recorded_as_one_by_one(tmp_path: Path) -> None:
    """To the last figure; numbers go on behind them."""
    rows = tuple(b"".join(ROW.pack(n, n, 10 * n, of / n, 1.5 * n, 1, 1) for n in range(1, 4)) for of in (1, 2, 3))
    call = BriefCall(7, 3, ("A", "B"), "grad", 7, 2, "/me/train.py", 88)
    told = BriefRuns(call, (1.0, 2.0, 3.0), (10.0, 20.0, 30.0), rows, 1)
    found = []
    for together in (True, False):
        recorder = Recorder.open(tmp_path / f"run{together}")
        if together:
            recorder.briefs(told)
        else:
            for at, (began, us) in enumerate(zip(told.began, told.us)):
                each = call._replace(number=7 + at, iteration=7 + at)
                recorder.brief(BriefRun(each, began, False, us), rows[at], 1)
        recorder.log("after")
        recorder.close()
        reader = RunReader(tmp_path / f"run{together}")
        events = [replace(event, time=0.0) for event in reader.events()]
        found.append((reader.backwards(), events, reader.log_index(), reader._source(9)))
    assert found[0] == found[1] and [each.number for each in found[0][0]] == [7, 8, 9] and len(found[0][1]) == 18


def test_under_pressure_nodes_of_many_calls_are_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "MAX_PACKED", 2 * ROW.size)
    monkeypatch.setattr(recorder_module, "PACK", 1)  # an entry for each call
    recorder = Recorder.open(tmp_path / "run")
    call = BriefCall(1, 1, ("A",), "backward", 1, 0, "/me/train.py", 88)
    row = ROW.pack(1, 1, 10, 1.0, 1.0, 1, 1)
    held = threading.Event()
    drain, recorder._drain = recorder._drain, lambda writer: held.wait(10) and drain(writer)
    recorder.briefs(BriefRuns(call, (1.0,) * 9, (5.0,) * 9, (row,) * 9, 1))
    held.set()
    recorder.close()
    reader = RunReader(tmp_path / "run")
    assert [each.number for each in reader.backwards()] == list(range(1, 10)), "calls are never dropped"
    assert len(reader.events()) == 2 * 2 and recorder.dropped == 7 and reader.info["dropped"] == 7

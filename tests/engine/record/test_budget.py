"""A record keeps to its budget: what is oldest goes, what is kept is whole, and it is told."""

from __future__ import annotations

import dataclasses
import os
import struct
from pathlib import Path

import pytest
from support.record_samples import EDGES, ROWS, STACK, STOP

from adbg.engine.launch.keeper.output_log import OutputLog
from adbg.engine.record import budget
from adbg.engine.record.reader import RunReader
from adbg.engine.record.recorder import Recorder
from adbg.engine.record.runs import summary
from adbg.engine.types import BriefCall, BriefRun, BriefRuns

LIMIT = 1 << 20


def on_disk(folder: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in folder.iterdir())


def train(recorder: Recorder, steps: int, log: str = "") -> int:
    """``steps`` backward calls with three nodes each; the most bytes that the run took on the disk meanwhile."""
    most = 0
    for step in range(1, steps + 1):
        recorder.backward_begin(step, nodes=3, roots=["A"], file="/me/train.py", line=88, iteration=step)
        for index in (1, 2, 3):
            recorder.node_event(step, index, "after", 1.0, float(step))
        if log:
            recorder.log(log.format(step=step))
        recorder.backward_end(step, 10.0)
        if step % 1000 == 0:
            recorder.graph(step, ROWS, {1: STACK}, EDGES)
            recorder.stop(STOP)
            assert recorder.flush(20)
            most = max(most, on_disk(Path(recorder.run_dir)))
    return most


def test_20_000_steps_stay_within_the_budget(tmp_path: Path) -> None:
    problems: list[str] = []
    run = tmp_path / "run"
    recorder = Recorder.open(run, 0, problems.append, LIMIT)
    line = "I1121 00:54:27.615494 22261 nodes:4] step {step} " + "x" * 100
    most = train(recorder, 20_000, line)
    recorder.close()
    assert problems == [] and most < 2 * LIMIT, f"{most} bytes with a budget of {LIMIT}"
    reader = RunReader(run)
    calls = [call.number for call in reader.backwards()]
    assert calls == list(range(calls[0], 20_001)) and 1000 < len(calls) < 20_000, "the newest, without a gap"
    assert reader.info["pruned"] == calls[0]
    for number in (calls[0], calls[-1]):
        assert [(event.index, event.norm) for event in reader.events(number)] == [(n, number) for n in (1, 2, 3)]
    assert [row.name for row in reader.graph(20_000)] == [row.name for row in ROWS] and reader.graph(1000) == []
    assert len(reader.stops()) == 20, "stops are few, and what people look for"
    start = budget.beginning(reader.log_path)
    assert 0 < start < reader.log_path.stat().st_size
    with open(reader.log_path, "rb") as log:
        log.seek(start)
        lines = log.read().decode().splitlines()[1:]
    assert lines[-1] == line.format(step=20_000) and all(text.startswith("I1121 ") for text in lines)
    kept = [entry for entry in reader.log_index() if entry[1] > start]
    with open(reader.log_path, "rb") as log:
        log.seek(kept[0][1])
        assert log.read(kept[0][2]).startswith(b"I1121 "), "offsets stay true"
    found = summary(run)
    assert found.pruned and found.size < 2 * LIMIT


def test_one_endless_call_is_pruned_too(tmp_path: Path) -> None:
    recorder = Recorder.open(tmp_path / "run", 0, None, LIMIT)
    recorder.backward_begin(1, nodes=5, roots=["A"])
    for index in range(1, 60_001):
        recorder.node_event(1, index, "after", 1.0, 2.0)
        if index % 1000 == 0:
            assert recorder.flush(20)
    recorder.close()
    events = [event.index for event in RunReader(tmp_path / "run").events()]
    assert events == list(range(events[0], 60_001)) and 1000 < len(events) < 60_000
    assert on_disk(tmp_path / "run") < 2 * LIMIT


def test_a_run_without_a_backward_is_pruned_too(tmp_path: Path) -> None:
    recorder = Recorder.open(tmp_path / "run", 0, None, LIMIT)
    for number in range(120_000):
        recorder.log("x")
        if number % 2000 == 0:
            assert recorder.flush(20)
    recorder.close()
    reader = RunReader(tmp_path / "run")
    assert 1000 < len(list(reader.log_index())) < 120_000
    assert on_disk(tmp_path / "run") - reader.log_path.stat().st_blocks * 512 < LIMIT


@pytest.mark.parametrize("backwards", [1, 2])
def test_a_graph_beyond_the_budget_goes_whole(tmp_path: Path, backwards: int) -> None:
    recorder = Recorder.open(tmp_path / "run", 0, None, LIMIT)
    many = [dataclasses.replace(ROWS[0], index=index) for index in range(20_000)]
    for number in range(1, backwards + 1):
        recorder.backward_begin(number, nodes=len(many), roots=["A"])
        recorder.graph(number, many, {}, {})
        assert recorder.flush(20)
        for index in range(6000):
            recorder.node_event(number, index, "after", 1.0, 2.0)
            if index % 1000 == 0:
                assert recorder.flush(20)
    recorder.close()
    reader = RunReader(tmp_path / "run")
    assert {len(reader.graph(number)) for number in range(1, backwards + 1)} <= {0}
    assert [event.index for event in reader.events(backwards)][-1] == 5999
    assert reader.info["pruned"] == backwards + 1


def test_without_a_budget_all_is_kept(tmp_path: Path) -> None:
    recorder = Recorder.open(tmp_path / "run", 0, None, 0)
    train(recorder, 8_000)
    recorder.close()
    assert len(RunReader(tmp_path / "run").backwards()) == 8_000 and on_disk(tmp_path / "run") > LIMIT
    assert not summary(tmp_path / "run").pruned


def test_the_programs_output_keeps_to_its_budget(tmp_path: Path) -> None:
    log = OutputLog(str(tmp_path), LIMIT)
    path = tmp_path / "output-r0.log"
    for number in range(5000):
        log.write(f"{number:999}\n".encode())
        assert path.stat().st_blocks * 512 <= 2 * LIMIT + 8192
    assert log.problem == "" and path.stat().st_size == 5_000_000
    assert path.read_bytes()[-LIMIT:] == b"".join(b"%999d\n" % number for number in range(5000))[-LIMIT:]
    assert 3_000_000 < budget.beginning(path) < 4_000_000


@pytest.mark.parametrize(
    ("text", "size"), [("500M", 500 << 20), ("2g", 2 << 30), ("1.5 GiB", 3 << 29), ("1048576", 1 << 20), ("off", 0)]
)
def test_sizes(text: str, size: int) -> None:
    assert budget.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "5", "-1G", "nan", "G", "1e99"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(ValueError):
        budget.parse_size(text)


def test_a_file_system_without_holes_ends_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "make_hole", lambda fd, end: False)
    problems: list[str] = []
    recorder = Recorder.open(tmp_path / "run", 0, problems.append, LIMIT)
    for _ in range(3000):
        recorder.log("x" * 1000)
    recorder.flush(20)
    recorder.close()
    assert len(problems) == 1 and "this file system keeps no holes" in problems[0]
    assert os.path.getsize(tmp_path / "run" / "vlog-r0.log") < 3 * LIMIT


def test_packed_nodes_and_graphs_that_were_written_once(tmp_path: Path) -> None:
    """The graph that later calls refer to stays as long as one of them does; a call that no graph is left for is told
    so, and hands its own in."""
    problems: list[str] = []
    recorder = Recorder.open(tmp_path / "run", 0, problems.append, LIMIT)
    rows = b"".join(struct.pack("<IIQdfHH", 10 + n, n, 1000 * n, float(n), 1.0, 1, 1) for n in (1, 2, 3)) * 20
    handed = 0
    for number in range(1, 6001):
        recorder.backward_begin(number, nodes=3, roots=["A"], file="/me/train.py", line=88, iteration=number)
        recorder.node_events(number, rows)
        known = handed and recorder.same_graph(number, handed)
        if not known:
            handed = number
            recorder.graph(number, ROWS, {1: STACK}, EDGES)
        recorder.backward_end(number, 10.0)
        if number % 200 == 0:
            assert recorder.flush(20)
    recorder.close()
    assert problems == [] and on_disk(tmp_path / "run") < 2 * LIMIT
    reader = RunReader(tmp_path / "run")
    calls = [call.number for call in reader.backwards()]
    assert calls == list(range(calls[0], 6001)) and 100 < len(calls) < 6000
    for number in (calls[0], calls[len(calls) // 2], 6000):
        assert [row.name for row in reader.graph(number)] == [row.name for row in ROWS]
        assert reader.forward_stack(number, 1) == STACK and reader.edges(number)
        assert [(event.index, event.norm) for event in reader.events(number)][:4] == [(1, 1), (1, 1), (2, 2), (2, 2)]
    whole = [event.seq for event in reader.events()]
    assert whole == sorted(set(whole)) and len(whole) == 120 * len(calls)


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "in blocks"])
def test_calls_told_later_keep_the_graph_that_they_share(tmp_path: Path, together: bool) -> None:
    """The one call that handed its graph in goes; those told in blocks refer to it all the same, in every call kept."""
    problems: list[str] = []
    recorder = Recorder.open(tmp_path / "run", 0, problems.append, LIMIT)
    rows = b"".join(struct.pack("<IIQdfHH", 10 + n, n, 1000 * n, float(n), 1.0, 1, 1) for n in (1, 2, 3)) * 20
    recorder.backward_begin(1, nodes=3, roots=["A"], file="/me/train.py", line=88, iteration=1)
    recorder.node_events(1, rows)
    recorder.graph(1, ROWS, {1: STACK}, EDGES)
    recorder.backward_end(1, 10.0)
    for first in range(2, 6001, 600):
        numbers = range(first, min(first + 600, 6001))
        calls = [BriefCall(number, 3, ("A",), "backward", number, 0, "/me/train.py", 88) for number in numbers]
        if together:
            every = len(calls)
            recorder.briefs(BriefRuns(calls[0], (1.0,) * every, (10.0,) * every, (rows,) * every, 1))
        for call in calls if not together else ():
            recorder.brief(BriefRun(call, 1.0, False, 10.0), rows, 1)
        assert recorder.flush(20)
    recorder.close()
    assert problems == [] and on_disk(tmp_path / "run") < 2 * LIMIT
    reader = RunReader(tmp_path / "run")
    calls = reader.backwards()
    first = calls[0].number
    assert [call.number for call in calls] == list(range(first, 6001)) and 100 < len(calls) < 6000
    assert {(call.nodes, call.roots, call.us, call.line) for call in calls} == {(3, ("A",), 10.0, 88)}
    for call in calls[:: len(calls) // 20]:
        assert [row.name for row in reader.graph(call.number)] == [row.name for row in ROWS]
        seqs = [event.seq for event in reader.events(call.number)]
        assert call.seq < seqs[0] and len(seqs) == 120 and call.end_seq is not None and seqs[-1] < call.end_seq
    whole = [event.seq for event in reader.events()]
    assert whole == sorted(set(whole)) and len(whole) == 120 * len(calls)

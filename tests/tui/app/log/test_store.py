"""The log panel's store: records, nesting, blocks, folds, filters, on adbg's own records and on Paddle's logs."""

from __future__ import annotations

import gzip
import os
import random
import re
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from support.patience import patience

from adbg.engine.errors import CommandError
from adbg.engine.glog import format_record, node_said
from adbg.tui.app.log import folds as logfolds
from adbg.tui.app.log import search as logsearch
from adbg.tui.app.log import store as logstore
from adbg.tui.app.log.folds import OPEN, Filter, Folds, wanted
from adbg.tui.app.log.index import BACKWARD, CALL, NODE, PYLAYER
from adbg.tui.app.log.line_map import LineMap
from adbg.tui.app.log.nodes import NodeLink, NodeRecords, plain_name
from adbg.tui.app.log.search import Search
from adbg.tui.app.log.sought import Sought
from adbg.tui.app.log.store import LogStore

DATA = Path(__file__).resolve().parents[3] / "data" / "vlog"
LOGS = sorted(DATA.glob("*.log"))
HEAD = re.compile(rb"^\t*[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ [\w.\-]+:\d+\]", re.MULTILINE)
LOG = (
    format_record("run_backward", "calls", 3)
    + format_record("apply MmBackward0", "nodes", 4, indent=1)
    + format_record("out [4,8]\nsecond line", "nodes", 5, indent=2)
    + format_record("something odd", "nodes", 4, indent=1, severity="W")
    + format_record("run_backward", "calls", 3)
)


def store_of(path: Path, text: str | bytes | None = None) -> LogStore:
    if text is not None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    store = LogStore(str(path))
    settle(store)
    return store


def settle(store: LogStore, seconds: float = 20) -> None:
    deadline = time.monotonic() + patience(seconds)
    while store.poll() or store.behind or store.unpacking or store._reader is not None:
        assert time.monotonic() < deadline, "the store reads on and on"
        time.sleep(0.001)


def texts(store: LogStore) -> list[str]:
    return [store.line(row).text for row in range(len(store))]


def row_with(store: LogStore, text: str) -> int:
    return next(row for row in range(len(store)) if text in store.line(row).text)


def test_records_of_the_engine_are_taken_apart(tmp_path: Path) -> None:
    store = store_of(tmp_path / "log", LOG)
    assert texts(store) == ["run_backward", "apply MmBackward0", "out [4,8]", "something odd", "run_backward"]
    assert [store.line(row).level for row in range(5)] == ["3", "4", "5", "W", "3"]
    assert list(store.depths) == [0, 1, 2, 1, 0]
    assert [store.alarming(row) for row in range(5)] == [False, False, False, True, False]
    assert store.block(2) == ["out [4,8]", "second line"] and store.line(2).block and not store.line(1).block
    line = store.line(0)
    assert line.time[2] == ":" and len(line.time) == 9 and line.thread > 0 and line.where == "calls"


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
def test_each_head_is_a_row_and_no_byte_is_lost(path: Path) -> None:
    data = path.read_bytes()
    store = store_of(path)
    heads = [found.start() for found in HEAD.finditer(data)]
    assert heads and set(heads) <= set(store._offsets)
    stray = [offset for offset in store._offsets if offset not in set(heads)]
    assert all(data[offset : offset + 1].strip() for offset in stray)
    ends = [*list(store._offsets)[1:], len(data)]
    assert b"".join(data[start:end] for start, end in zip(store._offsets, ends)) == data
    for row in range(1, len(store)):
        assert store.depths[row] <= store.depths[row - 1] + 1, f"row {row} lies two levels below the one before"


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
@pytest.mark.parametrize("seed", range(3))
def test_what_is_appended_in_any_pieces_is_the_same(path: Path, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    whole = store_of(path)
    data = path.read_bytes()
    growing = tmp_path / "log"
    growing.touch()
    store = LogStore(str(growing))
    with growing.open("ab", buffering=0) as file:
        while data:
            size = rng.randint(1, 700)
            file.write(data[:size])
            data = data[size:]
            store._read_here(0)
    settle(store)
    assert list(store._offsets) == list(whole._offsets)
    assert bytes(store.depths) == bytes(whole.depths) and bytes(store.kinds) == bytes(whole.kinds)


def test_nested_pylayers_fold_as_they_ran() -> None:
    store = store_of(DATA / "pylayer_nested_v3.log")
    outer = row_with(store, "Outer:Running PyLayer Apply")
    inner = row_with(store, "Inner:Running PyLayer Apply")
    tanh = row_with(store, "tanh")
    assert store.holder_of(inner) == outer and store.holder_of(tanh) == inner and store.holder_of(outer) == -1
    assert store.kinds[outer] & PYLAYER and store.kinds[tanh] & CALL
    finish = row_with(store, "Inner:Finish PyLayer Apply")
    assert inner < finish < store.end_of(inner) < store.end_of(outer)
    node = row_with(store, "GradNodePyLayer_Outer(0x55eaf69684e0) Preparing")
    nested = row_with(store, "GradNodePyLayer_Inner(0x55eafaecb080) Preparing")
    began = store.backward_of(nested)
    assert store.kinds[node] & NODE and store.kinds[began] & BACKWARD
    assert store.holder_of(began) == node and store.backward_of(node) < node and store.holder_of(nested) == began
    assert store.last_backward() == store.backward_of(node), "the nested one has ended"


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
def test_calls_hold_what_ran_between_running_and_finish(path: Path) -> None:
    store = store_of(path)
    raws = [store.raw(row) for row in range(len(store))]
    for row, raw in enumerate(raws):
        found = re.search(r"=+Finish_((?:AD|C\+\+)_API\w*: \w+)=", raw)
        if found:
            holder = store.holder_of(row)
            assert holder >= 0 and f"Running_{found[1]}=" in raws[holder]
            assert store.end_of(holder) == row + 1, "its Finish is the last one inside"


def test_a_call_without_finish_ends_with_its_debug_info() -> None:
    """Paddle 3.3.1 writes no Finish_AD_API for multiply."""
    store = store_of(DATA / "pylayer_nested_v3.log")
    multiply = next(row for row in range(len(store)) if store.line(row).text == "multiply")
    call = next(row for row in range(len(store)) if store.line(row).text == "sum")
    assert store.line(store.end_of(multiply) - 1).text.startswith("Forward multiply1(")
    assert store.depths[call] == store.depths[multiply] == 0


def test_blocks_say_inputs_outputs_shapes_and_dtypes_in_one_line() -> None:
    store = store_of(DATA / "promo_v4.log")
    lines = texts(store)
    nested = texts(store_of(DATA / "pylayer_nested_v3.log"))
    assert "Forward matmul1(x f32[2,3], y f32[3,3]) → out f32[2,3]" in nested
    assert "Forward gaussian1() → out f32[2,3]" in nested
    assert "Forward Inner2(input0 f32[2,3]) → out0 f32[2,3]" in nested
    assert "Input grad_out f32[2,3], x f32[2,3], y f32[2,3]" in nested
    assert any(re.fullmatch(r"\w+ kernel: \(f\d+, f\d+\) → f\d+", line) for line in lines)
    at = nested.index("Forward matmul1(x f32[2,3], y f32[3,3]) → out f32[2,3]")
    block = store_of(DATA / "pylayer_nested_v3.log").block(at)
    assert block[0] == "Forward Debug Info {" and block[1].startswith("API_Name: matmul1")
    assert sum("Shape: " in line for line in block) == 3


def test_debug_info_of_level_six_leaves_gradients_out(tmp_path: Path) -> None:
    tensor = (
        "{\n\tName: w,\n\tTensorInfo: { \n\t\tType: DenseTensor,\n\t\tDtype: int64,\n\t\tShape: 8, 16,\n"
        "\t},\n\tADInfo:{ \n\t\tGrad:  {\n\t\t\tTensorInfo: { \n\t\t\t\tDtype: float32,\n\t\t\t\tShape: 1,\n"
        "\t\t\t},\n\t\t}\n\t}\n})"
    )
    sides = f"Input: [ \n( x , {tensor}, ]  \nOutput: [ \n( out , {tensor}, ] }} "
    text = f"\nForward Debug Info {{\nAPI_Name: op1 \n{sides}"
    store = store_of(tmp_path / "log", "I1120 23:54:26.844120 22244 dygraph_functions.cc:48957] " + text + "\n")
    assert texts(store) == ["Forward op1(x i64[8,16]) → out i64[8,16]"]


def test_a_forward_stack_is_its_innermost_frame(tmp_path: Path) -> None:
    frames = '  File "/a/main.py", line 4, in <module>\n    f()\n  File "/a/b.py", line 9, in f\n'
    stack = "PyLayer forward call stack: " + frames
    store = store_of(tmp_path / "log", format_record(stack, "py_layer_node.cc", 51))
    assert texts(store) == ["PyLayer forward call stack: b.py:9 in f"] and store.line(0).block


def test_errors_of_paddle_are_alarms() -> None:
    store = store_of(DATA / "exc_backward_csl2.log")
    rows = []
    row = -1
    for _ in range(3):
        row = store.next_alarm(row, 1)
        rows.append(store.line(row).text)
    assert any("raises an EnforceNotMet exception" in text for text in rows)
    last = store.next_alarm(len(store), -1)
    assert store.line(last).text.startswith("Traceback") and "File" in store.raw(last)
    assert store.depths[last] == 0


def test_folding_one_and_all(tmp_path: Path) -> None:
    store = store_of(tmp_path / "log", LOG)
    folds = Folds()
    assert list(folds.rows(store)) == [0, 1, 2, 3, 4]
    folds.fold(store, 0, close=True)
    assert list(folds.rows(store)) == [0, 4] and folds.is_closed(store, 0)
    folds.fold(store, 0, close=False)
    folds.fold(store, 1, close=True)
    assert list(folds.rows(store)) == [0, 1, 3, 4]
    folds.all(0)
    assert list(folds.rows(store)) == [0, 4]
    folds.fold(store, 0, close=False)
    assert list(folds.rows(store)) == [0, 1, 3, 4]
    folds.fold(store, 1, close=False)
    assert list(folds.rows(store)) == [0, 1, 2, 3, 4]
    folds.all(OPEN)
    assert not folds.any


@pytest.mark.parametrize("seed", range(5))
def test_rows_found_piece_by_piece_are_those_found_at_once(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = tmp_path / "log"
    path.touch()
    store, folds, line_map = LogStore(str(path)), Folds(), LineMap()
    folds.all(rng.randint(0, 3))
    found = folds.rows(store)
    for _ in range(20):
        with path.open("a") as file:
            file.writelines(format_record("x", "nodes", 4, indent=rng.randint(0, 4)) for _ in range(rng.randint(1, 9)))
        seen = len(store)
        store.poll()
        found.extend(folds.rows(store, seen))
        row = rng.randrange(len(store))
        folds.fold(store, row, rng.random() < 0.5)
        assert list(folds.rows(store, seen)) == [at for at in folds.rows(store) if at >= seen]
        found = folds.rows(store)
    line_map.rows, line_map.total = found, len(store)
    for row in rng.sample(list(found), 5):
        line_map.unfold(row, rng.randint(1, 4))
    expected = [(row, inner) for row in found for inner in range(line_map.blocks.get(row, 0) + 1)]
    assert [line_map.at(line) for line in range(line_map.count())] == expected
    assert all(expected[line_map.line_of(row)] == (row, 0) for row in found)


def filtered(store: LogStore, text: str) -> list[int]:
    found = Filter(store, wanted(text))
    while found.position < len(store):
        found.advance(0)
    return list(found.rows)


def find(store: LogStore, pattern: Sought, row: int, step: int) -> int:
    search = Search(store, pattern, row, step)
    while not search.advance(0):
        assert 0 <= search.share <= 1
    return search.found


def matches(store: LogStore, sought: Sought, row: int) -> bool:
    """By each row's own text, without the store's ways of going through many."""
    return bool(sought.raw.search(store.raw(row).encode()) or sought.shown.search(store.line(row).text))


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
def test_what_is_displayed_is_found(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words of any line, as a user copies them from the screen, in any case."""
    monkeypatch.setattr(logsearch, "PIECE", 700)
    store = store_of(path)
    shown = {store.line(row).text.strip()[:60]: row for row in range(len(store)) if store.line(row).text.strip()}
    reworded = any(text not in store.raw(row) for text, row in shown.items())
    assert reworded == (path.name in ("promo_v4.log", "pylayer_nested_v3.log")), "else this tests nothing"
    for text, row in shown.items():
        assert row in filtered(store, text), text
        assert row in filtered(store, text.lower()), text
        before = find(store, Sought(text), row - 1, 1)
        assert text in store.line(before).text or text in store.raw(before)


@pytest.mark.parametrize("text", ["C++_API", "a[0", "+2ac", "f(x", "*ptr", "(?i)running.*ADD", "kernel call add"])
def test_text_with_special_characters_is_found_as_it_stands(tmp_path: Path, text: str) -> None:
    said = "a[0 +2ac f(x *ptr", "=====Running_C++_API: add=====", "nothing of it"
    store = store_of(tmp_path / "log", "".join(format_record(line, "calls", 3) for line in said))
    assert filtered(store, text) == [1 if "add" in text.lower() or "API" in text else 0]


def test_filters_by_text_level_module_thread_and_context(tmp_path: Path) -> None:
    store = store_of(tmp_path / "log", LOG)
    assert filtered(store, "odd") == [3]
    assert filtered(store, "second line") == [2], "the whole text counts"
    assert filtered(store, "+1 odd") == [2, 3, 4]
    assert filtered(store, "level:3") == [0, 3, 4], "a warning stays at any level"
    assert filtered(store, "level:W") == [3]
    assert filtered(store, "module:calls") == [0, 4]
    assert filtered(store, "module:no* level:4 mm") == [1]
    assert filtered(store, f"thread:{store.line(0).thread}") == [0, 1, 2, 3, 4] and filtered(store, "thread:1") == []
    for bad in ("level:x", "thread:x"):
        with pytest.raises(CommandError):
            wanted(bad)


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
@pytest.mark.parametrize("text", ["grad", "Shape: 2, 3", "+3 Finish", "no such thing"])
def test_filters_and_searches_find_what_a_scan_finds(path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logsearch, "PIECE", 700)
    monkeypatch.setattr(logfolds, "PIECE", 700)
    store = store_of(path)
    what = wanted(text)
    assert what.pattern is not None
    hits = [row for row in range(len(store)) if matches(store, what.pattern, row)]
    near = {at for row in hits for at in range(row - what.context, row + what.context + 1) if 0 <= at < len(store)}
    assert filtered(store, text) == sorted(near)
    row, forward = -1, []
    for _ in hits:
        row = find(store, what.pattern, row, 1)
        forward.append(row)
    assert forward == hits
    row, back = len(store), []
    for _ in hits:
        row = find(store, what.pattern, row, -1)
        back.append(row)
    assert back == hits[::-1]
    assert hits or find(store, what.pattern, 0, 1) == -1


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
@pytest.mark.parametrize("text", ["level:3", "level:W", "module:backward,nodes", "level:4 grad"])
def test_filters_by_head_keep_what_the_whole_record_says(path: Path, text: str) -> None:
    store = store_of(path)
    what = wanted(text)
    kept = [
        row
        for row in range(len(store))
        if what.keeps(store.record(row)) and (not what.pattern or matches(store, what.pattern, row))
    ]
    assert filtered(store, text) == kept


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
def test_records_of_nodes_are_those_of_their_own_backward(path: Path) -> None:
    store = store_of(path)
    began = [row for row in range(len(store)) if store.kinds[row] & BACKWARD]
    for start in began:
        records = NodeRecords(store, start)
        while not records.advance(0):
            pass
        counts: Counter[str] = Counter()
        for row in range(start, len(store)):
            said = node_said(store.line(row).text) if store.kinds[row] & NODE else None
            if said is not None and store.backward_of(row) == start:
                counts[plain_name(said.name)] += 1
                assert records.row_of(said.name, said.index, counts[plain_name(said.name)]) == row
                assert said.index or records.occurrence(said, row) == counts[plain_name(said.name)]
        assert records.row_of("NoSuchNode", 1, 1) == -1
        for name, count in counts.items():
            assert records.row_of(name, 0, count + 1) == -1


def test_a_record_of_a_making_is_linked_in_the_forward_of_the_last_backward_alone(tmp_path: Path) -> None:
    """Nodes of an earlier iteration stood at the same addresses."""
    head = "I1120 23:54:36.827657 22368 dygraph_functions.cc:1] "
    made = ("Create node AddGradNode addr 0x558b31870cb0", "Outer:Create grad node GradNodePyLayer_Outer addr 0xab0")
    forward = [head + text for text in made]
    backward = [
        f"{head}=================RunBackward: Start Backward =================",
        f"{head}AddGradNode(0x558b31870cb0) Preparing ",
        f"{head}=================RunBackward: Finish Backward =================",
    ]
    lines = [*forward, *backward, *forward, *backward]
    store = store_of(tmp_path / "log", "".join(line + "\n" for line in lines))
    link = NodeLink(store)
    said = [link.said_at(row) for row in range(len(store))]
    assert [row for row, found in enumerate(said) if found is not None] == [5, 6, 8], lines
    assert [(found.name, found.pointer) for found in said if found is not None] == [
        ("AddGradNode", "0x558b31870cb0"), ("GradNodePyLayer_Outer", "0xab0"), ("AddGradNode", "0x558b31870cb0")
    ]  # fmt: skip
    assert link.ask_node(6)
    while not link.advance(1):
        pass
    assert link.answer() == (("GradNodePyLayer_Outer", 0, 0, "0xab0"), -1)


def test_notes_stand_where_they_came(tmp_path: Path) -> None:
    store = store_of(tmp_path / "log", LOG)
    store.note("stop: #3", "00:01.000")
    with (tmp_path / "log").open("a") as file:
        file.write(LOG)
    settle(store)
    assert store.line(5).level == "■" and store.line(5).text == "stop: #3" and store.raw(5) == "stop: #3"
    assert store.line(4).text == store.line(6).text == "run_backward" and len(store) == 11
    assert find(store, Sought("stop"), 0, 1) == 5 and filtered(store, "stop") == [5]


def test_foreign_text_and_bytes_do_no_harm(tmp_path: Path) -> None:
    data = b"\xff\xfe odd bytes\n" + b"x" * 100_000 + b"\n" + LOG.encode() + b"no newline yet"
    store = store_of(tmp_path / "log", data)
    assert len(store) == 7
    assert "odd bytes" in store.line(0).text and len(store.line(1).text) <= 1 << 16
    plain = store_of(tmp_path / "plain", "".join(f"line {number}\n  more\n" for number in range(500)))
    assert len(plain) == 500 and plain.block(7) == ["line 7", "  more"]


def test_a_log_that_comes_later_or_is_written_anew_is_found(tmp_path: Path) -> None:
    path = tmp_path / "later.log"
    store = LogStore(str(path))
    assert store.poll() == 0 and "No such file" in store.error
    path.write_text(LOG)
    assert store.poll() == 5 and store.error == ""
    path.write_text(format_record("anew", "calls", 3))
    settle(store)
    assert texts(store) == ["anew"]


def test_a_long_log_is_read_by_a_thread_and_is_the_same(tmp_path: Path) -> None:
    text = LOG * 30_000
    store = LogStore(str(tmp_path / "log"))
    (tmp_path / "log").write_text(text)
    store.poll()
    assert store._reader is not None and store.behind > 0
    settle(store)
    assert len(store) == 150_000 and Counter(store.depths) == {0: 60_000, 1: 60_000, 2: 30_000}
    assert store.line(149_998).text == "something odd"
    store.close()


def test_gzipped_logs_are_unpacked_and_broken_ones_say_so(tmp_path: Path) -> None:
    data = (DATA / "promo_v4.log").read_bytes()
    packed = gzip.compress(data)
    (tmp_path / "log.gz").write_bytes(packed)
    store = store_of(tmp_path / "log.gz")
    assert texts(store) == texts(store_of(DATA / "promo_v4.log"))
    (tmp_path / "cut.gz").write_bytes(packed[: len(packed) // 2])
    cut = store_of(tmp_path / "cut.gz")
    assert "the end of the file is missing" in cut.error
    assert len(cut) > 20 and texts(cut)[:-1] == texts(store)[: len(cut) - 1], "all that a killed job has written"


def test_the_end_of_unpacking_is_seen_only_with_all_that_was_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread ends while ``poll`` reads: there are bytes that this poll has not seen."""
    packed = gzip.compress((DATA / "promo_v4.log").read_bytes())
    (tmp_path / "cut.gz").write_bytes(packed[: len(packed) // 2])
    started, seen = threading.Event(), logstore.unpacked
    monkeypatch.setattr(logstore, "unpacked", lambda file: started.wait(20) and seen(file))
    store = LogStore(str(tmp_path / "cut.gz"))
    store.poll()
    pread, unpackers = os.pread, [thread for thread in threading.enumerate() if thread.name == "adbg-gunzip"]

    def slow(fd: int, size: int, start: int) -> bytes:
        data = pread(fd, size, start)
        started.set()
        for thread in unpackers:
            thread.join(20)
        return data

    monkeypatch.setattr(os, "pread", slow)
    assert store.poll() == 0 and store.error, "the file was read before there was anything in it"
    assert store.unpacking, "there is more to read"
    assert store.poll() > 20 and not store.unpacking


def test_of_endless_logs_the_oldest_records_go_and_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logstore, "MOST_ROWS", 1000)
    text = "".join(format_record(f"record {number}", "nodes", 4) for number in range(2300))
    store = store_of(tmp_path / "log", text)
    assert store.dropped + len(store) == 2300 and len(store) <= 1000 and store.dropped > 0
    assert store.line(len(store) - 1).text == "record 2299" and store.line(0).text == f"record {store.dropped}"


def test_a_note_stands_behind_all_that_was_written_before_it(tmp_path: Path) -> None:
    """The newest record is complete only once another follows; what stopped behind it came later all the same."""
    path = tmp_path / "log"
    path.write_text("")
    store = LogStore(str(path))
    store.poll()
    for number in range(3):
        with path.open("a") as log:
            log.write(format_record(f"before {number}", "calls", 3) + format_record(f"last\nof {number}", "calls", 4))
        store.note(f"stop {number}", "00:00.000")
    settle(store)
    assert [texts(store)[row] for row in range(9)] == [
        word for n in range(3) for word in (f"before {n}", "last", f"stop {n}")
    ]
    assert store.block(1) == ["last", "of 0"]


def test_the_parts_of_a_filter_stand_in_any_order() -> None:
    first, second = wanted("level:3 module:nodes BatchNorm x"), wanted("BatchNorm level:3 x module:nodes")
    assert (first.level, first.modules) == (second.level, second.modules) == (3, ("nodes",))
    assert first.pattern is not None and second.pattern is not None
    assert wanted("a +3").context == 0 and wanted("+3 a").context == 3, "behind a pattern +3 is text"

"""glog's grammar: real logs of Paddle, cut anywhere, and what adbg writes in the same grammar."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import pytest

from adbg.engine.errors import CommandError
from adbg.engine.glog import (
    ROW_BACKWARD,
    ROW_CALL,
    ROW_DUMP,
    ROW_NODE,
    ROW_PYLAYER,
    ROWS,
    Parser,
    Record,
    format_record,
    node_said,
    parse,
    parse_levels,
)

LOGS = sorted((Path(__file__).parents[1] / "data" / "vlog").glob("*.log"))
HEAD = re.compile(rb"^\t*[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ [\w.\-]+:\d+\] ?.*$", re.MULTILINE)


@pytest.fixture(params=LOGS, ids=lambda path: path.stem)
def log(request: pytest.FixtureRequest) -> bytes:
    path: Path = request.param
    return path.read_bytes()


def test_the_logs_are_there() -> None:
    assert [path.stem for path in LOGS] == ["exc_backward_csl2", "nan_chk", "promo_v4", "pylayer_nested_v3"]


def test_records_cover_the_log_without_gap_and_find_every_head(log: bytes) -> None:
    records = parse(log)
    at = 0
    for record in records:
        assert record.offset == at
        at += record.length
    assert at == len(log)
    assert sum(1 for record in records if record.severity) == len(HEAD.findall(log))


def test_records_are_the_lines_of_the_log(log: bytes) -> None:
    for record in parse(log):
        lines = log[record.offset : record.offset + record.length].decode().splitlines()
        assert len(lines) == 1 + len(record.continuation)
        if record.severity:
            assert lines[0].endswith(record.text) and f"{record.file}:{record.line}]" in lines[0]
            assert lines[0].startswith("\t" * record.indent + record.severity + record.time)
        for line, shown in zip(lines[1:], record.continuation):
            assert line == shown or line == "\t" * record.indent + shown


@pytest.mark.parametrize("size", [1, 7, 61, 4096])
def test_bytes_may_come_cut_anywhere(log: bytes, size: int) -> None:
    parser = Parser()
    records: list[Record] = []
    for start in range(0, len(log), size):
        records += parser.feed(log[start : start + size])
    assert records + parser.flush() == parse(log)


def marks(log: bytes, group: int) -> list[tuple[int, re.Match[bytes]]]:
    """(TABs, match) of the rows that open or close such a thing."""
    return [(len(found[1]), found) for found in ROWS.finditer(b"\n" + log) if found.lastindex == group]


def test_nesting_and_markers() -> None:
    log = (LOGS[0].parent / "pylayer_nested_v3.log").read_bytes()
    records = parse(log)
    backwards = [(tabs, found[5]) for tabs, found in marks(log, ROW_BACKWARD)]
    assert backwards == [(0, b"Start"), (1, b"Start"), (1, b"Finish"), (0, b"Finish")], "the nested one lies deeper"
    assert len(marks(log, ROW_NODE)) == len([r for r in records if r.text.endswith(") Preparing ")])
    said = [(r.indent, found) for r in records if r.text.endswith("Preparing ") and (found := node_said(r.text))]
    nodes = [(indent, node.name) for indent, node in said]
    assert nodes[:3] == [(0, "SumGradNode"), (0, "MultiplyGradNode"), (0, "GradNodePyLayer_Outer")]
    assert (1, "ScaleGradNode") in nodes and (1, "GradNodePyLayer_Inner") in nodes
    assert all(node.index == 0 and node.text.startswith(node.name + "(0x") for _, node in said)
    assert len(marks(log, ROW_PYLAYER)) == 2
    calls = [(found[3], found[4].rpartition(b" ")[2]) for _, found in marks(log, ROW_CALL)]
    assert calls.count((b"Running", b"matmul")) == calls.count((b"Finish", b"matmul")) == 1
    assert len(marks(log, ROW_DUMP)) == log.count(b"API_Name: ")


def test_multi_line_records_keep_their_lines() -> None:
    records = parse((LOGS[0].parent / "pylayer_nested_v3.log").read_bytes())
    dump = next(r for r in records if r.continuation and r.continuation[0] == "Forward Debug Info {")
    assert dump.text == "" and dump.continuation[1] == "API_Name: gaussian1 " and dump.continuation[-1] == "}), ] } "
    inner = next(r for r in records if r.indent == 1 and r.continuation)
    assert not inner.continuation[0].startswith("\t")


def test_foreign_text_is_not_swallowed_by_the_record_before_it() -> None:
    records = parse((LOGS[0].parent / "exc_backward_csl2.log").read_bytes())
    assert [(r.severity, r.file) for r in records] == [("", ""), ("W", "backward.cc"), ("W", "backward.cc"), ("", "")]
    assert "UserWarning" in records[0].text
    assert records[3].text == "Traceback (most recent call last):" and len(records[3].continuation) > 20
    nan = parse((LOGS[0].parent / "nan_chk.log").read_bytes())
    assert nan[0].severity == "" and any("[PRECISION]" in line for line in nan[0].continuation)


def test_levels_where_they_are_known() -> None:
    three = [r for r in parse((LOGS[0].parent / "pylayer_nested_v3.log").read_bytes()) if r.severity == "I"]
    assert {r.level for r in three} <= {None, 3, 4, 5}
    assert sum(r.level == 3 for r in three) > 0.8 * len(three)
    assert parse("I1121 00:54:27.615494 22261 nodes:6] x\n")[0].level == 6
    assert parse("W1121 00:54:27.615494 22261 backward.cc:685] x\n")[0].level == 0
    assert parse("plain text\n")[0].level is None


def test_an_open_record_can_be_shown_and_grows() -> None:
    parser = Parser(offset=100)
    head = b"I1121 00:54:27.615494 22261 nodes:6] first\n"
    assert parser.feed(head + b"\tsec") == []
    (shown,) = parser.pending()
    assert (shown.text, shown.continuation, shown.offset, shown.length) == ("first", (), 100, len(head))
    parser.feed(b"ond\n")
    assert parser.pending()[0].continuation == ("\tsecond",)
    (done,) = parser.feed(head)
    assert (done.continuation, done.length) == (("\tsecond",), len(head) + 8)
    (rest,) = parser.flush()
    assert rest.offset == 100 + len(head) + 8 and parser.flush() == []


def test_odd_bytes_and_ends() -> None:
    raw = b"I1121 00:54:27.615494 22261 nodes:6] \xff\xfe\r\nI1121 00:54:27.615494 22261 nodes:6] no newline"
    first, second = parse(raw)
    assert first.text == "��" and second.text == "no newline"
    assert first.length + second.length == len(raw)
    assert parse("") == [] and parse("\n")[0].severity == ""
    assert parse("x I1121 00:54:27.615494 22261 nodes:6] not at the start\n")[0].severity == ""


def test_a_huge_foreign_text_is_handed_out_in_parts() -> None:
    parser = Parser()
    line = b"y" * 99 + b"\n"
    records = [record for _ in range(30) for record in parser.feed(line * 1000)] + parser.flush()
    assert len(records) > 1 and sum(record.length for record in records) == 3_000_000
    assert len(parser._buffer) == 0


def test_what_is_written_is_read_back() -> None:
    now = 1_700_000_000_123_456_789
    text = format_record("NAME(#3) Preparing \nmore", "backward", 3, indent=2, time_ns=now, tid=42)
    (record,) = parse(text)
    stamp = time.strftime("%m%d %H:%M:%S", time.localtime(now // 1_000_000_000))
    assert record == Record(
        2, "I", f"{stamp}.123456", 42, "backward", 3, "NAME(#3) Preparing ", ("more",), 0, len(text)
    )
    assert record.level == 3
    found = node_said(record.text)
    assert found is not None and (found.name, found.index, found.text) == ("NAME", 3, "NAME(#3)")
    assert parse(format_record("x", "nodes", 3, severity="W"))[0].tid == threading.get_native_id()


def test_the_clock_goes_on_over_the_second() -> None:
    second = 1_700_000_000 * 1_000_000_000
    times = [
        parse(format_record("x", "nodes", 3, time_ns=second + part))[0].time for part in (0, 999_999_999, 1_000_000_000)
    ]
    assert times[0][:-7] == times[1][:-7] != times[2][:-7]
    assert [t[-6:] for t in times] == ["000000", "999999", "000000"]


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("6", {"*": 6}),
        ("off", {"*": 0}),
        ("", {}),
        ("backward=6,nodes=5", {"backward": 6, "nodes": 5}),
        ("*=3, nodes=off", {"*": 3, "nodes": 0}),
    ],
)
def test_level_texts(text: str, levels: dict[str, int]) -> None:
    assert parse_levels(text) == levels


@pytest.mark.parametrize("text", ["high", "backward=", "=3", "11", "-1", "backward=x"])
def test_bad_level_texts(text: str) -> None:
    with pytest.raises(CommandError, match="bad VLOG level"):
        parse_levels(text)

"""Files that were damaged, or made to do harm: one line says so, and nothing ends, hangs or steers the terminal."""

from __future__ import annotations

import cProfile
import json
import marshal
import os
import random
import string
import struct
import time
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from adbg.profiles.report.formats import collapsed, detect, marshalled
from adbg.profiles.report.formats.problem import FormatError
from adbg.profiles.report.model import SECONDS, Frame, Profile, Sample
from adbg.profiles.report.tables import table
from adbg.tui.text.profile_report import head_lines, table_lines

COUNTS = (1, 1, 0.5, 0.5)
STEERS = "f\x1b]0;PWNED\x07\x1b[31mred\r\nx\x9b2J\u202e\ud800"


# ------------------------------------------------------------------ marshal


def test_a_table_is_read_as_marshal_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "real.pstats"
    profiler = cProfile.Profile()
    profiler.runcall(lambda: [json.loads(json.dumps({"ä": [1, 2.5, None]})), string.Template("$a").substitute(a=1)])
    profiler.dump_stats(path)
    data = path.read_bytes()
    assert len(marshal.loads(data)) > 10 and marshalled.loads(data) == marshal.loads(data)


@pytest.mark.parametrize("version", range(marshal.version + 1))
def test_values_of_every_version_of_marshal(version: int) -> None:
    shared = ("größe\ud800.py", 3, "f" * 300)
    numbers = (0, -1, 2**31 - 1, -(2**31), 2**40, -(2**63), 0.1, -1e300, True, False, None)
    value = {shared: (*COUNTS, {shared: COUNTS, ("a.py", 1, "λ"): 3}), ("~", 0, "<built-in>"): numbers}
    data = marshal.dumps(value, version)
    found = marshalled.loads(data)
    assert found == marshal.loads(data) == value and [*map(type, found["~", 0, "<built-in>"])] == [*map(type, numbers)]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"(\xff\xff\xff\x7f", "cut off"),  # two thousand million values
        (b"{u\xff\xff\xff\x7fab", "cut off"),
        (b"l\xff\xff\xff\x7f\1\0", "too large"),
        (b")\1" * 10_000, "too deeply"),
        (b"{\xa9\1r\0\0\0\0N0", "refers"),  # a tuple that holds itself
        (b"{r\0\0\0\0N0", "refers"),
        (b"\xfb0r\0\0\0\0", None),
        (b"{)\1)\0N0", "key"),
        (b"{N", "cut off"),
        (b"{N0", "end"),
        (b"", "cut off"),
        (marshal.dumps(compile("x", "a", "eval")), "kind 'c'"),
    ],
)
def test_what_no_table_has_is_a_value_error(data: bytes, why: str | None) -> None:
    if why is None:
        assert marshalled.loads(data) == {}, "what follows the table is not looked at"
    else:
        with pytest.raises(ValueError, match=why):
            marshalled.loads(data)


def test_a_damaged_table_is_told_or_read_as_marshal_does(tmp_path: Path) -> None:
    """Thousands of files that are one to five bytes away from a good one; some held code for ``marshal.loads``."""
    base = marshal.dumps({("a.py", 1, "f"): (*COUNTS, {("b.py", 2, "g"): COUNTS}), ("~", 0, "len"): (*COUNTS, {})})
    chance = random.Random(1)
    kinds = b"{()[]<>crRNTFSsuiIlgfyx\xa8\xa9\xe3\xbc\xda\xfa\xe9"
    path = tmp_path / "f.pstats"
    bad = 0
    for number in range(3000):
        data = bytearray(base)
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(4, len(data))] = chance.choice([chance.randrange(256), *kinds])
        if number % 3 == 0:
            del data[chance.randrange(10, len(data)) :]
        path.write_bytes(data)
        try:
            detect.read(path)
        except FormatError:
            bad += 1
    assert 1000 < bad < 3000


# ------------------------------------------------------------------ the others


def trace(*events: dict[str, object]) -> str:
    return json.dumps({"traceEvents": [*events, {"ph": "X", "name": "a", "ts": 1, "dur": 2}]})


def speedscope(frame: dict[str, object], stack: list[int], weights: list[float]) -> str:
    row = {"type": "sampled", "unit": "seconds", "samples": [stack], "weights": weights}
    schema = "https://www.speedscope.app/file-format-schema.json"
    return json.dumps({"$schema": schema, "shared": {"frames": [frame]}, "profiles": [row]})


BAD = {
    "inf.pstats": marshal.dumps({("a.py", 1, "f"): (1, 1, float("inf"), 1.0, {})}),
    "nan.pstats": marshal.dumps({("a.py", 1, "f"): (1, 1, 1.0, 1.0, {("b.py", 1, "g"): (1, 1, float("nan"), 1.0)})}),
    "huge.pstats": marshal.dumps({("a.py", 1, "f"): (1, 1, 10**400, 1.0, {})}),
    "bytes.pstats": marshal.dumps({(b"a", None, 7): (1, 1, 1.0, 1.0, {})}),
    "line.pstats": marshal.dumps({("a.py", "x", "f"): (1, 1, 1.0, 1.0, {})}),
    "inf.json": '{"traceEvents":[{"ph":"X","name":"a","ts":1,"dur":Infinity}]}',
    "line.json": trace({"ph": "X", "name": "b", "ts": 1, "dur": 5, "args": {"filename": "x.py", "line": 1e999}}),
    "negative.json": speedscope({"name": "a"}, [-1], [1.0]),
    "infinite.json": speedscope({"name": "a", "file": "x.py", "line": 1e999}, [0], [1.0]),
    "unequal.json": speedscope({"name": "a"}, [0], [1.0, 2.0]),
    "less.json": speedscope({"name": "a"}, [0], [-1.0]),
    "large.json": speedscope({"name": "a"}, [0], [1e10]),
    "long.json": '{"traceEvents":[{"ph":"X","name":"f","ts":1e302,"dur":1e307,"pid":1,"tid":1}]}',
    "nodes.json": '{"adbg_nodes":1,"framework":"torch","nodes":[{"name":"A","calls":1e999,"total_us":1}]}',
    "late.json": '{"adbg_nodes":1,"nodes":[],"iterations":[{"outside_us":1e999,"backward_us":1}]}',
}


@pytest.mark.parametrize("name", BAD)
def test_what_no_tool_writes_is_a_format_error(tmp_path: Path, name: str) -> None:
    content = BAD[name]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FormatError, match="adbg can read"):
        detect.read(tmp_path / name)


@pytest.mark.parametrize("args", [None, ["x"], 7])
def test_a_thread_without_a_name_in_a_trace(tmp_path: Path, args: object) -> None:
    (tmp_path / "t.json").write_text(trace({"ph": "M", "name": "thread_name", "args": args}))
    assert [sample.weight for sample in detect.read(tmp_path / "t.json").samples] == [pytest.approx(2e-6)]


def test_a_long_line_takes_the_time_of_one_look(tmp_path: Path) -> None:
    """A pattern took 8 s and more of 60,000 blanks, and of a name of torch's with a line end in it."""
    blanks = tmp_path / "b.collapsed"
    blanks.write_text("a" + " " * 500_000 + "b\nx;y 5\n")
    began = time.process_time()
    assert detect.kind_of(blanks) is None
    name = "(1): " * 100_000 + "\nx"
    (tmp_path / "t.json").write_text(trace({"ph": "X", "name": name, "ts": 1, "dur": 5, "cat": "python_function"}))
    detect.read(tmp_path / "t.json")
    assert time.process_time() - began < 5, "a few milliseconds each"


def test_blanks_in_collapsed_stacks(tmp_path: Path) -> None:
    path = tmp_path / "s.collapsed"
    path.write_text("main;a b\t3\n  \n 2\nx  1.5e1\n")
    found = {tuple(p.frames[i].name for i in s.stack): s.weight for p in [collapsed.read(path)] for s in p.samples}
    assert found == {("main", "a b"): 3.0, (): 2.0, ("x",): 15.0}
    path.write_text("a 1\n5\n")
    with pytest.raises(FormatError, match="line 2"):
        collapsed.read(path)


def test_a_fact_that_is_no_number_is_written_as_text(tmp_path: Path) -> None:
    """JSON has no infinite number: what a trace says of an event is not worth the trace."""
    (tmp_path / "t.json").write_text('{"traceEvents":[{"ph":"X","name":"a","ts":1,"dur":2,"args":{"x":1e999,"y":2}}]}')
    detect.write(detect.read(tmp_path / "t.json"), tmp_path / "out.trace.json")

    def refused(word: str) -> float:
        raise AssertionError(word)

    body = json.loads((tmp_path / "out.trace.json").read_text(), parse_constant=refused)
    assert [row["args"] for row in body["traceEvents"] if row["ph"] == "X"] == [{"x": "inf", "y": 2}]


def test_facts_nested_a_thousand_deep(tmp_path: Path) -> None:
    """What is read of them may be too deep to be made printable: that is told of no file, and raises nothing."""
    for depth in range(200, 1100, 50):
        deep = '{"a":' * depth + "1" + "}" * depth
        (tmp_path / "meta.json").write_text(f'{{"profiler": "cprofile", "file": "x.pstats", "deep": {deep}}}')
        assert detect.artifact_of(tmp_path) in (None, tmp_path / "x.pstats")


@pytest.mark.parametrize("ending", [".pb", ".collapsed", ".trace.json", ".speedscope.json"])
def test_the_largest_numbers_are_written(tmp_path: Path, ending: str) -> None:
    (tmp_path / "l.json").write_text(speedscope({"name": "a"}, [0], [9.2e9]))
    detect.write(detect.read(tmp_path / "l.json"), tmp_path / f"out{ending}")
    scale = 1e-6 if ending == ".collapsed" else 1
    assert detect.read(tmp_path / f"out{ending}").total * scale == pytest.approx(9.2e9)


def test_a_number_of_more_than_64_bits_is_not_cut(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no number as large"):
        detect.write(Profile((Frame("a"),), (Sample((0,), 1e10),), SECONDS), tmp_path / "n.pb")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p.prof")
    with pytest.raises(FormatError, match="not a file"):
        detect.read(tmp_path / "p.prof")


def test_no_name_steers_the_terminal_or_breaks_a_document(tmp_path: Path) -> None:
    # A lone surrogate is what JSON may escape
    path = tmp_path / "s.json"
    path.write_text(speedscope({"name": STEERS, "file": f"{STEERS}.py", "line": 3}, [0], [1.0]))
    stacks = tmp_path / "artifact"
    stacks.mkdir()
    (stacks / "s.collapsed").write_text(f"{STEERS[:5]};b\x1b[31m 5\n")
    (stacks / "meta.json").write_text(
        json.dumps({"profiler": f"p{STEERS}", "file": "s.collapsed", "note": STEERS, "machine": {STEERS: [STEERS]}})
    )
    for file in (path, stacks):
        profile = detect.read(file)
        rows = table(profile)
        shown = "".join([*head_lines(profile, "s"), *table_lines(rows, rows.rows, 300, 0)])
        assert "PWNED" in shown or "b\ufffd" in shown
        assert shown.isprintable(), repr(shown)
        for ending in ("svg", "html", "collapsed", "speedscope.json"):
            target = tmp_path / f"out.{ending}"
            detect.write(profile, target)
            assert not {"\x1b", "\x9b", "\x07"} & set(target.read_text("utf-8"))
            if ending == "svg":
                xml.parse(target)


# ------------------------------------------------------------------ libraries


def prof(path: Path, library: Path, line: str = "08:01 1") -> Path:
    """A profile of one sample in ``library``."""
    words = (0, 3, 0, 10_000, 0, 5, 2, 0x1010, 0x1020, 0, 1, 0)  # header, a sample, the end
    path.write_bytes(struct.pack("<12Q", *words) + f"00001000-00002000 r-xp 00000000 {line} {library}\n".encode())
    return path


def elf(*, programs: int = 0, sections: int = 0, size: int = 200) -> bytes:
    head = bytearray(b"\x7fELF\x02\x01" + b"\0" * (size - 6))
    if size >= 64:
        struct.pack_into("<QQ", head, 32, programs, sections)
        struct.pack_into("<HHHH", head, 54, 56, 1, 64, 1)
    return bytes(head)


def table_before_zero() -> bytes:
    """Functions that begin below 0, by the unwinder's table."""
    data = bytearray(elf(programs=64, size=300))
    struct.pack_into("<IIQQQQ", data, 64, 0x6474E550, 4, 200, 0, 0, 20)
    struct.pack_into("<4BIIii", data, 200, 1, 0x1B, 0x03, 0x3B, 0, 1, -50, 0)
    return bytes(data)


@pytest.mark.parametrize(
    "content", [elf(size=26), elf(programs=1 << 40), elf(programs=64, sections=1 << 40), table_before_zero()]
)
def test_a_damaged_library_costs_its_names_alone(tmp_path: Path, content: bytes) -> None:
    library = tmp_path / "libx.so"
    library.write_bytes(content)
    os.utime(library, (1, 1))
    profile = detect.read(prof(tmp_path / "x.prof", library))
    assert [frame.name.partition("+")[0] for frame in profile.frames] == ["libx.so"] * 2
    assert "no symbols of libx.so" in str(profile.meta["note"]) and "is damaged" in str(profile.meta["note"])


def test_a_pipe_in_the_place_of_a_library(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "libx.so")
    profile = detect.read(prof(tmp_path / "x.prof", tmp_path / "libx.so"))
    assert "is not a file" in str(profile.meta["note"]) and profile.total == pytest.approx(0.05)

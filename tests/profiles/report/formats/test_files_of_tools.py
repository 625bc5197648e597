"""Formats that other tools open: what is written is read back whole, follows its tool's own schema, and says the same
as the real tool's file."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as xml
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from adbg.profiles.report.formats import chrome, collapsed, detect, html, pprof, speedscope, svg
from adbg.profiles.report.formats.problem import FormatError
from adbg.profiles.report.model import (
    BYTES,
    NATIVE,
    NODE,
    SAMPLES,
    SECONDS,
    Builder,
    Frame,
    Profile,
    Sample,
    Span,
)

SCHEMA = json.loads(Path(__file__).parents[3].joinpath("data", "speedscope-schema.json").read_text("utf-8"))
FRAMES = (
    Frame("<module>", "/home/me/train.py", 9),
    Frame("step", "/x/site-packages/torch/optim/sgd.py", 80),
    Frame("at::native::add(at::Tensor const&, long)", side=NATIVE, module="libtorch_cpu.so"),
    Frame("MmBackward0", side=NODE),
    Frame("odd;name\nof <T>", "/home/me/a (b).py", 3),
)
SAMPLES_ = (
    Sample((0, 1, 2), 0.25, "main"),
    Sample((0, 1), 0.125, "main"),
    Sample((3, 2), 0.5, "autograd"),
    Sample((0, 4), 2.0, "main"),
)


def profile(unit: str = SECONDS, period: float = 0.0) -> Profile:
    return Profile(FRAMES, SAMPLES_, unit, period=period)


def stacks(profile: Profile, *, threads: bool = True) -> dict[Any, float]:
    """{(names, thread): weight}"""
    found: dict[Any, float] = {}
    for stack, weight, thread in profile.samples:
        key = tuple(profile.frames[index].name for index in stack), thread if threads else ""
        found[key] = found.get(key, 0.0) + weight
    return found


def shown(found: dict[Any, float]) -> dict[Any, float]:
    """As any file is read: a name has no line end, which would break a table."""
    return {(tuple(name.replace("\n", " ") for name in names), thread): w for (names, thread), w in found.items()}


def clean(found: dict[Any, float]) -> dict[Any, float]:
    """As collapsed stacks have them: no ";" and no line end in a name."""
    return {(tuple(re.sub(r"\n", " ", n.replace(";", ",")) for n in names), t): w for (names, t), w in found.items()}


# ------------------------------------------------------------------ there and back


@pytest.mark.parametrize("ending", [".speedscope.json", ".pb.gz", ".pb"])
def test_what_is_written_is_read_back(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"p{ending}"
    detect.write(profile(), path)
    back = detect.read(path)
    assert back.unit == SECONDS and stacks(back) == pytest.approx(shown(stacks(profile())))
    by_name = {frame.name: frame for frame in back.frames}
    assert by_name["step"] == FRAMES[1]
    assert [by_name[frame.name.replace("\n", " ")].side for frame in FRAMES] == [frame.side for frame in FRAMES]
    assert by_name[FRAMES[2].name].module == "libtorch_cpu.so"


def test_collapsed_stacks_are_read_back_in_microseconds(tmp_path: Path) -> None:
    path = tmp_path / "p.collapsed"
    detect.write(profile(), path)
    back = detect.read(path)
    wanted = {key: weight * 1e6 for key, weight in clean(stacks(profile())).items()}
    assert back.unit == SAMPLES and stacks(back) == wanted
    assert {frame.origin for frame in back.frames} == {"python", "framework", "node"}


@pytest.mark.parametrize("unit", [SAMPLES, BYTES])
def test_units_without_time(tmp_path: Path, unit: str) -> None:
    whole = Profile(FRAMES, (Sample((0, 1), 7.0), Sample((0,), 3.0)), unit)
    for ending in (".speedscope.json", ".pb.gz"):
        detect.write(whole, tmp_path / f"p{ending}")
        back = detect.read(tmp_path / f"p{ending}")
        assert back.unit == unit and stacks(back) == stacks(whole)
    with pytest.raises(FormatError, match="no time line"):
        detect.write(whole, tmp_path / "p.trace.json")


def test_a_name_that_says_no_format(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="which format"):
        detect.write(profile(), tmp_path / "p.txt")
    with pytest.raises(FormatError, match="cannot write"):
        detect.write(profile(), tmp_path / "none" / "p.svg")


@pytest.mark.parametrize("ending", [".speedscope.json", ".pb.gz", ".trace.json"])
def test_one_that_was_cut_off_says_so(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"p{ending}"
    detect.write(profile(), path)
    data = path.read_bytes()
    for size in (len(data) // 2, len(data) - 3):
        path.write_bytes(data[:size])
        with pytest.raises(FormatError, match=re.escape(str(path))):
            detect.read(path)


# ------------------------------------------------------------------ speedscope


def violations(value: object, rule: dict[str, Any], where: str = "$") -> list[str]:
    """What a JSON value has against a schema: the words that speedscope's schema is made of."""
    unknown = rule.keys() - {"type", "const", "enum", "properties", "required", "items", "anyOf", "$ref"}
    assert not unknown - {"$schema", "definitions"}, unknown
    found: list[str] = []
    if "$ref" in rule:
        found += violations(value, SCHEMA["definitions"][rule["$ref"].rpartition("/")[2]], where)
    if "anyOf" in rule and not any(not violations(value, one, where) for one in rule["anyOf"]):
        found.append(f"{where}: none of anyOf")
    types = {"object": dict, "array": list, "string": str, "number": (int, float)}
    if "type" in rule and not isinstance(value, types[rule["type"]]):
        return [*found, f"{where}: no {rule['type']}"]
    if value not in rule.get("enum", [value]) or value != rule.get("const", value):
        found.append(f"{where}: {value!r}")
    if isinstance(value, dict):
        found += [f"{where}: no {name}" for name in rule.get("required", ()) if name not in value]
        for name, inner in rule.get("properties", {}).items():
            found += violations(value[name], inner, f"{where}.{name}") if name in value else []
    if isinstance(value, list):
        for index, item in enumerate(value):
            found += violations(item, rule.get("items", {}), f"{where}[{index}]")
    return found


@pytest.mark.parametrize("unit", [SECONDS, SAMPLES, BYTES])
def test_a_speedscope_file_follows_its_schema(tmp_path: Path, unit: str) -> None:
    path = tmp_path / "p.speedscope.json"
    speedscope.write(profile(unit), path)
    body = json.loads(path.read_text("utf-8"))
    assert violations(body, SCHEMA) == []
    assert [row["endValue"] for row in body["profiles"]] == [sum(row["weights"]) for row in body["profiles"]]
    del body["profiles"][0]["unit"]
    assert violations(body, SCHEMA), "the check can fail"


def test_open_and_close_events(tmp_path: Path) -> None:
    path = tmp_path / "evented.json"
    events = [("O", 0, 0), ("O", 1, 2), ("C", 1, 5), ("C", 0, 6)]
    body = {
        "$schema": SCHEMA["definitions"]["FileFormat.File"]["properties"]["$schema"]["const"],
        "shared": {"frames": [{"name": "outer", "file": "x.py", "line": 2}, {"name": "inner"}]},
        "profiles": [
            {"type": "evented", "name": "main", "unit": "milliseconds", "startValue": 0, "endValue": 6,
             "events": [{"type": kind, "frame": frame, "at": at} for kind, frame, at in events]}
        ],
    }  # fmt: skip
    assert violations(body, SCHEMA) == []
    path.write_text(json.dumps(body))
    found = stacks(detect.read(path))
    assert found == pytest.approx({(("outer",), ""): 0.003, (("outer", "inner"), ""): 0.003})


# ------------------------------------------------------------------ pprof


def test_pprof_is_what_protobuf_reads(tmp_path: Path) -> None:
    """The protobuf library, with the messages of profile.proto, as the second reader."""
    pytest.importorskip("google.protobuf", reason="protobuf is not installed")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    repeated, one = "repeated", "one"
    messages = {
        "ValueType": [("type", 1, 3, one), ("unit", 2, 3, one)],
        "Label": [("key", 1, 3, one), ("str", 2, 3, one), ("num", 3, 3, one)],
        "Sample": [("location_id", 1, 4, repeated), ("value", 2, 3, repeated), ("label", 3, "Label", repeated)],
        "Mapping": [("id", 1, 4, one), ("filename", 5, 3, one), ("has_functions", 7, 8, one)],
        "Line": [("function_id", 1, 4, one), ("line", 2, 3, one)],
        "Location": [("id", 1, 4, one), ("mapping_id", 2, 4, one), ("line", 4, "Line", repeated)],
        "Function": [("id", 1, 4, one), ("name", 2, 3, one), ("system_name", 3, 3, one), ("filename", 4, 3, one)],
        "Profile": [
            ("sample_type", 1, "ValueType", repeated),
            ("sample", 2, "Sample", repeated),
            ("mapping", 3, "Mapping", repeated),
            ("location", 4, "Location", repeated),
            ("function", 5, "Function", repeated),
            ("string_table", 6, 9, repeated),
            ("period_type", 11, "ValueType", one),
            ("period", 12, 3, one),
        ],
    }
    file = descriptor_pb2.FileDescriptorProto(name="p.proto", package="p", syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, number, kind, label in fields:
            row = message.field.add(name=field, number=number, label=3 if label == repeated else 1)
            row.type, row.type_name = (11, f".p.{kind}") if isinstance(kind, str) else (kind, "")
            if not row.type_name:
                row.ClearField("type_name")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    path = tmp_path / "p.pb"
    pprof.write(profile(period=0.01), path)
    body = message_factory.GetMessageClass(pool.FindMessageTypeByName("p.Profile"))()
    body.ParseFromString(path.read_bytes())
    text = body.string_table
    assert text[0] == ""
    assert [(text[row.type], text[row.unit]) for row in body.sample_type] == [("time", "nanoseconds")]
    assert (text[body.period_type.unit], body.period) == ("nanoseconds", 10_000_000)
    functions = {row.id: text[row.name] for row in body.function}
    assert {row.system_name for row in body.function} == {0}, "pprof would cut <module> out of one that is the name"
    locations = {row.id: functions[row.line[0].function_id] for row in body.location}
    found = {
        (tuple(locations[one] for one in reversed(row.location_id)), text[row.label[0].str]): row.value[0] / 1e9
        for row in body.sample
    }
    assert found == pytest.approx(stacks(profile()))
    assert [text[row.filename] for row in body.mapping] == ["libtorch_cpu.so"]


def go_pprof() -> list[str] | None:
    if shutil.which("pprof"):
        help_ = subprocess.run(["pprof", "-h"], capture_output=True, text=True, timeout=60)
        return ["pprof"] if "profile.pb.gz" in help_.stdout + help_.stderr else None  # gperftools' has that name too
    return ["go", "tool", "pprof"] if shutil.which("go") else None


@pytest.mark.skipif(go_pprof() is None, reason="neither pprof nor go is installed")
def test_pprof_is_what_go_tool_pprof_reads(tmp_path: Path) -> None:
    path = tmp_path / "p.pb.gz"
    pprof.write(profile(), path)
    command = [*(go_pprof() or []), "-top", "-unit=ms", str(path)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
    rows = {found[3]: found[1] for found in re.finditer(r"^ *([\d.]+m?s?) .*% +([\d.]+m?s?) .*% +(.*)$", said, re.M)}
    assert rows["<module>"] == "0" and rows["at::native::add(at::Tensor const&, long)"] == "750ms", said


def test_negative_and_large_numbers() -> None:
    data = pprof._number(1, -3) + pprof._number(2, (1 << 63) - 1) + pprof._packed(3, [-1, 300])
    found = dict(pprof.fields(data))
    assert [pprof._integers(found[key]) for key in (1, 2, 3)] == [[-3], [(1 << 63) - 1], [-1, 300]]


# ------------------------------------------------------------------ time lines


def event(name: str, ts: float, dur: float, tid: int = 1, **more: object) -> dict[str, object]:
    return {"ph": "X", "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": tid, "cat": "cpu_op", **more}


def test_events_within_others_are_called_by_them(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    rows = [
        event("a", 0, 100),
        event("b", 10, 30),
        event("c", 15, 5),
        event("b", 50, 10),
        event("late", 95, 20),
        event("after", 130, 1),
        event("x", 0, 7, 2),
    ]
    path.write_text(json.dumps({"traceEvents": rows}))
    found = stacks(detect.read(path), threads=False)
    micro = {names: round(weight * 1e6) for (names, _), weight in found.items()}
    assert micro == {("a",): 55, ("a", "b"): 35, ("a", "b", "c"): 5, ("a", "late"): 5, ("after",): 1, ("x",): 7}


def test_a_trace_keeps_spans_and_moments(tmp_path: Path) -> None:
    spans = (
        Span("iteration 1", "iteration", 1.0, 0.5, "iterations", "program"),
        Span(
            "MmBackward0#3",
            "node",
            1.1,
            0.2,
            "autograd",
            "program",
            {"file": "/home/me/m.py", "line": 4, "module": "net.a"},
        ),
        Span("VLOG 3 hooks.cc", "vlog", 1.15, 0.0, "autograd", "program", {"level": 3}),
    )
    path = tmp_path / "t.trace.json"
    chrome.write(Profile(unit=SECONDS, spans=spans), path)
    body = json.loads(path.read_text("utf-8"))
    kinds = {row["name"]: row["ph"] for row in body["traceEvents"]}
    assert kinds["MmBackward0#3"] == "X" and kinds["VLOG 3 hooks.cc"] == "i"
    names = {row["args"]["name"] for row in body["traceEvents"] if row["ph"] == "M"}
    assert names == {"program", "iterations", "autograd"}
    for row in body["traceEvents"]:  # what the Trace Event Format requires of these kinds
        assert {"name", "ph", "ts", "pid", "tid"} <= row.keys() and (row["ph"] != "X" or row["dur"] > 0)
        assert all(isinstance(row[key], (int, float)) for key in ("ts", "pid", "tid"))
    back = detect.read(path)
    assert [(span.name, span.category, span.duration) for span in back.spans] == [
        (span.name, span.category, pytest.approx(span.duration)) for span in spans
    ]
    node = next(frame for frame in back.frames if frame.name == "MmBackward0#3")
    assert node == Frame("MmBackward0#3", "/home/me/m.py", 4, NODE, "net.a")


def test_samples_on_a_time_line(tmp_path: Path) -> None:
    path = tmp_path / "s.trace.json"
    chrome.write(profile(), path)
    assert stacks(detect.read(path), threads=False) == pytest.approx(
        {(names, ""): weight for (names, _), weight in shown(stacks(profile())).items()}, abs=1e-9
    )


# ------------------------------------------------------------------ pages


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "rect":
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "td":
            self.cells.append(data)


def test_the_svg_has_each_frame_as_wide_as_its_share(tmp_path: Path) -> None:
    path = tmp_path / "p.svg"
    svg.write(profile(), path)
    root = xml.parse(path).getroot()
    name = "{http://www.w3.org/2000/svg}"
    boxes = {}
    for group in root.iter(f"{name}g"):
        title, rect = group.find(f"{name}title"), group.find(f"{name}rect")
        assert title is not None and rect is not None
        boxes[str(title.text).split("\n")[0]] = float(rect.attrib["width"])
    total = sum(sample.weight for sample in SAMPLES_)
    assert boxes["all"] == 1200
    assert boxes["<module>"] == pytest.approx(1200 * 2.375 / total, abs=0.5)
    assert boxes["MmBackward0"] == pytest.approx(1200 * 0.5 / total, abs=0.5)


def test_the_page_is_one_file(tmp_path: Path) -> None:
    path = tmp_path / "p.html"
    html.write(profile(), path)
    tags = Tags()
    tags.feed(path.read_text("utf-8"))
    tags.close()
    assert tags.open == [] and tags.loads == []
    assert "<module>" in tags.cells and "2.375 s" in tags.cells and "750 ms" in tags.cells


# ------------------------------------------------------------------ py-spy


def py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")


BUSY = """import time
def inner():
    end = time.time() + 1.2
    while time.time() < end: pass
def outer():
    inner()
outer()
end = time.time() + 0.4  # py-spy writes the end of a function when it sees another one run
while time.time() < end: pass
"""


@pytest.mark.skipif(py_spy() is None, reason="py-spy is not installed")
@pytest.mark.parametrize("kind", ["raw", "speedscope", "chrometrace"])
def test_files_of_py_spy(tmp_path: Path, kind: str) -> None:
    script = tmp_path / "busy.py"
    script.write_text(BUSY)
    path = tmp_path / f"out.{kind}"
    command = [str(py_spy()), "record", "-r", "50", "-f", kind, "-o", str(path), "--", sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    if not path.exists():
        pytest.skip(f"py-spy cannot record here: {done.stderr.strip()[-200:]}")
    assert detect.kind_of(path) == {"raw": "collapsed", "chrometrace": "chrome"}.get(kind, kind)
    found = detect.read(path)
    inside = sum(
        w for (names, _), w in stacks(found).items() if "inner" in names and names.index("outer") < names.index("inner")
    )
    assert inside > 0.2 * found.total  # on a busy machine starting takes long
    frame = next(frame for frame in found.frames if frame.name == "inner")
    assert frame.file.endswith("busy.py") and frame.line in (2, 3, 4) and frame.origin == "python"


# ------------------------------------------------------------------ detection


@pytest.mark.parametrize(
    "text", ["print('hi')\n", "", "{}", "[1, 2]", "epoch 1\nepoch 2 loss 3.1x\n", '{"a": 1}', "<svg/>", "\x7fELF"]
)
def test_what_is_no_profile(tmp_path: Path, text: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(text)
    assert not detect.is_profile(path)
    with pytest.raises(FormatError, match="is no profile"):
        detect.read(path)


def test_frames_as_py_spy_writes_them() -> None:
    assert collapsed.frame_of("inner (a b/x (1).py:12)") == Frame("inner", "a b/x (1).py", 12)
    assert collapsed.frame_of("at::add(int) (libtorch_cpu.so)").module == "libtorch_cpu.so"
    assert collapsed.frame_of("at::add(int) (libtorch_cpu.so)").name == "at::add(int)"
    assert collapsed.frame_of("at::add(int)").side == NATIVE
    assert collapsed.frame_of("_find (<frozen importlib._bootstrap>:11)").line == 11
    assert Builder().frames == ()

"""Small files that stand for a lot: how many steps a reader takes and how deep its stacks are, never for how long."""

from __future__ import annotations

import contextlib
import json
import marshal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from adbg.profiles.report import call_stacks, model
from adbg.profiles.report.formats import collapsed, detect, pprof
from adbg.profiles.report.formats.problem import FormatError
from adbg.profiles.report.model import DEEPEST, Builder, Frame, Profile

pytestmark = pytest.mark.skipif(sys.gettrace() is not None, reason="another tracer is at work")
DEEP = DEEPEST + 900
_Key = tuple[str, int, str]


class TooMany(BaseException):
    """Not caught by a reader, which may catch any error."""


@contextlib.contextmanager
def steps(most: int) -> Iterator[None]:
    """Ends what runs more than so many lines of the reports' code; each turn of a comprehension is one."""
    count = 0

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        if count > most:
            raise TooMany(f"more than {most:,} steps")
        return line

    sys.settrace(lambda frame, event, argument: line if "/report/" in frame.f_code.co_filename else None)
    try:
        yield
    finally:
        sys.settrace(None)


def deepest(profile: Profile) -> int:
    return max(len(sample.stack) for sample in profile.samples)


def key(number: int, part: int = 0) -> _Key:
    return ("a.py", 10 * number + part + 1, "f")


def test_times_that_contradict_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """30 layers of 4 functions, each of which takes as long as the whole: 4**30 ways to the last."""
    monkeypatch.setattr(call_stacks, "_STEPS", 4000)
    path = tmp_path / "dag.pstats"
    table: dict[_Key, Any] = {}
    for layer in range(30):
        for part in range(4):
            callers = {key(layer - 1, other): (1, 1, 0.0001, 1.0) for other in range(4)} if layer else {}
            table[key(layer, part)] = (1, 1, 0.001, 1.0, callers)
    path.write_bytes(marshal.dumps(table))
    with steps(300_000):
        profile = detect.read(path)
    assert profile.total == pytest.approx(120 * 0.001), "no time is lost"


@pytest.mark.parametrize("closed", [False, True], ids=["a chain", "a circle"])
def test_functions_that_call_the_next(tmp_path: Path, closed: bool) -> None:
    path = tmp_path / "chain.pstats"
    table: dict[_Key, Any] = {}
    for number in range(DEEP):
        rest = float(DEEP - number) * 0.001
        above = {key(number - 1): (1, 1, 0.001, rest)} if number else {key(DEEP - 1): (1, 1, 0.0, 0.0)}
        table[key(number)] = (2, 2, 0.001, rest, above if number or closed else {})
    path.write_bytes(marshal.dumps(table))
    profile = detect.read(path)
    assert deepest(profile) <= DEEPEST and profile.total == pytest.approx(DEEP * 0.001)


def test_many_pairs_that_call_each_other(tmp_path: Path) -> None:
    """Each pair is a circle of its own: none of them looks at the whole table."""
    path = tmp_path / "pairs.pstats"
    table: dict[_Key, Any] = {}
    for pair in range(1000):
        for part in range(2):
            table[key(pair, part)] = (2, 2, 0.001, 0.002, {key(pair, 1 - part): (1, 1, 0.001, 0.001)})
    path.write_bytes(marshal.dumps(table))
    with steps(3_000_000):
        assert detect.read(path).total == pytest.approx(2.0)


def test_events_within_events(tmp_path: Path) -> None:
    events = [{"ph": "X", "name": "f", "ts": at, "dur": 2 * DEEP - 2 * at, "pid": 1, "tid": 1} for at in range(DEEP)]
    path = tmp_path / "nest.json"
    path.write_text(json.dumps({"traceEvents": events}))
    with steps(200 * DEEP):
        profile = detect.read(path)
    assert deepest(profile) == DEEPEST and profile.total == pytest.approx(2 * DEEP / 1e6)


def test_open_events_within_open_events(tmp_path: Path) -> None:
    events = [{"type": "O", "frame": 0, "at": at} for at in range(DEEP)]
    events += [{"type": "C", "frame": 0, "at": DEEP + at} for at in range(DEEP)]
    rows = [{"type": "evented", "name": "x", "unit": "none", "startValue": 0, "events": events}]
    schema = "https://www.speedscope.app/file-format-schema.json"
    path = tmp_path / "nest.speedscope.json"
    path.write_text(json.dumps({"$schema": schema, "shared": {"frames": [{"name": "f"}]}, "profiles": rows}))
    with steps(200 * DEEP):
        profile = detect.read(path)
    assert deepest(profile) == DEEPEST and profile.total == 2 * DEEP - 1


def test_a_stack_of_many_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = 0

    class Parts(list[str]):
        def __getitem__(self, at: Any) -> Any:
            nonlocal copied
            found = super().__getitem__(at)
            if isinstance(at, slice):
                copied += len(found)
                return Parts(found)
            return found

    class Line(str):
        def split(self, *arguments: Any) -> Any:
            return Parts(super().split(*arguments))

    split = collapsed._split

    def parted(line: str) -> tuple[str, str] | None:
        found = split(line)
        return found and (Line(found[0]), found[1])

    monkeypatch.setattr(collapsed, "_split", parted)
    path = tmp_path / "threads.collapsed"
    path.write_text("thread (1);" * 3000 + "f 1\n" + "f;" * DEEP + "g 2\n")
    profile = collapsed.read(path)
    assert copied <= 3000 + 2 * DEEP and deepest(profile) == DEEPEST
    assert [(sample.thread, sample.weight) for sample in profile.samples] == [("1", 1.0), ("", 2.0)]


def pb(location: list[int], lines: int, samples: int) -> bytes:
    number, text, packed = pprof._number, pprof._bytes, pprof._packed
    sample = text(2, packed(1, location) + packed(2, [1]))
    functions = text(5, number(1, 1) + number(2, 3))
    inlined = text(4, number(1, 1) + text(4, number(1, 1)) * lines)
    strings = b"".join(text(6, word) for word in (b"", b"cpu", b"count", b"f"))
    return text(1, number(1, 1) + number(2, 2)) + sample * samples + inlined + functions + strings


def test_locations_of_many_inlined_functions(tmp_path: Path) -> None:
    path = tmp_path / "x.pb"
    path.write_bytes(pb([1] * 2000, 2000, 1))
    with steps(500_000):
        assert deepest(detect.read(path)) == DEEPEST
    path.write_bytes(pb([1], 2000, 4000))
    with pytest.raises(FormatError, match="as large as the file"), steps(1_200_000):
        detect.read(path)


def test_different_stacks_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "LARGEST", 100)  # 9 stacks of 11, once each
    builder = Builder()
    frames = [builder.frame(Frame(str(number))) for number in range(20)]
    for number in range(9):
        for _ in range(2):
            builder.add([*frames[:10], frames[number]], 1.0)
    with pytest.raises(ValueError, match="frames"):
        builder.add(frames[:12], 1.0)
    places = Builder()
    at = 0
    with pytest.raises(ValueError, match="frames"):
        for number in range(20):
            at = places.below(at, places.frame(Frame(str(number))))
            places.weigh(at, 1.0)

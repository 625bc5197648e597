"""cProfile's files against the standard library's own reader of them, ``pstats``."""

from __future__ import annotations

import cProfile
import io
import pstats
import time
from dataclasses import replace
from pathlib import Path

import pytest

from adbg.profiles.report.flame import Tree
from adbg.profiles.report.formats import collapsed, detect
from adbg.profiles.report.formats import pstats as format_
from adbg.profiles.report.formats.problem import FormatError
from adbg.profiles.report.model import SECONDS, Frame
from adbg.profiles.report.tables import Order, table


def spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def short() -> None:
    spin(0.01)


def long() -> None:
    spin(0.04)


def again(depth: int) -> int:
    return depth and again(depth - 1) + again(depth - 1)


def work() -> None:
    short()
    long()
    again(6)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pstats") / "work.pstats"
    profiler = cProfile.Profile()
    profiler.runcall(work)
    profiler.dump_stats(path)
    return path


def witness(path: Path) -> dict[tuple[str, int, str], tuple[int, int, float, float]]:
    """What the standard library reads: {(file, line, function): (primitive calls, calls, own, cumulative)}."""
    stats = pstats.Stats(str(path), stream=io.StringIO())
    return {key: row[:4] for key, row in stats.stats.items()}  # type: ignore[attr-defined]


def key(frame: Frame) -> tuple[str, int, str]:
    return (frame.file, frame.line, frame.name) if frame.file else ("~", 0, frame.name)


def test_each_row_is_what_pstats_says(file: Path) -> None:
    assert detect.kind_of(file) == "pstats"
    rows = table(detect.read(file)).rows
    assert {key(row.frame): (row.primitive, row.calls, row.own, row.cumulative) for row in rows} == witness(file)
    recursive = next(row for row in rows if row.frame.name == "again")
    assert (recursive.calls, recursive.primitive) == (127, 1)


@pytest.mark.parametrize(
    ("order", "theirs"), [(Order.SELF, "tottime"), (Order.CUMULATIVE, "cumtime"), (Order.CALLS, "ncalls")]
)
def test_the_order_is_theirs(file: Path, order: Order, theirs: str) -> None:
    stats = pstats.Stats(str(file), stream=io.StringIO()).sort_stats(theirs)
    column = {"tottime": 2, "cumtime": 3, "ncalls": 1}[theirs]
    wanted = [stats.stats[key][column] for key in stats.fcn_list]  # type: ignore[attr-defined]
    ours = [{2: row.own, 3: row.cumulative, 1: row.calls}[column] for row in table(detect.read(file), order=order).rows]
    assert ours == wanted


def test_stacks_share_the_time_as_it_was_measured(file: Path) -> None:
    """``spin`` is called from two functions, for 10 and for 40 ms: its own time lies below each as measured."""
    profile = detect.read(file)
    measured = witness(file)
    assert sum(sample.weight for sample in profile.samples) == pytest.approx(sum(row[2] for row in measured.values()))
    tree = Tree(profile)
    own = {}
    for node in range(1, len(tree)):
        names = [profile.frames[tree.frame[one]].name for one in tree.path(node)[1:]]
        own[tuple(names)] = tree.own[node]
    stats = pstats.Stats(str(file), stream=io.StringIO()).stats  # type: ignore[attr-defined]
    callers = next(row[4] for (_, _, name), row in stats.items() if name == "spin")
    wanted = {name: counts[2] for (_, _, name), counts in callers.items()}
    assert wanted.keys() == {"short", "long"}
    for name, seconds in wanted.items():
        assert own["work", name, "spin"] == pytest.approx(seconds)
    recursive = next(row[2] for (_, _, name), row in measured.items() if name == "again")
    assert own["work", "again"] == pytest.approx(recursive), "recursion: one frame"


def test_written_again_it_is_the_same(file: Path, tmp_path: Path) -> None:
    again_ = tmp_path / "again.pstats"
    detect.write(detect.read(file), again_)
    assert witness(again_) == witness(file)
    one, two = (pstats.Stats(str(path), stream=io.StringIO()) for path in (file, again_))
    assert {k: row[4] for k, row in one.stats.items()} == {k: row[4] for k, row in two.stats.items()}  # type: ignore[attr-defined]


def test_samples_as_a_pstats_file(tmp_path: Path) -> None:
    stacks = tmp_path / "s.collapsed"
    stacks.write_text(
        "main (x.py:9);inner (x.py:3) 7\nmain (x.py:8) 2\nmain (x.py:9);inner (x.py:4);inner (x.py:5) 1\n"
    )
    target = tmp_path / "s.pstats"
    counted = collapsed.read(stacks)
    with pytest.raises(FormatError, match="has times"):
        format_.write(counted, target)
    format_.write(replace(counted, unit=SECONDS), target)
    found = witness(target)
    assert found["x.py", 0, "main"][2:] == (2, 10) and found["x.py", 0, "inner"][2:] == (8, 8)


@pytest.mark.parametrize("size", [1, 40, 200])
def test_one_that_was_cut_off_says_so(file: Path, tmp_path: Path, size: int) -> None:
    part = tmp_path / "cut.pstats"
    part.write_bytes(file.read_bytes()[:size])
    with pytest.raises(FormatError, match=r"cut\.pstats is no "):
        detect.read(part)


def test_a_profile_of_nothing(tmp_path: Path) -> None:
    path = tmp_path / "empty.pstats"
    profiler = cProfile.Profile()
    profiler.enable()
    profiler.disable()
    profiler.clear()
    profiler.dump_stats(path)
    assert detect.read(path).empty

"""Rows of sampled profiles: where to look, and nothing that did not run."""

from __future__ import annotations

import pstats
from pathlib import Path
from typing import Any

from adbg.profiles.profilers.own_stacks import without_waits
from adbg.profiles.report.formats import chrome, collapsed
from adbg.profiles.report.formats import pstats as written
from adbg.profiles.report.model import NATIVE, SECONDS, Frame, Profile, Sample, Span
from adbg.profiles.report.tables import table

LIBC = "/usr/lib/x86_64-linux-gnu/libc.so.6"
WAITING = f"Thread-1;run (t.py:5);pthread_cond_wait@@GLIBC_2.3.2 ({LIBC});0x7f4318aa3f16 ({LIBC}) 25\n"
RUNNING = f"main (t.py:3);step (t.py:9);memcpy ({LIBC});0x7f43000000ff ({LIBC}) 4\nmain (t.py:3);step (t.py:11) 7\n"


def test_threads_that_wait_did_not_run() -> None:
    assert without_waits(WAITING + RUNNING) == (RUNNING, 25)
    assert without_waits(WAITING) == (WAITING, 0), "a deadlock"
    called = "sleep (t.py:5);mul (/x/libtorch_cpu.so) 3\nwait (t.py:5);poll (my/fast.so);work (my/fast.so) 2\n"
    assert without_waits(called) == (called, 0), "named so, and nothing that waits"


def test_addresses_are_their_librarys_and_a_function_has_its_heaviest_line(tmp_path: Path) -> None:
    (tmp_path / "x.collapsed").write_text(RUNNING + f"main (t.py:3);0x7f4318aa4193 ({LIBC}) 2\n")
    rows = {row.frame.name: row for row in table(collapsed.read(tmp_path / "x.collapsed")).rows}
    assert set(rows) == {"main", "step", "memcpy", "libc.so.6 (no symbol)"}
    assert (rows["libc.so.6 (no symbol)"].own, rows["libc.so.6 (no symbol)"].frame.module) == (6, LIBC)
    assert (rows["step"].own, rows["step"].cumulative, rows["step"].frame.line) == (7, 11, 11)


def stats_of(profile: Profile, folder: Path) -> dict[str, tuple[Any, ...]]:
    """As the standard library reads it."""
    written.write(profile, folder / "x.pstats")
    return {name: row for (_, _, name), row in pstats.Stats(str(folder / "x.pstats")).stats.items()}  # type: ignore[attr-defined]


def test_an_event_of_a_time_line_is_a_call(tmp_path: Path) -> None:
    spans = [Span("step", "", 10.0 * n, 9.0, "1", "p") for n in range(5)]
    spans += [Span("mm", "", 10.0 * n + k, 0.5, "1", "p") for n in range(5) for k in (1, 2, 3)]
    found = stats_of(chrome.of_spans(spans, {}), tmp_path)
    assert found["step"][1] == 5 and found["mm"][1] == 15
    ((caller, counts),) = found["mm"][4].items()
    assert caller[2] == "step" and counts[0] == 15


def test_samples_stay_samples(tmp_path: Path) -> None:
    frames = (Frame("main", "t.py", 3), Frame("mm", side=NATIVE, module="x.so"))
    profile = Profile(frames, (Sample((0, 1), 0.9), Sample((0,), 0.09)), SECONDS, period=0.01)
    collapsed.write(profile, tmp_path / "x.collapsed")
    assert collapsed.read(tmp_path / "x.collapsed").total == 99
    assert stats_of(profile, tmp_path)["main"][1] == 99

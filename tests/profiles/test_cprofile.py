"""cProfile without the module of that name: its file is the one that the real cProfile writes."""

from __future__ import annotations

import cProfile
import os
import pstats
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from adbg.profiles.base import ProfileError
from adbg.profiles.profilers import cprofile
from adbg.profiles.profilers.cprofile import CProfile, as_pstats, without_own
from adbg.profiles.region import Region


def work(depth: int = 6) -> int:
    return 1 if depth < 2 else work(depth - 1) + work(depth - 2) + len(sorted([3, 1]))


def measured(folder: Path) -> pstats.Stats:
    profiler = CProfile()
    profiler.start(Region("run"), str(folder))
    work()
    artifact = profiler.stop()
    return pstats.Stats(str(folder / artifact.file))


def counts(stats: pstats.Stats) -> dict[str, tuple[int, int]]:
    rows = stats.stats  # type: ignore[attr-defined]
    return {name: (cc, nc) for (file, _, name), (cc, nc, *_) in rows.items() if name == "work" or "sorted" in name}


def test_pstats_reads_it_and_counts_as_cprofile_does(tmp_path: Path) -> None:
    real = cProfile.Profile()
    real.enable()
    work()
    real.disable()
    assert counts(measured(tmp_path)) == counts(pstats.Stats(real)) != {}


def test_the_same_entries_make_the_same_statistics() -> None:
    profile = cProfile.Profile()
    profile.enable()
    work()
    profile.disable()
    made = as_pstats(profile.getstats())
    profile.create_stats()
    assert made == profile.stats  # type: ignore[attr-defined]


def test_functions_of_adbgs_are_taken_out_and_their_callees_kept() -> None:
    user, own, engine = ("/x/train.py", 1, "step"), ("/adbg/entry.py", 9, "run"), ("~", 0, "<method 'run_backward'>")
    clock = ("~", 0, "<perf_counter_ns>")
    stats = {
        user: (1, 1, 0.1, 1.0, {}),
        own: (1, 1, 0.2, 0.9, {user: (1, 1, 0.2, 0.9)}),
        engine: (1, 1, 0.6, 0.6, {own: (1, 1, 0.6, 0.6)}),
        clock: (4, 4, 0.1, 0.1, {own: (4, 4, 0.1, 0.1)}),
    }
    kept, seconds = without_own(stats, ("/adbg/",))  # type: ignore[arg-type]
    assert set(kept) == {user, engine}
    assert kept[engine][4] == {user: (1, 1, 0.6, 0.6)}, "its caller is the user's function now"
    assert seconds == pytest.approx(0.3)


def test_adbgs_time_is_in_no_cumulative_time_either(tmp_path: Path) -> None:
    """By the clock of each part: what the user's function waits for in adbg is none of its time."""
    lines = ("spin(0.05)", "threading.Event().set()", "call()", "spin(0.05)")
    source = "import threading\ndef entered(call):\n" + "".join(f"    {line}\n" for line in lines)
    (tmp_path / "own").mkdir()
    clocks = {"user": 0.0}

    def spin(seconds: float) -> None:
        begin = time.process_time()
        while time.process_time() - begin < seconds:
            pass

    def user() -> None:
        spin_of_users()

    def spin_of_users() -> None:
        begin = time.perf_counter()
        end = time.process_time() + 0.02
        while time.process_time() < end:
            pass
        clocks["user"] += time.perf_counter() - begin

    file = str(tmp_path / "own" / "entry.py")
    names: dict[str, Any] = {}
    exec(compile(source, file, "exec"), names)
    code = spin.__code__.replace(co_filename=file)
    names["spin"] = type(spin)(code, spin.__globals__, "spin")

    def step() -> None:
        names["entered"](user)
        names["entered"](user)

    profile = cProfile.Profile()
    begin = time.perf_counter()
    profile.enable()
    step()
    profile.disable()
    in_all = time.perf_counter() - begin
    kept, seconds = without_own(as_pstats(profile.getstats()), (str(tmp_path / "own"),))
    by_name = {label[2]: row for label, row in kept.items()}
    whole = sum(row[2] for row in kept.values())
    assert all(row[2] <= row[3] <= whole * 1.000001 for row in kept.values()), "as pstats has it"
    assert {"step", "user", "spin_of_users"} <= by_name.keys() and not {"spin", "entered", "set"} & by_name.keys()
    assert all(cost[3] <= kept[caller][3] * 1.01 for row in kept.values() for caller, cost in row[4].items())
    assert by_name["step"][3] == pytest.approx(clocks["user"], rel=0.15) and by_name["step"][3] < in_all / 2
    assert by_name["user"][3] == pytest.approx(by_name["step"][3], rel=0.1)
    assert seconds + whole == pytest.approx(in_all, rel=0.1)


def test_the_programs_own_profiler_keeps_its_place(tmp_path: Path) -> None:
    mine = cProfile.Profile()
    mine.enable()
    try:
        before = sys.getprofile()
        with pytest.raises(ProfileError, match="already"):
            CProfile().start(Region("run"), str(tmp_path))
        assert sys.getprofile() is before
        work()
    finally:
        mine.disable()
    assert any("work" in row[2] for row in pstats.Stats(mine).stats)  # type: ignore[attr-defined]
    assert os.listdir(tmp_path) == []


def test_a_program_with_a_profile_py_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "profile.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("profile", "cProfile"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    folder = tmp_path / "out"
    folder.mkdir()
    assert counts(measured(folder))
    assert "profile" not in sys.modules


def test_saved_meanwhile_and_paused(tmp_path: Path) -> None:
    profiler = CProfile()
    profiler.start(Region("run"), str(tmp_path))
    work()
    profiler.checkpoint()
    first = counts(pstats.Stats(str(tmp_path / cprofile.FILE)))
    profiler.pause()
    work()
    profiler.resume()
    profiler.checkpoint()
    assert counts(pstats.Stats(str(tmp_path / cprofile.FILE))) == first, "what ran while it was paused is not in it"
    work()
    profiler.stop()
    last = counts(pstats.Stats(str(tmp_path / cprofile.FILE)))
    assert last["work"][1] == 2 * first["work"][1], "and what came after is"
    assert sys.getprofile() is None


def test_another_thread_does_not_end_it(tmp_path: Path) -> None:
    """``disable`` on another thread would leave this one profiled for ever, and switch off one of that thread's own."""
    profiler = CProfile()
    profiler.start(Region("run"), str(tmp_path))
    work()
    thread = threading.Thread(target=profiler.pause)
    thread.start()
    thread.join()
    still = cprofile.active()
    profiler.stop()
    assert still

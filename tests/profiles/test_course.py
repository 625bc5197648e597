"""A profile and the threads around it: one that asks while another ends it, starts it, or has left. No thread of the
program waits for a profiler, nor for adbg."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.frameworks import on_frameworks
from support.patience import patience
from support.profile_run import Run, comes, on_a_thread
from support.program import wait_until

from adbg.engine.errors import CommandError
from adbg.engine.protocol import messages as p
from adbg.profiles import control, course, registry
from adbg.profiles.base import Artifact, Availability, Profiler, Where
from adbg.profiles.profilers import node_timer
from adbg.profiles.region import Region


class Slow(Profiler):
    """Writes for as long as it is held."""

    name = "slow"
    what = file = format = "none"
    writes = threading.Event()
    go_on = threading.Event()

    def available(self) -> Availability:
        return Availability(True)

    def start(self, region: Region, folder: str) -> None:
        self.folder = folder

    def stop(self) -> Artifact:
        self.writes.set()
        self.go_on.wait(patience(60))
        return Artifact(self.name, self.folder, self.file, self.format)


class Beside(Slow):
    name = "beside"
    where: Where = "outside"


@pytest.fixture
def run(framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    for kind in (Slow, Beside):
        monkeypatch.setitem(registry.REGISTRY, kind.name, kind)
    Slow.writes.clear()
    Slow.go_on.clear()
    run = Run(framework, tmp_path)
    yield run
    Slow.go_on.set()
    assert comes(on_a_thread(run.session.detach))


@on_frameworks()
def test_another_is_asked_for_while_one_is_written(framework: str, run: Run) -> None:
    """It is refused at once, and both threads go on; nothing is told to be done before its file is there."""
    run.start("slow", 1)
    program = on_a_thread(lambda: (run.step(), run.step(), run.step()))
    assert Slow.writes.wait(patience(20))
    refused: list[str] = []

    def asks() -> None:
        try:
            run.start("cprofile", 1)
        except CommandError as error:
            refused.append(str(error))

    reader = on_a_thread(asks)
    assert comes(reader) and "writes what it measured" in refused[0]
    assert run.state == "running"
    Slow.go_on.set()
    assert comes(program) and comes(reader)
    assert run.told[-1] == ("done", "done") and run.state == "done"
    run.start("cprofile", 1)
    run.step()
    run.step()
    assert run.told[-1] == ("done", "done") and run.profiling.state().profiler == "cprofile"


@on_frameworks()
@pytest.mark.parametrize("by", ["stop", "drop", "detach"])
def test_a_profiler_beside_the_program_that_is_not_wanted_any_more(
    framework: str, by: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program is held until that one runs: what ends it lets the program go on at once."""
    monkeypatch.setattr(course, "HELD", 1000.0)
    run.start("beside", 3)
    program = on_a_thread(lambda: (run.step(), run.step()))
    wait_until(lambda: run.state == "ready", "it is held")
    ends = run.session.detach if by == "detach" else lambda: run.profiling.answer(p.Profile(by))
    reader = on_a_thread(ends)
    assert comes(reader) and comes(program)
    assert run.state == ("idle" if by == "drop" else "partial") and not Slow.writes.is_set()


@on_frameworks()
def test_seconds_beside_the_program_hold_nobody(framework: str, run: Run) -> None:
    """Whoever asks is who hears that it runs."""
    reader = on_a_thread(lambda: run.start("beside", 1000, "seconds"))
    assert comes(reader)
    wait_until(lambda: run.state == "ready", "its begin")
    run.profiling.answer(p.Profile("go"))
    wait_until(lambda: run.state == "running", "it is measured")
    Slow.go_on.set()
    run.profiling.answer(p.Profile("stop"))
    assert run.told[-1] == ("done", "done")


@on_frameworks()
@pytest.mark.parametrize("main", [True, False])
def test_a_profiler_of_a_thread_ends_there_after_adbg_has_left(
    framework: str, main: bool, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That thread is in C while adbg leaves. Witness: the framework itself, which has one profiler at a time."""
    monkeypatch.setattr(control, "COMES_SOON", 0.05)
    step, found, (ear, mouth) = run.step, [], os.pipe()

    def leaves(thread: int) -> None:
        wait_until(lambda: reads(thread, ear), "it is in C")
        run.session.detach()
        os.write(mouth, b"x")

    def program() -> None:
        run.start(framework, 10**6)
        step()
        step()
        thread = threading.get_native_id()
        reader = on_a_thread(lambda: leaves(thread))
        os.read(ear, 1)
        reader.join()
        if not main:
            found.append(run.state)
            assert other_profiler(framework, begins=False)
            step()
        found.extend((run.state, other_profiler(framework, begins=True)))
        step()

    if main:
        program()
    else:
        assert comes(on_a_thread(program))
    os.close(ear)
    os.close(mouth)
    assert found == ([] if main else ["running"]) + ["partial", False]
    (state,) = (state for state, _ in run.told if state == "partial")
    assert run.told[-1] == (state, "partial") and run.profiling.state().file == "trace.json"
    assert not [name for name in left_behind(framework) if "MakeWay" in name]


def reads(thread: int, descriptor: int) -> bool:
    words = Path(f"/proc/self/task/{thread}/syscall").read_text().split()
    return words[:2] == ["0", hex(descriptor)]


def other_profiler(framework: str, begins: bool) -> bool:
    """Whether one is at work on this thread."""
    if framework == "torch":
        import torch

        return bool(torch.autograd._profiler_enabled())
    import paddle

    if not begins:
        return True  # making one ends adbg's
    mine = paddle.profiler.Profiler(on_trace_ready=lambda found: None)
    return mine.profiler is None


def left_behind(framework: str) -> list[str]:
    """Functions that stand in for the framework's."""
    if framework == "torch":
        import torch

        return [f.__qualname__ for f in (torch.autograd.backward, torch.autograd.grad)]
    import paddle

    return [f.__qualname__ for f in (paddle.Tensor.backward, paddle.autograd.backward, paddle.grad)]


@on_frameworks()
def test_the_node_timer_is_let_go_of_and_counts_what_other_threads_add(
    framework: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row and an iteration come while it writes, each of a place of its own."""
    before = list(run.session._observers)
    run.start("nodes", 5)
    run.step()
    (timer,) = (each for each in run.session._observers if each not in before)
    assert isinstance(timer, node_timer.NodeTimer)
    median, added = node_timer.median, []

    def adds(values: Any) -> float:
        if timer._rows and timer._iterations:
            place = f"other:{len(added)}"
            timer._rows[place, 1, "X"] = next(iter(timer._rows.values()))
            timer._iterations.append({**timer._iterations[0], "place": place})
            timer._waits[place, 1] = [0.0, 1]
            added.append(place)
        return median(values)

    monkeypatch.setattr(node_timer, "median", adds)
    for _ in range(5):
        run.step()
    assert added and run.told[-1] == ("done", "done"), run.profiling.state().why
    assert run.session._observers == before

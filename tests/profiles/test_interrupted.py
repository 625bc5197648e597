"""A signal handler of the program's that raises anywhere in a measurement's course. The end is told all the same, once;
nothing of the measurement stays, and another one can be asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from support.frameworks import on_frameworks
from support.profile_run import Run, comes, on_a_thread
from support.profiling import names

from adbg.engine import flag
from adbg.profiles import control, course, measurement, registry, turn
from adbg.profiles.base import Artifact, Availability, Profiler
from adbg.profiles.measurement import Measurement
from adbg.profiles.region import Region

FILES = frozenset(module.__file__ for module in (control, course, flag, measurement, turn))
EACH = 5  # instructions; all of them take half a minute
OVER = ("done", "partial", "failed")


class TimeUp(Exception):
    """What the program's handler raises."""


class Quick(Profiler):
    name = "quick"
    what = file = format = "none"
    at_work = 0

    def available(self) -> Availability:
        return Availability(True)

    def start(self, region: Region, folder: str) -> None:
        self.folder = folder
        Quick.at_work += 1

    def stop(self) -> Artifact:
        Quick.at_work = 0
        return Artifact(self.name, self.folder, self.file, self.format)

    def abandon(self) -> None:
        Quick.at_work = 0


class Interrupts:
    """Raises behind the ``number``-th instruction of those files; ``left``: how many were missing at the end."""

    def __init__(self, number: int, files: frozenset[str | None] = FILES, names: tuple[str, ...] = ()) -> None:
        self.left = number
        self.files = files
        self.names = names  # of functions, where not all are meant
        self.place = ""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code.co_filename not in self.files or (self.names and code.co_name not in self.names):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.local

    def local(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode" and self.left:
            self.left -= 1
            if not self.left:
                self.place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
                raise TimeUp
        return self.local


def steps(run: Run, interrupts: Interrupts) -> None:
    """Enough for the region of two iterations, and some more."""
    for _ in range(8):
        sys.settrace(interrupts if interrupts.left else None)
        try:
            run.step()
        except TimeUp:
            pass
        finally:
            sys.settrace(None)


@pytest.fixture
def run(framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setitem(registry.REGISTRY, Quick.name, Quick)
    monkeypatch.setattr(Measurement, "save_is_due", lambda self: True)
    run = Run(framework, tmp_path)
    yield run
    assert comes(on_a_thread(run.session.detach))


@on_frameworks()
def test_an_exception_anywhere_ends_no_profile_for_good(framework: str, run: Run) -> None:
    """Witness that it is: the framework's backend tells nobody of backward calls any more."""
    number, places = 0, set()
    while True:
        number += EACH
        run.told.clear()
        interrupts = Interrupts(number)
        run.start("quick", 2)
        assert not run.profiling._course._leaving, "nothing is left of the one before"
        steps(run, interrupts)
        now = run.profiling._now
        assert now is None, (interrupts.place, now.state, now.asked_to_end, now.iterations, now.ends, now.started)
        assert run.told and run.told[-1][0] in OVER, interrupts.place
        assert Quick.at_work == 0, interrupts.place
        assert all(backend._entry.tick is None for backend in run.session.backends), interrupts.place
        if interrupts.left:
            break
        places.add(interrupts.place)
    assert number > 300 and len(places) > 50, (number, len(places))


@on_frameworks()
@pytest.mark.parametrize("name", ["own", "cprofile", "nodes", "yep"])
def test_what_was_measured_is_written_all_the_same(framework: str, name: str, run: Run) -> None:
    """An exception in the profiler's own end. One that comes while it begins is told, and nothing stays of it."""
    name = framework if name == "own" else name
    if name not in names(framework):
        pytest.skip("not installed")
    file = sys.modules[type(registry.make(name)).__module__].__file__
    number, states = 0, []
    while True:
        number += 23
        interrupts = Interrupts(number, frozenset((file,)), ("start", "stop", "_end", "_stop", "_make_way", "_write"))
        run.told.clear()
        run.start(name, 2)
        steps(run, interrupts)
        state = run.profiling.state()
        assert run.profiling._now is None, interrupts.place
        states.append(state.state)
        if state.state == "partial":
            assert course.INTERRUPTED in state.why or (name == "yep" and "no samples" in state.why), interrupts.place
        else:
            assert (state.state, state.why) == ("done", ""), interrupts.place
            assert os.path.getsize(os.path.join(state.folder, state.file)) > 0
        assert not any("program" in said and "place" in said for said in state.warnings), state.warnings
        if interrupts.left:
            break
    assert len(states) > 3 and (name == "yep" or states[-2] == states[-1] == "done")

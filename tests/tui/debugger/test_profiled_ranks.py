"""Which processes of a job a profile that was asked of its launcher is of."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.patience import patience
from support.program import wait_until

from adbg.engine.protocol import messages as p
from adbg.profiles import registry
from adbg.profiles.base import Artifact
from adbg.profiles.profilers.pyspy import PySpy
from adbg.profiles.region import Region
from adbg.tui.debugger.profiling.profiles import Profiles

REQUEST = p.Profile("start", "cprofile", p.ProfileRegion("iterations", 5))


class Process:
    def __init__(self, pid: int, rank: int | None) -> None:
        self.info = SimpleNamespace(pid=pid, rank=rank)
        self.requests: list[Any] = []
        self.client = SimpleNamespace(request=self.requests.append)


def asked_of_a_launcher(state: str = "waiting", rank: int | None = None) -> tuple[Any, Any]:
    profiles, launcher = Profiles(lambda level, text: None, lambda process, state: None), Process(1, rank)
    profiles.asked(launcher, REQUEST)  # type: ignore[arg-type]
    told = p.ProfileState(state, "cprofile", REQUEST.region, "/run/profiles/001-cprofile")
    profiles.changed(launcher, told)  # type: ignore[arg-type]
    return profiles, launcher


def started(profiles: Any, *ranks: int | None) -> list[list[p.Profile]]:
    processes = [Process(number + 2, rank) for number, rank in enumerate(ranks)]
    for process in processes:
        profiles.joined(process)
    return [process.requests for process in processes]


def test_rank_0_and_its_first_process_alone() -> None:
    """A loader's worker has its parent's number."""
    profiles, launcher = asked_of_a_launcher()
    none, one, first, worker = started(profiles, None, 1, 0, 0)
    assert (none, one, worker) == ([], [], [])
    assert [request.folder for request in first] == ["/run/profiles"], "in the run directory, as the launcher's"
    assert [request.action for request in launcher.requests] == ["drop"]


def test_another_one_and_all() -> None:
    profiles, _ = asked_of_a_launcher()
    profiles.ranks = None
    assert [len(requests) for requests in started(profiles, 1, 0)] == [1, 1]
    profiles, _ = asked_of_a_launcher()
    profiles.ranks = frozenset((1,))
    assert [len(requests) for requests in started(profiles, 0, 1)] == [0, 1]


def test_a_program_that_is_measured_already_is_no_launcher() -> None:
    for state, rank in (("running", None), ("done", None), ("waiting", 0)):
        profiles, launcher = asked_of_a_launcher(state, rank)
        assert started(profiles, 0) == [[]] and launcher.requests == [], (state, rank)


def test_a_profiler_beside_the_program_that_starts_too_late_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The profile was stopped, or the process is gone, while it read the process: it would sample to adbg's end."""

    class Slow(PySpy):
        starts, go_on, stopped = threading.Event(), threading.Event(), threading.Event()

        def start(self, region: Region, folder: str) -> None:
            self.starts.set()
            self.go_on.wait(patience(60))

        def stop(self) -> Artifact:
            (tmp_path / "file").write_text("stacks")
            self.stopped.set()
            return Artifact(self.name, str(tmp_path), "file", self.format)

    monkeypatch.setitem(registry.REGISTRY, "py-spy", Slow)
    told: list[str] = []
    for over in ("partial", "lost"):
        told.clear()
        for event in (Slow.starts, Slow.go_on, Slow.stopped):
            event.clear()
        profiles: Any = Profiles(lambda level, text: None, lambda process, state: told.append(state.state))
        process, state = Process(1, None), p.ProfileState("ready", "py-spy", REQUEST.region, str(tmp_path))
        profiles.changed(process, state)
        assert Slow.starts.wait(patience(20))
        if over == "lost":
            profiles.lost(process)
        else:
            profiles.changed(process, replace(state, state=over))
        assert told == ["partial"] and not Slow.stopped.is_set()
        Slow.go_on.set()
        assert Slow.stopped.wait(patience(20)), over
        wait_until(lambda: not (tmp_path / "file").exists(), "what it sampled is of no profile")

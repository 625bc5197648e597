"""paddle.profiler: operators and kernels as Paddle itself times them, as a Chrome trace. Only in a program that has
imported paddle."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from adbg.profiles.base import Artifact, Availability, ProfileError, Profiler
from adbg.profiles.profilers import frameworks
from adbg.profiles.region import Region

FILE = "trace.json"


class PaddleProfiler(Profiler):
    name = "paddle"
    what = "operators and kernels, as paddle.profiler times them"
    format = "chrome"
    file = FILE
    bound = True
    ends_anywhere = False

    def __init__(self) -> None:
        self._folder = ""
        self._profile: Any = None
        self._way: frameworks.MakeWay | None = None
        self._later: frameworks.OnceOnThread | None = None
        self._thread = 0
        self._begun = False  # Paddle aborts where one is stopped that was not started

    def available(self) -> Availability:
        return frameworks.available("paddle")

    def start(self, region: Region, folder: str) -> None:
        paddle: Any = sys.modules.get("paddle")
        if paddle is None:
            raise ProfileError("paddle is not imported where the region begins", "profile some iterations of a program")
        profiler = paddle.profiler
        if profiler.utils.in_profiler_mode():
            raise ProfileError("the program's own paddle.profiler is at work already", "end that one, or use cprofile")
        self._folder, self._thread = folder, threading.get_ident()
        targets = [profiler.ProfilerTarget.CPU]
        if paddle.device.is_compiled_with_cuda():
            targets.append(profiler.ProfilerTarget.GPU)
        # It wraps every optimizer's ``step`` for good, for an event that this profile does not ask for.
        wrapped, profiler.utils._has_optimizer_wrapped = getattr(profiler.utils, "_has_optimizer_wrapped", True), True
        try:
            self._profile = profiler.Profiler(targets=targets, on_trace_ready=lambda _: None)
        finally:
            profiler.utils._has_optimizer_wrapped = wrapped
        if self._profile.profiler is None:  # there is one at a time, from its making to its end
            self._profile = None
            raise ProfileError("the program has a paddle.profiler.Profiler of its own", "end that one, or use cprofile")
        self._profile.start()
        self._begun = True
        # Paddle's ``backward`` asks for this mode at its begin and again at its end, and fails where it changed between
        # them: the region begins in there. Without it the Python parts (the optimizer, the data) have no event.
        profiler.utils._is_profiler_used = False
        self._way = frameworks.MakeWay(profiler.Profiler, "__init__", lambda: self.displaced("paddle.profiler"))

    def end_later(self, end: Callable[[], None]) -> None:
        paddle: Any = sys.modules["paddle"]
        places = [(paddle.Tensor, "backward"), (paddle.autograd, "backward"), (paddle, "grad")]
        self._later = self._later or frameworks.OnceOnThread(self._thread, places, end)

    def stop(self) -> Artifact:
        self._make_way()
        path = os.path.join(self._folder, FILE)
        if self._profile is not None:
            if self._profile.profiler_result is None:  # asked again, it would fail
                self._profile.stop()
            self._profile.export(path, format="json")
        self._profile = None  # so that the program can make its own
        there = os.path.exists(path) and os.path.getsize(path) > 0
        if there and not _whole(path):  # it says nothing of a full disk
            os.remove(path)
            raise OSError(errno.ENOSPC, "paddle did not write all of its trace: the disk is full")
        return Artifact(self.name, self._folder, FILE if there else "", self.format)

    def undo(self) -> None:
        self._make_way()
        profile, self._profile = self._profile, None
        if self._begun and profile is not None and profile.profiler_result is None:
            profile.stop()

    def abandon(self) -> None:
        self._make_way()

    def _make_way(self) -> None:
        if self._way is not None:
            self._way.undo()
        if self._later is not None:
            self._later.undo()


def _whole(path: str) -> bool:
    """It ends as such a file does."""
    with open(path, "rb") as file:
        file.seek(-min(os.path.getsize(path), 64), os.SEEK_END)
        return file.read().rstrip().endswith(b"}")

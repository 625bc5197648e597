"""paddle.profiler: operators and kernels as Paddle itself times them, as a Chrome trace. Only in a program that has
imported paddle."""

from __future__ import annotations

import os
import sys
from typing import Any

from adbg.profiles.base import Artifact, Availability, ProfileError, Profiler
from adbg.profiles.region import Region

FILE = "trace.json"


class PaddleProfiler(Profiler):
    name = "paddle"
    what = "operators and kernels, as paddle.profiler times them"
    format = "chrome"
    file = FILE
    bound = True

    def __init__(self) -> None:
        self._folder = ""
        self._profile: Any = None

    def available(self) -> Availability:
        return Availability(True, "" if "paddle" in sys.modules else "paddle is not imported yet")

    def start(self, region: Region, folder: str) -> None:
        paddle: Any = sys.modules.get("paddle")
        if paddle is None:
            raise ProfileError("paddle is not imported where the region begins", "profile some iterations of a program")
        profiler = paddle.profiler
        if profiler.utils.in_profiler_mode():
            raise ProfileError("the program's own paddle.profiler is at work already", "end that one, or use cprofile")
        self._folder = folder
        targets = [profiler.ProfilerTarget.CPU]
        if paddle.device.is_compiled_with_cuda():
            targets.append(profiler.ProfilerTarget.GPU)
        self._profile = profiler.Profiler(targets=targets, on_trace_ready=lambda _: None)
        self._profile.start()
        # Paddle's ``backward`` asks for this mode at its begin and again at its end, and fails where it changed between
        # them: the region begins in there. Without it the Python parts (the optimizer, the data) have no event.
        profiler.utils._is_profiler_used = False

    def stop(self) -> Artifact:
        self._profile.stop()
        path = os.path.join(self._folder, FILE)
        self._profile.export(path, format="json")
        there = os.path.exists(path) and os.path.getsize(path) > 0
        return Artifact(self.name, self._folder, FILE if there else "", self.format)

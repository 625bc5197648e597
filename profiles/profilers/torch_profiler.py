"""torch.profiler: operators and kernels as torch itself times them, as a Chrome trace. Only in a program that has
imported torch."""

from __future__ import annotations

import os
import sys
from typing import Any

from adbg.profiles.base import Artifact, Availability, ProfileError, Profiler
from adbg.profiles.region import Region

FILE = "trace.json"


class TorchProfiler(Profiler):
    name = "torch"
    what = "operators and kernels, as torch.profiler times them"
    format = "chrome"
    file = FILE
    bound = True

    def __init__(self) -> None:
        self._folder = ""
        self._profile: Any = None

    def available(self) -> Availability:
        if "torch" not in sys.modules:
            # a program that has not begun imports it before its first backward
            return Availability(True, "torch is not imported yet")
        return Availability(True)

    def start(self, region: Region, folder: str) -> None:
        torch: Any = sys.modules.get("torch")
        if torch is None:
            raise ProfileError("torch is not imported where the region begins", "profile some iterations of a program")
        if torch.autograd._profiler_enabled():
            raise ProfileError("the program's own torch.profiler is at work already", "end that one, or use cprofile")
        self._folder = folder
        kinds = torch.profiler.ProfilerActivity
        activities = [kinds.CPU, *([kinds.CUDA] if torch.cuda.is_available() else [])]
        self._profile = torch.profiler.profile(activities=activities)
        self._profile.start()

    def stop(self) -> Artifact:
        self._profile.stop()
        path = os.path.join(self._folder, FILE)
        self._profile.export_chrome_trace(path)
        operators = len(self._profile.events())
        return Artifact(self.name, self._folder, FILE if operators else "", self.format, {"operators": operators})

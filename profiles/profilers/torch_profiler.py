"""torch.profiler: operators and kernels as torch itself times them, as a Chrome trace. Only in a program that has
imported torch."""

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


class TorchProfiler(Profiler):
    name = "torch"
    what = "operators and kernels, as torch.profiler times them"
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
        self._cuda = False
        self._over = False  # torch's own has ended
        self._operators = 0

    def available(self) -> Availability:
        return frameworks.available("torch")

    def start(self, region: Region, folder: str) -> None:
        torch: Any = sys.modules.get("torch")
        if torch is None:
            raise ProfileError("torch is not imported where the region begins", "profile some iterations of a program")
        if torch.autograd._profiler_enabled():
            raise ProfileError("the program's own torch.profiler is at work already", "end that one, or use cprofile")
        self._folder, self._thread = folder, threading.get_ident()
        kinds = torch.profiler.ProfilerActivity
        self._cuda = torch.cuda.is_available()
        activities = [kinds.CPU, *([kinds.CUDA] if self._cuda else [])]
        self._profile = torch.profiler.profile(activities=activities)
        self._profile.start()
        # every way to start one comes by here
        owner = torch.autograd.profiler.profile
        self._way = frameworks.MakeWay(owner, "_prepare_trace", lambda: self.displaced("torch.profiler"))

    def end_later(self, end: Callable[[], None]) -> None:
        torch: Any = sys.modules["torch"]
        places = [(torch.autograd, "backward"), (torch.autograd, "grad")]
        self._later = self._later or frameworks.OnceOnThread(self._thread, places, end)

    def stop(self) -> Artifact:
        self._make_way()
        self._end()
        path = os.path.join(self._folder, FILE)
        if self._profile is not None:
            # Not ``events()``, which makes an object of each: 168,280 took 10 s and kept 829 MB; the count takes 0.3 s
            self._operators = len(self._profile.profiler.kineto_results.events())
            if self._operators and not _there(path):  # torch writes it once
                self._profile.export_chrome_trace(path)
                if not _there(path):  # it says nothing of a full disk
                    raise OSError(
                        errno.ENOSPC, "torch did not write its trace: the disk is full, or the folder is gone"
                    )
            self._profile = None  # what it measured is in the file: the program gets its memory back
        operators = self._operators
        return Artifact(self.name, self._folder, FILE if operators else "", self.format, {"operators": operators})

    def _end(self) -> None:
        """An exception may have come before it had ended, or behind."""
        if not self._over and (threading.get_ident() != self._thread or self._runs()):
            self._profile.stop()
        self._over = True

    @staticmethod
    def _runs() -> bool:
        """On this thread."""
        return bool(sys.modules["torch"].autograd._profiler_enabled())

    def undo(self) -> None:
        self._make_way()
        if self._profile is not None and threading.get_ident() == self._thread:
            self._end()

    def abandon(self) -> None:
        """A forked child has the profile of the thread that forked: it would note each operator for as long as the
        child lives. Where CUPTI is at work nothing is asked of it: it does not live through a fork."""
        self._make_way()
        if self._profile is None or self._over or threading.get_ident() != self._thread or not self._runs():
            return
        autograd: Any = sys.modules["torch"].autograd
        if self._cuda:
            autograd._enable_record_function(False)
        else:
            autograd._disable_profiler()

    def _make_way(self) -> None:
        if self._way is not None:
            self._way.undo()
        if self._later is not None:
            self._later.undo()


def _there(path: str) -> bool:
    return os.path.exists(path) and os.path.getsize(path) > 0

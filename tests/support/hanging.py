"""A job of ranks that hangs (``debuggees/hanging.py``, ``paddle_hanging.py``), under a debugger without a screen."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from adbg.engine.hang.values import HangVerdict
from adbg.tui.commands.hang import verdict_of
from adbg.tui.debugger.debugger import Debugger
from adbg.tui.debugger.program import Script, StartedProgram
from support.patience import patience
from support.program import DEBUGGEES

READY = 60.0  # seconds on an idle machine, where it takes 6


class HangingJob:
    """``folder`` has what the ranks wrote; ``run_dir`` what adbg recorded. At the end every rank is killed."""

    def __init__(self, script: str, cause: str, ranks: int, folder: Path) -> None:
        self.ranks = ranks
        self.folder = folder / "ranks"
        self.folder.mkdir()
        self.run_dir = folder / "run"
        command = [sys.executable, str(DEBUGGEES / script), cause, str(ranks), str(self.folder)]
        self.debugger = Debugger(
            StartedProgram(Script(command, script, script, mode="split", run_dir=str(self.run_dir)))
        )

    def __enter__(self) -> HangingJob:
        self.debugger.start()
        assert self.debugger.model.wait_ready(patience(READY))
        self.debugger.begin()
        self.until(lambda: all((self.folder / f"ready{rank}").exists() for rank in range(self.ranks)), "all ranks")
        return self

    def until(self, done: Callable[[], bool], what: str) -> None:
        limit = time.monotonic() + patience(READY)
        while not done():
            assert time.monotonic() < limit, f"{what} did not come"
            time.sleep(0.05)

    def verdict(self, waiting: int = 1) -> HangVerdict:
        """The first in which so many ranks wait."""
        found = [verdict_of(self.debugger, 0.5)]

        def settled() -> bool:
            if len(found[-1].waiting) < waiting:
                found.append(verdict_of(self.debugger, 0.5))
            return len(found[-1].waiting) >= waiting

        self.until(settled, f"{waiting} that wait")
        return found[-1]

    def called(self, rank: int) -> list[list[str]]:
        """What the rank itself noted before each call, without its number: the second witness."""
        text = (self.folder / f"rank{rank}.log").read_text()
        return [line.split()[1:] for line in text.splitlines()]

    def pid(self, rank: int) -> int:
        return next(process.info.pid for process in self.debugger.run.processes if process.info.rank == rank)

    def kill(self) -> None:
        """All ranks, at once: as a scheduler ends a job."""
        for process in self.debugger.run.processes:
            if process.info.rank is not None and process.alive:
                with contextlib.suppress(ProcessLookupError):  # it ended, and the keeper has not said so yet
                    os.kill(process.info.pid, signal.SIGKILL)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.debugger.close()

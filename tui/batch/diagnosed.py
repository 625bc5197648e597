"""A run under diagnosis: at its end the findings are listed, and one of severity error makes a status of 0 a 1."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adbg.engine.errors import AdbgError
from adbg.engine.protocol.messages import Diagnose, Examined, Finding
from adbg.tui.batch.batch import Batch
from adbg.tui.batch.writers import TextWriter
from adbg.tui.commands.table import execute
from adbg.tui.debugger import events
from adbg.tui.debugger.debugger import Debugger
from adbg.tui.debugger.findings.kinds import REPEATED
from adbg.tui.debugger.findings.ranking import is_error
from adbg.tui.debugger.findings.repeat import compare
from adbg.tui.text.findings import NOBODY

FOUND = 1
ANSWERS = 5.0  # seconds that a program gets to say what it looked at, before it is killed


class DiagnosedBatch(Batch):
    """Diagnosis is among the settings of the debugger before this runs: every process begins with it. ``again`` runs
    the script once more, and says how that differs."""

    def __init__(self, *arguments: Any, again: Callable[[Debugger], Finding | None] | None = None) -> None:
        super().__init__(*arguments)
        self._again = again
        self._timed_out = False

    def run(self) -> int:
        status = super().run()
        findings = self.debugger.findings
        if self._again is not None and self.debugger.run.processes:
            self._repeat(self._again)
        self.writer.diagnosed(findings, self._cut())
        self.writer.flush()
        return status or (FOUND if is_error(findings.ranked()) else 0)

    def _cut(self) -> str:
        """What ended the program, where it said nothing of it itself."""
        exit_status = self.debugger.run.exit
        if self._timed_out:
            return f"--timeout {self.timeout:g} s"
        if exit_status is not None and exit_status.signal is not None:
            return exit_status.signal_name
        return "" if self.debugger.run.joined else NOBODY

    def _give_up(self) -> int:
        """What was looked at until then is asked for, of a program that can still answer."""
        self._timed_out = True
        for process in self.debugger.processes:
            with contextlib.suppress(AdbgError):
                self.debugger.findings.learn(process, process.client.request(Diagnose("state"), ANSWERS))
        return super()._give_up()

    def _command(self, line: str) -> None:
        """Not one of the user's: nothing is said of it."""
        with contextlib.suppress(AdbgError):
            execute(self.debugger, line)

    def _repeat(self, again: Callable[[Debugger], Finding | None]) -> None:
        process, findings = self.debugger.run.processes[0], self.debugger.findings
        try:
            found = again(self.debugger)
        except AdbgError as error:
            self.writer.notice("warning", f"the script was not compared with a second run: {error}")
            findings.looked(Examined(REPEATED, "could not look", "there is no second run to compare with"))
            return
        findings.looked(Examined(REPEATED, "clear" if found is None else "finding"))
        if found is not None:
            self.writer.found(events.Found(process, findings.add_own(process, found)))


class _Silent(TextWriter):
    """What the second run prints was printed by the first."""

    def output(self, event: events.Output) -> None: ...

    def notice(self, level: str, text: str) -> None: ...

    def result(self, line: str, result: object) -> None: ...

    def error(self, line: str, error: AdbgError) -> None: ...


def run_again(first: Debugger, make: Callable[[str], Debugger], timeout: float | None) -> Finding | None:
    """``make`` makes the debugger of the same script, recording into a folder. Every node of both is recorded.

    Raises:
        AdbgError: one of the runs has no record.
    """
    folder = tempfile.mkdtemp(prefix="adbg-again-")
    try:
        Batch(make(folder), _Silent(quiet=True), timeout).run()
        return compare(Path(first.program.run_dir), Path(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)

"""A run under diagnosis: at its end the findings are listed, and one of severity error makes a status of 0 a 1."""

from __future__ import annotations

from adbg.tui.batch.batch import Batch
from adbg.tui.debugger.findings.ranking import is_error

FOUND = 1


class DiagnosedBatch(Batch):
    """Diagnosis is among the settings of the debugger before this runs: every process begins with it."""

    def run(self) -> int:
        status = super().run()
        findings = self.debugger.findings
        self.writer.diagnosed(findings)
        self.writer.flush()
        return status or (FOUND if is_error(findings.ranked()) else 0)

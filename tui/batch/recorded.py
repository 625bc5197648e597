"""The findings of a recorded run on stdout, as text or as the lines of ``adbg diagnose --json``."""

from __future__ import annotations

import shutil
import sys

from adbg.tui.batch.lines import as_json, diagnosis_line, finding_line, written
from adbg.tui.debugger.findings.recorded import KIND, RecordedFindings
from adbg.tui.text.findings import recorded_text, report_lines


def write_json(found: RecordedFindings) -> None:
    lines = [finding_line(told.finding, told.rank, told.process) for told in found.told]
    for line in (*lines, diagnosis_line(found)):
        print(written(as_json(line)))


def write_text(found: RecordedFindings) -> None:
    width = shutil.get_terminal_size((120, 24)).columns
    if not found.live:
        print(recorded_text(found.looked.backwards, found.looked.nodes, KIND, found.words))
    if found.live or found.ranked() or (found.looked.nodes and found.examined()):  # else that line has said it all
        print("\n".join(report_lines(found.ranked(), found.examined(), found.progress(), found.words, width)))
    sys.stdout.flush()

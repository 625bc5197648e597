"""The findings of a recorded run on stdout, as text or as the lines of ``adbg diagnose --json``."""

from __future__ import annotations

import shutil
import sys

from adbg.tui.batch.lines import as_json, diagnosis_line, finding_line, written
from adbg.tui.debugger.findings.recorded import RecordedFindings
from adbg.tui.text.findings import examined_lines, headline, list_lines


def write_json(found: RecordedFindings) -> None:
    lines = [finding_line(told.finding, told.rank, told.process) for told in found.told]
    for line in (*lines, diagnosis_line(found)):
        print(written(as_json(line)))


def write_text(found: RecordedFindings) -> None:
    rows = found.ranked()
    width = shutil.get_terminal_size((120, 24)).columns
    head = headline(rows, found.examined(), found.told_end)
    if not found.live:
        head += " in the recorded nodes (diagnosis was not on in this run)"
    lines = [head, *(line.text for line in list_lines(rows, width))]
    lines += examined_lines(found.examined(), found.iterations, found.told_end, bool(rows))
    print("\n".join(lines))
    sys.stdout.flush()

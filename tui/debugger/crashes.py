"""What is known of a program that died of a signal, for a person. On the thread that hears of the end."""

from __future__ import annotations

import os
from pathlib import Path

from adbg.engine.record.crash import crash_report, crashed_labels, keep_report
from adbg.engine.record.files import vlog_path
from adbg.engine.record.journal import CRASHES

MAIN = "0"


def crash_reports(folder: str, keep: bool, code: int, text: str) -> list[str]:
    """One text for each process of the program that crashed.

    Args:
        folder: of the record, or of the session where nothing is recorded; "" knows nothing.
        keep: write each beside the record too.
        code, text: how the program itself ended, as a shell counts ("killed by SIGSEGV").
    """
    if not folder or not os.path.isdir(folder):
        return []
    signum = code - 128 if text.startswith("killed") and code - 128 in CRASHES else None
    labels = crashed_labels(folder)
    if signum is not None and MAIN not in labels:
        labels.insert(0, MAIN)
    reports = []
    for label in labels:
        mine = signum if label == MAIN else None
        if mine is None and label == MAIN:
            continue  # it went on after the fault was written, or somebody else's word for its end counts
        report = crash_report(Path(folder), label, _log(Path(folder), label), mine)
        if not report:
            continue
        kept = keep_report(Path(folder), label, report) if keep else ""
        title = "" if label == MAIN else f"process {label}: "
        reports.append(f"{title}{report}" + (f"\nkept in {kept}" if kept else ""))
    return reports


def _log(folder: Path, label: str) -> Path:
    """The process's VLOG; a run that is not recorded names it after the process too."""
    path = vlog_path(folder, label)
    return path if path.exists() else next(iter(sorted(folder.glob(f"vlog-r{label}-*.log"))), path)

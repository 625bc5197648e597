"""Crash reports of a program that a signal killed. On the thread that learns of its end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from adbg.engine.record.crash import crash_report, crashed_labels, keep_report
from adbg.engine.record.files import vlog_path
from adbg.engine.record.journal import CRASHES
from adbg.engine.types import ExitStatus

MAIN = "0"


def crash_reports(folder: str, keep: bool, status: ExitStatus, asked: bool = False) -> list[str]:
    """One text for each process of the program that crashed.

    Args:
        folder: of the record, or of the session where nothing is recorded; "" knows nothing.
        keep: write each beside the record too.
        status: how the program itself ended.
        asked: the user had adbg end it.
    """
    reports = []
    for label, signum in crashed(folder, status, asked):
        report = crash_report(Path(folder), label, _log(Path(folder), label), signum)
        if not report:
            continue
        kept = keep_report(Path(folder), label, report) if keep else ""
        title = "" if label == MAIN else f"process {label}: "
        reports.append(f"{title}{report}" + (f"\nkept in {kept}" if kept else ""))
    return reports


def crashed(folder: str, status: ExitStatus, asked: bool = False) -> list[tuple[str, int | None]]:
    """(label, the signal, None where only its stacks tell it) of each process of the program that crashed."""
    if not folder or not os.path.isdir(folder):
        return []
    signum = status.signal if status.signal in CRASHES or (status.signal == signal.SIGKILL and not asked) else None
    labels = crashed_labels(folder)
    if signum is not None and MAIN not in labels:
        labels.insert(0, MAIN)
    if signum is None:  # it survived the fault, or was ended by another signal
        labels = [each for each in labels if each != MAIN]
    return [(label, signum if label == MAIN else None) for label in labels]


def _log(folder: Path, label: str) -> Path:
    """The process's VLOG; a run that is not recorded names it after the process too."""
    path = vlog_path(folder, label)
    return path if path.exists() else next(iter(sorted(folder.glob(f"vlog-r{label}-*.log"))), path)

"""Failures of the app itself: a file keeps the traceback, the user reads one line. UI thread."""

from __future__ import annotations

import os
import tempfile
import time
import traceback

SURVIVED = 5  # failures of handlers within ...
SURVIVED_IN = 10.0  # ... seconds: with more than these the screen is of no use, and the app leaves


class Failures:
    """Attributes:
    recent: when a handler of the app failed and the app continued, with the error.
    """

    def __init__(self) -> None:
        self.recent: list[tuple[float, Exception]] = []

    def survives(self, error: Exception) -> bool:
        """Note ``error``; False when there were too many in a short time."""
        now = time.monotonic()
        self.recent.append((now, error))
        return sum(now - when < SURVIVED_IN for when, _ in self.recent) <= SURVIVED


def keep_traceback(error: BaseException | None, folder: str) -> str:
    """Write the traceback into a file in ``folder``, else in the folder for temporary files; the error in one line,
    with the file's name."""
    path = os.path.join(folder if os.path.isdir(folder) else tempfile.gettempdir(), f"adbg-crash-{os.getpid()}.log")
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(time.strftime("%Y-%m-%d %H:%M:%S\n"))
            traceback.print_exception(error, file=file)
    except OSError as problem:
        path = f"(no log: {problem})"
    return f"{type(error).__name__}: {error}; details in {path}"

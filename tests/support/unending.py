"""A test that even its timeout does not end: one that is stuck in C with the GIL, where no signal reaches Python.

faulthandler's own thread, which needs no GIL, writes down all stacks and ends the process. pytest-xdist starts another
worker, which is handed the same test again (3.8, ``--dist loadfile``), and the next one too, until there have been four
for each: so the test is failed there, with the stacks, and the rest of its file runs.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

LIMIT = 700  # seconds; the longest time-out of a test is 300, and twice that on a machine that is as busy as CI's

_RUNNERS = re.compile(r'/(_pytest|pluggy|xdist|execnet)/|"<string>"')


def _file_of(test: str) -> Path | None:
    """Shared by the workers of a run; None where there are no workers: their process is not to be ended."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", "")
    if not run:
        return None
    folder = Path(tempfile.gettempdir(), f"adbg-tests-{run}")
    folder.mkdir(exist_ok=True)
    return folder / hashlib.sha1(test.encode()).hexdigest()


def stacks_of_last_time(test: str) -> str | None:
    """Where it was when it took a worker with it, without pytest's frames; None where it did not."""
    file = _file_of(test)
    if file is None or not file.exists():
        return None
    lines = file.read_text(errors="replace").splitlines()
    return "\n".join(line for line in lines if not _RUNNERS.search(line))


@contextlib.contextmanager
def ended_at_last(test: str, limit: float = LIMIT) -> Iterator[None]:
    file = _file_of(test)
    if file is None or file.exists():
        yield
        return
    with file.open("w") as stacks:
        faulthandler.dump_traceback_later(limit, exit=True, file=stacks)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
    file.unlink(missing_ok=True)  # the folder stays: another worker may be about to put a file there

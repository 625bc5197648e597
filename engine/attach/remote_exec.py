"""``sys.remote_exec``: the way into CPython 3.14 and newer that needs no tracing, where a tracer is there already.

It reads and writes the target's memory, so it needs the same rights. The interpreter runs the script when its main
thread comes to it, and never says so: the script takes its own file away. Not run on this project's machines yet: they
have no Python 3.14.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

from adbg.engine.attach.target import Target
from adbg.engine.errors import AttachError
from adbg.engine.protocol.rendezvous import private_dir

OLDEST = (3, 14)
_CALL = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"
_GONE = "__import__('posix').unlink({path!r})\n"
_TIME = 30.0  # seconds for a Python to start and write to the target


class RemoteScript:
    """A snippet on its way. Its folder is private to the user, and goes with it."""

    def __init__(self, target: Target, code: str, python: str = "") -> None:
        """Raises AttachError. ``python``: an interpreter of the target's version, its own where none is given."""
        self._folder = private_dir()
        self._file = self._folder / "enter.py"
        _write(self._file, _GONE.format(path=str(self._file)) + code)
        command = [python or f"/proc/{target.pid}/exe", "-I", "-S", "-c", _CALL, str(target.pid), str(self._file)]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_TIME)
            failed, why = answer.returncode != 0, (answer.stderr.strip().splitlines() or ["it failed"])[-1]
        except (OSError, subprocess.SubprocessError) as error:
            failed, why = True, str(error)
        if failed:
            self._remove()
            raise AttachError(
                f"adbg did not get into process {target.pid} through sys.remote_exec: {why}",
                "end the tracer that it has, then attach again",
            )

    @property
    def ran(self) -> bool:
        """Whether the target has begun it."""
        if self._file.exists():
            return False
        self._remove()
        return True

    def cancel(self) -> None:
        """Nothing is done when the target comes to it. The empty file stays: without it the target would complain."""
        if not self.ran:
            _write(self._file, "")

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)
            self._folder.rmdir()


def _write(file: Path, text: str) -> None:
    """At once: the target sees the old text or the new one."""
    new = file.with_suffix(".new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as stream:
        stream.write(text)
    new.replace(file)

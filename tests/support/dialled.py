"""A script in a process of its own whose agent dials a ``FrontEnd`` of the test: no launcher, no keeper."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from support.front_end import FrontEnd, Peer
from support.patience import patience

LIMIT = 60.0  # seconds
START = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background inherits it ignored
from pathlib import Path
from adbg.engine.agent import agent; from adbg.engine.protocol import rendezvous
agent.start(rendezvous.read_config(Path(sys.argv.pop(1))), patience=float(sys.argv.pop(1)))
"""


class Dialled:
    """``text`` runs as a script after the agent has started. ``with`` ends it, whatever it does."""

    def __init__(
        self, tmp_path: Path, text: str, run_dir: str = "", patience: float = 30.0, env: Mapping[str, str] | None = None
    ) -> None:
        self.script = tmp_path / "script.py"
        self.script.write_text(text)
        self.front = FrontEnd(run_dir)
        runner = START + f"exec(compile(open({str(self.script)!r}).read(), {str(self.script)!r}, 'exec'))"
        command = [sys.executable, "-c", runner, str(self.front.folder / "session.json"), str(patience)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        self.peer: Peer = self.front.accept()

    def line(self, text: str) -> int:
        """Number of the first line of the script that contains ``text``."""
        return next(i for i, line in enumerate(self.script.read_text().split("\n"), 1) if text in line)

    def end(self) -> tuple[int, str, str]:
        """Wait for the end: exit status, stdout, stderr."""
        out, err = self.process.communicate(timeout=patience(LIMIT))
        return self.process.returncode, out, err

    def __enter__(self) -> Dialled:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.front.__exit__(None, None, None)
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

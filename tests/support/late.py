"""A program that runs already and was not prepared (``debuggees/late.py``), and front ends that come to it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from types import TracebackType
from typing import Any

from adbg.engine.protocol import rendezvous
from support.front_end import FrontEnd, Peer
from support.patience import patience
from support.program import DEBUGGEES, ROOT

ENGINE = ROOT / "engine"
ATTACH = ENGINE / "bootstrap" / "attach.py"


class Late:
    """It answers one command after the other. ``with`` ends it."""

    def __init__(self, framework: str, env: dict[str, str] | None = None) -> None:
        known = {key: value for key, value in os.environ.items() if not key.startswith("ADBG_")}
        path = os.pathsep.join([str(ROOT / "tests"), known.get("PYTHONPATH", "")])
        command = [sys.executable, str(DEBUGGEES / "late.py"), framework]
        self.framework = framework
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**known, "PYTHONPATH": path, **(env or {})},
        )

    def post(self, *command: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"it ended: {self.process.wait()}\n{self.errors()}")
        return json.loads(line)[0]

    def ask(self, *command: Any) -> Any:
        self.post(*command)
        return self.answer()

    def errors(self) -> str:
        """What it wrote to stderr."""
        self._errors.seek(0)
        return self._errors.read()

    def end(self) -> int:
        """Its status, of an end in good order."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(patience(60))

    def __enter__(self) -> Late:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for file in (self.process.stdin, self.process.stdout, self._errors):
            assert file is not None
            with contextlib.suppress(BrokenPipeError):
                file.close()


class Session(FrontEnd):
    """The front end of one attach; the program's folder and paths as ``adbg attach`` writes them."""

    def __init__(self, **facts: Any) -> None:
        super().__init__(stacks=False)
        paths = {"engine_path": str(ENGINE), "package_path": str(ROOT / "adbg")}
        self.config = replace(self.config, **{**paths, **facts})
        self.file = self.folder / "session.json"
        self.file.unlink()
        rendezvous.write_config(self.file, self.config)

    def enter(self, program: Late) -> Peer:
        """Have the program run the snippet, and wait for its agent."""
        program.ask("attach", str(ATTACH), str(self.file))
        return self.accept()


def leave(peer: Peer) -> None:
    """Detach, and wait until the agent is gone."""
    peer.request("disconnect")
    peer.drain()

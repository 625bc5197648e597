"""A launched program with a stub agent, in this process (``program``) or behind a bare front end of its own
(``front_end``).
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.patience import patience

from adbg.engine.launch.launch import ENGINE, ExitStatus, Launched, LaunchRequest, launch, prepare_session
from adbg.engine.protocol.rendezvous import SessionConfig, new_token

HERE = Path(__file__).parent
LIMIT = 60.0  # seconds: every wait of these tests ends by then


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of ``condition``."""
    end = time.monotonic() + patience(LIMIT)
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError(f"timed out: {what}")


@pytest.fixture
def eventually() -> Callable[[Callable[[], Any], str], Any]:
    return wait_for


@pytest.fixture
def config(tmp_path: Path) -> SessionConfig:
    """A session whose engine is the real one, but for its agent."""
    engine = tmp_path / "stub" / "engine"
    engine.mkdir(parents=True)
    copied = (
        "__init__", "errors", "frames", "outside", "agent/__init__", "agent/import_watch",
        "protocol/__init__", "protocol/rendezvous",
    )  # fmt: skip
    for name in copied:
        (engine / f"{name}.py").parent.mkdir(exist_ok=True)
        (engine / f"{name}.py").symlink_to(ENGINE / f"{name}.py")
    (engine / "agent" / "agent.py").symlink_to(HERE / "stub_agent.py")
    session = tmp_path / "session"
    session.mkdir(0o700)
    run_dir = tmp_path / "run"
    return SessionConfig(socket=str(session / "s"), token=new_token(), run_dir=str(run_dir), engine_path=str(engine))


@dataclasses.dataclass
class Program:
    """A launched program and what came out of it so far."""

    launched: Launched
    output: list[tuple[str, bytes]]
    notes: list[str]
    ended: list[ExitStatus]

    def stream(self, name: str) -> bytes:
        return b"".join(data for stream, data in list(self.output) if stream == name)

    def wait(self) -> ExitStatus:
        status = self.launched.wait(patience(LIMIT))
        assert status is not None, f"still runs; so far {self.output[-3:]}"
        return status

    def expect(self, text: bytes) -> None:
        wait_for(lambda: text in self.stream("stdout"), f"{text!r} in {self.output[-3:]}")


@pytest.fixture
def program(config: SessionConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Program]]:
    """``program(code or argv, mode="pty", **LaunchRequest fields)``; the agent's log is ``tmp_path/agent.log``."""
    monkeypatch.setenv("STUB_AGENT_LOG", str(tmp_path / "agent.log"))
    running: list[Program] = []

    def start(what: str | list[str], mode: Any = "pty", **fields: Any) -> Program:
        command = [sys.executable, "-c", what] if isinstance(what, str) else what
        output: list[tuple[str, bytes]] = []
        notes: list[str] = []
        ended: list[ExitStatus] = []
        used = fields.pop("config", config)
        request = LaunchRequest(command, used, mode=mode, **fields)
        launched = launch(request, lambda s, d: output.append((s, d)), ended.append, notes.append)
        running.append(Program(launched, output, notes, ended))
        return running[-1]

    yield start
    for each in running:
        if each.launched.exit is None:
            each.launched.signal(9)
            each.launched.wait(5)


@pytest.fixture
def front_end(config: SessionConfig, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """``front_end(mode, argv, **Popen arguments)``: a process of its own that can be killed. Its pid file is
    ``tmp_path/ready``.
    """
    session = prepare_session(config)
    started: list[subprocess.Popen[bytes]] = []

    def start(mode: str, command: list[str], **popen: Any) -> subprocess.Popen[bytes]:
        env = popen.pop("env", None) or dict(os.environ)
        env.update(STUB_AGENT_LOG=str(tmp_path / "agent.log"), DRIVER_READY=str(tmp_path / "ready"))
        driver = [sys.executable, str(HERE / "driver.py"), str(session), mode, *command]
        started.append(subprocess.Popen(driver, env=env, **popen))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(patience(LIMIT))
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe:
                pipe.close()


@pytest.fixture
def agent_log(tmp_path: Path) -> Callable[[], list[str]]:
    """Lines of the stub agent, pid taken off."""
    path = tmp_path / "agent.log"
    return lambda: [line.partition(" ")[2] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def threads() -> Iterator[None]:
    """Fails when a test leaves a thread of this package behind that should have ended."""
    yield
    wait_for(lambda: not [t for t in threading.enumerate() if t.name == "adbg-output"], "the output thread ends")

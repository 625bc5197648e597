"""Processes that were prepared for nothing, and the injector run on them by hand."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adbg.engine.attach.enter import INJECTOR
from adbg.engine.proc import Proc
from support.patience import patience
from support.program import DEBUGGEES, ROOT


def eventually(condition: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + patience(seconds)
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


@dataclass
class Running:
    """A target at work. ``end`` has it finish, and gives what it says of itself."""

    process: subprocess.Popen[str]
    end_file: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def started(self) -> int:
        return Proc(self.pid).started()

    def end(self) -> dict[str, Any]:
        self.end_file.touch()
        output, errors = self.process.communicate(timeout=patience(30.0))
        assert (self.process.returncode, errors) == (0, ""), (self.process.returncode, output, errors)
        result: dict[str, Any] = json.loads(output.splitlines()[-1])
        return result

    def maps(self) -> list[str]:
        """What is mapped, but for the heap and what glibc keeps of threads that ended (stacks, arenas)."""
        text = Proc(self.pid).text("maps")
        return [line for line in text.splitlines() if "[heap]" not in line and not _is_anonymous_data(line)]

    def untraced(self) -> bool:
        return Proc(self.pid).status()["TracerPid"] == "0"


def _is_anonymous_data(line: str) -> bool:
    words = line.split()
    return len(words) == 5 and words[1] in ("rw-p", "---p")


@contextlib.contextmanager
def target(tmp_path: Path, kind: str, python: str = sys.executable) -> Iterator[Running]:
    end_file = tmp_path / f"end-{kind}"
    end_file.unlink(missing_ok=True)
    process = subprocess.Popen(
        [python, str(DEBUGGEES / "attach_target.py"), kind, str(end_file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield Running(process, end_file)
    finally:
        process.kill()
        process.communicate()


def plain(tmp_path: Path, kind: str) -> dict[str, Any]:
    """What a run that nobody enters says."""
    with target(tmp_path, kind) as running:
        time.sleep(0.3)
        return running.end()


@contextlib.contextmanager
def injecting(pid: int, started: int, code: str, pause_at: int | str = -1) -> Iterator[subprocess.Popen[str]]:
    """The injector at work; killed in the end if it is not done."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(INJECTOR), str(ROOT), "--pause-at", str(pause_at)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"pid": pid, "started": started, "snippet": code, "ready": 0.5}) + "\n")
            process.stdin.flush()
            yield process
        finally:
            process.kill()


def inject(pid: int, started: int, code: str, pause_at: int | str = -1) -> list[dict[str, Any]]:
    """Run the injector; all that it says. Where it pauses it is killed."""
    lines = []
    with injecting(pid, started, code, pause_at) as process:
        assert process.stdin is not None and process.stdout is not None
        for text in process.stdout:
            lines.append(json.loads(text))
            if lines[-1]["kind"] == "paused":
                process.kill()
            elif lines[-1]["kind"] == "entered":
                process.stdin.write("release\n")
                process.stdin.flush()
    return lines


def kinds(lines: list[dict[str, Any]]) -> list[str]:
    return [line["kind"] for line in lines if line["kind"] != "queued"]


def touch(path: Path) -> str:
    """A snippet that shows that it ran."""
    return f"open({str(path)!r}, 'a').write('x')"

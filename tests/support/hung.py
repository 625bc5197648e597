"""Programs that hang: started, watched until they do, asked for their own word (faulthandler), and ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from adbg.engine.attach import stacks_pyspy
from adbg.tui.debugger.debugger import Debugger
from adbg.tui.debugger.program import Script, StartedProgram
from support.patience import patience
from support.program import ROOT, debuggee, wait_until

needs_pyspy = pytest.mark.skipif(not stacks_pyspy.find(), reason="py-spy is not installed: pip install py-spy")
Place = tuple[str, int]  # function, line


class Hung:
    """A program that was started with nothing special."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip())

    def says(self, start: str) -> str:
        """The first line of its output that begins so."""
        return wait_until(lambda: next((line for line in self.lines if line.startswith(start)), ""), start)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(patience(20))


@contextlib.contextmanager
def plain(name: str, *arguments: str | Path, until: str = "hangs") -> Iterator[Hung]:
    """``python DEBUGGEE ARGUMENTS``, from the moment on at which it says ``until`` ("": at once)."""
    command = [sys.executable, str(debuggee(name)), *map(str, arguments)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True
    )
    hung = Hung(process)
    try:
        if until:
            hung.says(until)
        yield hung
    finally:
        hung.end()


@contextlib.contextmanager
def debugged(name: str, *arguments: str | Path, until: str = "hangs") -> Iterator[Debugger]:
    """The same under adbg; its script runs."""
    command = [sys.executable, str(debuggee(name)), *map(str, arguments)]
    program = StartedProgram(Script(command, name, record=False, mode="split"))
    debugger = Debugger(program)
    heard: list[str] = []
    debugger.model.subscribe(lambda event: heard.append(getattr(event, "text", "")))
    try:
        debugger.start()
        assert debugger.model.wait_ready(patience(30))
        debugger.begin(False)
        wait_until(lambda: until in "".join(map(str, heard)), f"{until!r} in its output")
        yield debugger
    finally:
        debugger.close()


def own_word(pid: int, file: Path) -> list[list[Place]]:
    """What Python itself writes of every thread's stack, innermost frame first; the thread that asks is the last."""
    file.write_text("")
    os.kill(pid, signal.SIGUSR1)
    text = wait_until(lambda: _whole(file.read_text()), "the stacks of faulthandler")
    stacks: list[list[Place]] = []
    for line in text.splitlines():
        if "most recent call first" in line:
            stacks.append([])
            continue
        found = re.match(r'\s+File "(.*)", line (\d+) in (\S+)', line)
        if found and not found[1].startswith(f"{ROOT / 'engine'}{os.sep}"):  # where adbg stands around a call
            stacks[-1].append((found[3], int(found[2])))
    return stacks


def _whole(text: str) -> str:
    """It is written in pieces: the main thread comes last."""
    return text if "in <module>" in text and text.endswith("\n") else ""


def places(frames: Sequence[object]) -> list[Place]:
    """The Python frames of a ``Thread``, to be compared."""
    return [(f.function.rpartition(".")[2], f.line) for f in frames if f.owner != "native"]  # type: ignore[attr-defined]

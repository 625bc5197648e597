"""Whether a program waits for its terminal, by what the kernel says of it: of programs that do, and of some that do
not but look alike."""

from __future__ import annotations

import os
import pty
import signal
import sys
import time

import pytest

from adbg.engine.launch.input_wait import input_wait

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/syscall"), reason="the kernel does not tell")

PROGRAMS = {
    "input": ("input('> ')", "line"),
    "readline": ("import readline; input('> ')", "line"),
    "stdin": ("import sys; print('>'); sys.stdin.readline()", "line"),
    "stdin in bytes": ("import os; print('>', flush=True); os.read(0, 10)", "line"),
    "select": ("import select; print('>', flush=True); select.select([0], [], [])", "line"),
    "password": ("import getpass; getpass.getpass('> ')", "secret"),
    "sleep": ("import time; print('>', flush=True); time.sleep(60)", ""),
    "sleep in select": ("import select; print('>', flush=True); select.select([], [], [], 60)", ""),
    "a pipe": ("import os; r, w = os.pipe(); print('>', flush=True); os.read(r, 1)", ""),
    "a pipe as stdin": ("import os; r, w = os.pipe(); os.dup2(r, 0); print('>', flush=True); os.read(0, 1)", ""),
    "a lock": ("import threading; print('>', flush=True); threading.Event().wait(60)", ""),
    "at work": ("print('>', flush=True)\nwhile True: pass", ""),
}


@pytest.mark.parametrize(("text", "wanted"), PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_that_waits_for_its_terminal_is_known(text: str, wanted: str) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", text])
    try:
        while b">" not in os.read(terminal, 1000):
            pass
        deadline = time.monotonic() + (10 if wanted else 0.7)
        seen = ""
        while not seen and time.monotonic() < deadline:
            time.sleep(0.05)
            seen = input_wait(pid)
        assert seen == wanted
        if wanted:
            os.write(terminal, b"answer\n")
            os.waitpid(pid, 0)
            assert input_wait(pid) == ""
            pid = 0
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(terminal)

"""What could harm a process, or keep its user waiting for nothing: each was seen to, once."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.attach_targets import eventually, target
from support.late import Session, leave
from support.patience import patience

from adbg.engine.attach import bundle
from adbg.engine.attach.enter import Injector, Progress, enter
from adbg.engine.attach.injector import visit
from adbg.engine.attach.injector.library import libc_functions
from adbg.engine.attach.snippet import snippet
from adbg.engine.attach.target import examine
from adbg.engine.errors import AttachError
from adbg.engine.proc import Proc

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="written for x86_64")

FILTERED = """
import ctypes, struct, time
libc = ctypes.CDLL(None)
rule = lambda code, jt, jf, k: struct.pack("HBBI", code, jt, jf, k)
# socket(2) kills the process
rules = rule(0x20, 0, 0, 0) + rule(0x15, 0, 1, 41) + rule(6, 0, 0, 0x80000000) + rule(6, 0, 0, 0x7FFF0000)
kept = ctypes.create_string_buffer(rules)
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 4, ctypes.addressof(kept)))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
print("ready", flush=True)
time.sleep(600)
"""
#: Makes children all the time, whose first deed is to import what an agent imports as well.
FORKS = """
import faulthandler, json, os, sys, time
failed, made, alive = [], 0, set()
print("ready", flush=True)
while alive or not os.path.exists(sys.argv[1]):
    if len(alive) < 6 and not os.path.exists(sys.argv[1]):
        pid = os.fork()
        if not pid:
            faulthandler.dump_traceback_later(float(sys.argv[2]), exit=True)
            import inspect, socket, subprocess, ctypes, queue, platform, tempfile
            os._exit(0)
        alive.add(pid)
        made += 1
    pid, status = os.waitpid(-1, os.WNOHANG)
    if pid:
        alive.discard(pid)
        failed += [status] if status else []
print(json.dumps([made, failed, sys.getswitchinterval(), [type(each).__name__ for each in sys.meta_path]]))
"""
FORKED_BY_A_THREAD = """
import os, threading
def work():
    pid = os.fork()
    if not pid:
        print(os.getpid(), flush=True)
        while True: pass
    os.waitpid(pid, 0)
threading.Thread(target=work).start()
"""


def started(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-S", "-c", code, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_filter_of_system_calls() -> None:
    """What adbg has the process do may be what it is killed for: it is not touched."""
    with started(FILTERED) as process:
        try:
            assert line_of(process) == "ready"
            with pytest.raises(AttachError, match="seccomp filter that adbg does not run under") as caught:
                examine(process.pid)
            assert "ADBG_ATTACH_UNTESTED=1" in caught.value.hint
            assert examine(process.pid, untested=True).pid == process.pid
        finally:
            process.kill()


def test_children_that_are_made_while_adbg_is_loaded(tmp_path: Path) -> None:
    """None of them waits for a lock of the import system's for ever, and none keeps what is set for the loading."""
    done = tmp_path / "done"
    with started(FORKS, str(done), str(patience(20.0))) as process:
        try:
            assert line_of(process) == "ready"
            for _ in range(3):
                with Session() as session:
                    bundle.write(session.file)
                    entry = enter(examine(process.pid), session.file, lambda _: None, threading.Event())
                    peer = session.accept()
                    while peer.event("adbg/hello")["process"]["pid"] != process.pid:  # its children come as well
                        peer = session.accept()
                    peer.begin()
                    leave(peer)
                    entry.release(patience(20.0))
            done.touch()
            made, failed, interval, finders = json.loads(process.communicate(timeout=patience(60))[0])
        finally:
            process.kill()
    assert made > 10 and failed == []
    assert interval == pytest.approx(0.005) and "_Finder" not in finders


@pytest.mark.skipif(
    sys.version_info[:2] == (3, 13), reason="there its main thread is told of no pending call while it does not sleep"
)
def test_a_process_that_a_thread_made(tmp_path: Path) -> None:
    """Its main thread runs on what was that thread's stack."""
    with started(FORKED_BY_A_THREAD) as process:
        child = int(line_of(process))
        try:
            with Session() as session:
                entry = enter(examine(child), session.file, lambda _: None, threading.Event())
                peer = session.accept()
                assert peer.event("adbg/hello")["process"]["pid"] == child
                peer.begin()
                leave(peer)
                assert entry.release(patience(20.0)) == ""
        finally:
            os.kill(child, 9)
            process.kill()


def test_a_call_that_does_not_return(tmp_path: Path) -> None:
    """The function stands for a lock that does not come free. The user hears of it when it is given up, and the
    process runs on."""
    code = "import sys; print('ready', flush=True); sys.stdin.read(); print('ended')"
    with started(code) as process:
        try:
            assert line_of(process) == "ready"
            found = Proc(process.pid)
            eventually(lambda: found.call(process.pid) is not None)
            address = libc_functions(found, found.maps())["pthread_create"]
            with open(f"/proc/{process.pid}/mem", "r+b", buffering=0) as memory:
                memory.seek(address)
                first = memory.read(2)
                memory.seek(address)
                memory.write(b"\xeb\xfe")  # a jump to itself
                began = time.monotonic()
                injector = Injector(examine(process.pid), snippet(tmp_path / "none"))
                lines = []
                while not lines or lines[-1]["kind"] not in ("failed", "ended"):
                    line = injector.next_line(1.0)
                    lines += [line] if line else []
                    assert time.monotonic() - began < visit.CALL_TIME + patience(20.0), lines
                memory.seek(address)
                memory.write(first)
            assert lines[-1]["kind"] == "failed" and "took more than 10 s" in lines[-1]["why"]
            assert process.communicate("\n", timeout=patience(20))[0] == "ended\n" and process.returncode == 0
        finally:
            process.kill()


def test_the_next_one_waits_for_one_who_gave_up(tmp_path: Path) -> None:
    """A call that he queued is still to come; the next attach is not refused for that."""
    with target(tmp_path, "held-long") as running, Session() as session:
        for _ in range(20):  # it may come between two calls
            first = Injector(examine(running.pid), "pass")
            line = first.next_line(patience(20.0))
            first.release(0.0)
            if line is not None and line["kind"] == "queued":
                break
        assert line is not None and line["kind"] == "queued"
        told: list[Progress] = []
        entry = enter(examine(running.pid), session.file, told.append, threading.Event())
        assert told[-1].kind == "entered"
        entry.release(patience(20.0))
        eventually(running.untraced)

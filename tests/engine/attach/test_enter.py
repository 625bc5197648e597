"""``enter``: what the front end is told, and what becomes of the process when it does not want to wait any longer."""

from __future__ import annotations

import ast
import os
import platform
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.attach_targets import eventually, inject, kinds, target, touch
from support.patience import patience

from adbg.engine.attach import enter as entering
from adbg.engine.attach.blocked import blocked_in
from adbg.engine.attach.enter import EntryCancelled, Progress, enter
from adbg.engine.attach.snippet import snippet
from adbg.engine.attach.target import Target, examine
from adbg.engine.errors import AttachError
from adbg.engine.proc import Proc

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="written for x86_64")


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Stands in for the agent: notes the session file that it was given, and on which thread."""
    came = tmp_path / "came"
    script = tmp_path / 'it\'s a "begin" \\ ü.py'
    script.write_text(
        "import _thread, os\n"
        "def begin(session_file):\n"
        f"    fd = os.open({str(came)!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n"
        "    os.write(fd, ascii((__file__, session_file, _thread.get_native_id())).encode() + b'\\n')\n"
        "    os.close(fd)\n"
    )
    monkeypatch.setattr(entering, "snippet", lambda session: snippet(session, script))
    return came


def notes(came: Path) -> list[tuple[str, str, int]]:
    return [ast.literal_eval(line) for line in came.read_text().splitlines()] if came.exists() else []


@pytest.mark.parametrize("kind", ["tight", "recv"])
def test_it_begins_once_on_a_thread_of_its_own(tmp_path: Path, begin: Path, kind: str) -> None:
    session = tmp_path / "a 'session' ü\n.json"
    told: list[Progress] = []
    with target(tmp_path, kind) as running:
        before = running.maps()
        entry = enter(examine(running.pid), session, told.append, threading.Event())
        eventually(lambda: notes(begin))
        assert entry.way in ("ptrace-pending", "ptrace-thread") and entry.release(patience(20.0)) == ""
        [(file, given, thread)] = notes(begin)
        assert (given, Path(file).parent) == (str(session), tmp_path) and thread != running.pid
        assert told[0] == Progress("entering") and told[-1].kind == "entered" and told[-1].way == entry.way
        assert running.maps() == before
        result = running.end()
    assert result["same"] and result["threads"] == 1 and "space" not in result["main"]


def test_told_not_to_while_the_lock_is_held(tmp_path: Path, begin: Path) -> None:
    """It is queued, and the user goes. What is queued does nothing when it is come to, and goes as well."""
    with target(tmp_path, "held-long") as running:
        before = running.maps()
        cancelled = threading.Event()
        told: list[Progress] = []

        def tell(progress: Progress) -> None:
            told.append(progress)
            if progress.kind == "queued":
                cancelled.set()

        for _ in range(20):  # it may come to it at the end of a call
            try:
                enter(examine(running.pid), tmp_path / "s", tell, cancelled).release(patience(20.0))
                eventually(begin.exists)  # it has been in: the thread that runs it may come a moment later
            except EntryCancelled:
                eventually(lambda: running.maps() == before and running.untraced())
                time.sleep(3.0)  # calls of the target's
                if not begin.exists():  # else it was come to in the moment before: its thread had to wait for the lock
                    break
            begin.unlink()
            cancelled.clear()
            told.clear()
        assert (told[-1].kind, told[-1].blocked) == ("queued", ""), "it runs"
        eventually(lambda: running.maps() == before and running.untraced())
        assert len(running.end()["seen"]) == 1
    assert notes(begin) == []


def test_a_process_that_ends_meanwhile(tmp_path: Path) -> None:
    with target(tmp_path, "held-long") as running:
        end = threading.Event()

        def tell(progress: Progress) -> None:
            if progress.kind == "queued":
                running.process.kill()
                end.set()

        with pytest.raises(AttachError) as caught:
            while True:
                enter(examine(running.pid), tmp_path / "s", tell, threading.Event()).release(patience(20.0))
        assert end.is_set() and f"process {running.pid} ended before adbg was in" in caught.value.message


def test_another_process_of_the_same_number(tmp_path: Path) -> None:
    with target(tmp_path, "tight") as running:
        other = Target(running.pid, running.started - 1, "", (3, 11), "x86_64")
        with pytest.raises(AttachError, match="ended before adbg was in"):
            enter(other, tmp_path / "s", lambda _: None, threading.Event())
        assert running.untraced()


def test_somebody_traces_it_by_now(tmp_path: Path) -> None:
    """Between the look at it and the way in."""
    with target(tmp_path, "tight") as running:
        found = examine(running.pid)
        tracer = (
            "import ctypes, os, sys, time; libc = ctypes.CDLL(None)\n"
            f"assert libc.ptrace(0x4206, {running.pid}, None, None) == 0; print(1, flush=True); time.sleep(600)"
        )
        with subprocess.Popen([sys.executable, "-c", tracer], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline()
            with pytest.raises(AttachError, match=f"is traced by process {process.pid} "):
                enter(found, tmp_path / "s", lambda _: None, threading.Event())
            process.kill()
        assert len(running.end()["seen"]) == 1


def test_somebody_reads_its_stacks_now(tmp_path: Path) -> None:
    """A tracer that goes soon, such as py-spy, is waited for."""
    with target(tmp_path, "tight") as running:
        tracer = (
            "import ctypes, time; libc = ctypes.CDLL(None)\n"
            f"assert libc.ptrace(0x4206, {running.pid}, None, None) == 0; print(1, flush=True); time.sleep(0.7)"
        )
        with subprocess.Popen([sys.executable, "-c", tracer], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline()
            lines = inject(running.pid, running.started, touch(tmp_path / "ran"))
        assert kinds(lines) == ["entered", "released"] and (tmp_path / "ran").read_text() == "x"
        assert len(running.end()["seen"]) == 1


def test_an_interpreter_that_is_not_up(tmp_path: Path) -> None:
    """libpython is mapped, and nobody has started the interpreter."""
    library = Path(sysconfig.get_config_var("LIBDIR") or "/") / str(sysconfig.get_config_var("LDLIBRARY"))
    if library.suffix == ".a" or not library.exists():
        pytest.skip("this Python has no shared library")
    with subprocess.Popen(["sleep", "600"], env={**os.environ, "LD_PRELOAD": str(library)}) as process:
        try:
            eventually(lambda: "libpython" in Proc(process.pid).text("maps"))
            eventually(lambda: (call := Proc(process.pid).call(process.pid)) is not None and call.number == 230)
            before = Proc(process.pid).text("maps")
            found = examine(process.pid)
            lines = inject(found.pid, found.started, touch(tmp_path / "ran"))
            assert lines[-1]["kind"] == "failed" and "its Python interpreter is not up" in lines[-1]["why"]
            assert Proc(process.pid).text("maps") == before and process.poll() is None
        finally:
            process.kill()


def test_an_agent_that_listens_is_not_entered(tmp_path: Path) -> None:
    script = "import adbg, time; adbg.listen(); print(1, flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            told: list[Progress] = []
            entry = enter(examine(process.pid), tmp_path / "s", told.append, threading.Event())
            assert entry.way == "listening" and entry.release() == ""
            assert told == [Progress("entering"), Progress("entered", "listening")]
        finally:
            process.kill()


@pytest.mark.parametrize(("kind", "name"), [("recv", "poll"), ("sleep", "clock_nanosleep"), ("lock", "futex")])
def test_what_it_is_blocked_in(tmp_path: Path, kind: str, name: str) -> None:
    """Also after a stop, when the kernel has the call go on under another name."""
    with target(tmp_path, kind) as running:
        eventually(lambda: blocked_in(running.pid) == name)
        for _ in range(3):
            assert kinds(inject(running.pid, running.started, "0")) == ["entered", "released"]
            eventually(lambda: blocked_in(running.pid) == name)
    assert blocked_in(running.pid) == ""


def test_a_long_wait_that_is_entered_twice(tmp_path: Path) -> None:
    """The kernel goes on with a time-out where it was: the whole of it is as long as it was asked for."""
    script = (
        "import time; began = time.monotonic(); import ctypes; libc = ctypes.CDLL(None); print(1, flush=True)\n"
        "began = time.monotonic(); result = libc.poll(None, 0, 3000); print(result, time.monotonic() - began)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline()
        began = time.monotonic()
        for name in ("one", "two"):
            lines = inject(process.pid, Proc(process.pid).started(), touch(tmp_path / name))
            assert kinds(lines) == ["entered", "released"] and lines[0]["way"] == "ptrace-thread", lines
            assert (tmp_path / name).exists() and time.monotonic() - began < patience(2.5)
        result, seconds = process.stdout.readline().split()
    assert result == "0" and 2.99 < float(seconds) < 3.0 + patience(0.3)

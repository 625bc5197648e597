"""`where all` tells what a hung program does: with adbg in it, without, while its GIL is held; Python's own word and
py-spy's are the witnesses. No code of the program's runs for it."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from support.hung import debugged, needs_pyspy, own_word, places, plain
from support.patience import patience
from support.program import marked, wait_until

from adbg.engine.attach import stacks_pyspy
from adbg.engine.attach.stacks_merged import NoteKind, ProcessThreads, Thread
from adbg.engine.attach.stacks_read import Native, before_entering, read
from adbg.engine.errors import CommandError
from adbg.tui.commands.table import execute
from adbg.tui.commands.threads import read_all
from adbg.tui.debugger.debugger import Debugger, State
from adbg.tui.text.threads import doing, text_of


@needs_pyspy
def test_sleep_is_counted_from_before_adbg_came(tmp_path: Path) -> None:
    """Getting in and reading native frames wake the threads; what they did before still counts. Its own clock is the
    witness: the program says when it began to wait."""
    with plain("hangs", "deadlock", tmp_path / "stacks") as hung:
        began = time.monotonic()
        wait_until(lambda: all(t.os and t.os.sleeps for t in read(hung.pid, native=Native.NO).threads), "it sleeps")
        time.sleep(1.0)
        before_entering(hung.pid)
        for _ in range(3):
            stacks_pyspy.dump(hung.pid, native=True)
        main = threads_of(read(hung.pid, native=Native.NO))["MainThread"].os
        assert main is not None and main.slept == pytest.approx(time.monotonic() - began, abs=1.0)


def threads_of(view: ProcessThreads) -> dict[str, Thread]:
    return {thread.name: thread for thread in view.threads if thread.python}


def asleep(debugger: Debugger) -> ProcessThreads:
    """The threads, once all that run Python sleep."""

    def look() -> ProcessThreads | None:
        view = read_all(debugger, Native.NO)[0]
        python = [thread.os for thread in view.threads if thread.python]
        return view if all(each is not None and each.sleeps and (each.slept or 0) > 0.3 for each in python) else None

    return wait_until(look, "every thread sleeps")


def test_a_deadlock_seen_by_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks_pyspy, "find", lambda: "")
    with debugged("hangs", "deadlock", tmp_path / "stacks") as debugger:
        view = asleep(debugger)
        assert debugger.current is not None
        word = own_word(debugger.current.info.pid, tmp_path / "stacks")
        found = threads_of(view)
        assert set(found) == {"MainThread", "other"}
        assert [(thread.os.state, thread.os.syscall) for thread in found.values() if thread.os] == [("S", "futex")] * 2
        for thread in found.values():
            assert places(thread.frames) in word, (thread.name, word)
        assert view.notes[0].kind is NoteKind.NO_PYSPY and not view.gil
        text = execute(debugger, "where all").text
        line = marked("hangs", "other")
        assert f"hangs.py:{line}" in text and "first.acquire()" in text and "pip install py-spy" in text

        execute(debugger, "thread other")
        assert f"hangs.py:{line}" in execute(debugger, "where").text
        assert "▶" in execute(debugger, "list").text
        assert {row[0]: row[2] for row in execute(debugger, "info locals").rows}["step"] == "7"
        execute(debugger, "thread MainThread")
        assert execute(debugger, "print config.rates[1]").text == "0.01"
        assert execute(debugger, "print config").text == "<__main__.Config object>"
        for refused in ("print config.secret", "print len(config.rates)", "! step = 8", "set step = 8"):
            with pytest.raises(CommandError):
                execute(debugger, refused)
        execute(debugger, "thread off")
        assert debugger.alive, "some code of the program's ran: it ends itself then"


@needs_pyspy
def test_a_deadlock_without_adbg_in_it(tmp_path: Path) -> None:
    with plain("hangs", "deadlock", tmp_path / "stacks") as hung:
        wait_until(lambda: all(t.os and t.os.sleeps for t in read(hung.pid, native=Native.NO).threads), "it sleeps")
        began = time.monotonic()
        before = threads_of(read(hung.pid, native=Native.NO))["other"]
        view = read(hung.pid)
        found = threads_of(view)
        word = own_word(hung.pid, tmp_path / "stacks")
        assert set(found) == {"MainThread", "other"} and view.gil and not any(t.owns_gil for t in found.values())
        for thread in found.values():
            assert places(thread.frames) in word, (thread.name, word)
            assert "acquire_lock" in thread.waits_in, thread.frames
        assert [note.kind for note in view.notes] == [NoteKind.NO_AGENT]
        # py-spy wakes every thread; how long they slept before that is kept
        again = threads_of(read(hung.pid, native=Native.NO))["other"]
        assert before.os is not None and again.os is not None and before.os.slept is not None
        assert again.os.slept == pytest.approx(before.os.slept + time.monotonic() - began, abs=1.0)
        assert again.os.slept > view.held


@needs_pyspy
def test_a_call_that_holds_the_gil(tmp_path: Path) -> None:
    with debugged("hangs", "gil", tmp_path / "stacks") as debugger:
        view = wait_until(lambda: next((v for v in read_all(debugger) if v.notes), None), "the agent is silent")
        assert [note.kind for note in view.notes] == [NoteKind.SILENT]
        found = threads_of(view)
        assert set(found) == {"MainThread", "helper"}
        assert found["MainThread"].owns_gil and not found["helper"].owns_gil
        assert doing(found["helper"]) == "waits for the GIL"
        assert found["MainThread"].user_frame is not None
        assert found["MainThread"].user_frame.line == marked("hangs", "gil")
        assert "MainThread holds the GIL" in text_of([view])


@needs_pyspy
def test_what_a_hold_would_disturb_is_left_alone(tmp_path: Path) -> None:
    with plain("hangs", "epoll", tmp_path / "stacks") as hung:
        wait_until(lambda: (t := read(hung.pid, native=Native.NO).threads[0].os) and t.syscall == "epoll_wait", "epoll")
        view = read(hung.pid)
        assert [note.kind for note in view.notes] == [NoteKind.NO_AGENT, NoteKind.NATIVE_LEFT]
        assert threads_of(view)["MainThread"].frames and not view.held
        assert "epoll_wait with EINTR" in text_of([view])
        time.sleep(0.3)
        assert hung.lines == ["hangs"], "its system call was interrupted"
        read(hung.pid, native=Native.YES)  # asked for all the same
        assert hung.says("epoll_wait") == "epoll_wait -1 errno 4"


def missing_rank(framework: str, folder: Path, function: str, holder: str) -> None:
    """Rank 0 waits for rank 1 in ``function``, is looked at, and ends with the right sum once rank 1 comes. ``holder``
    of the GIL meanwhile, "" for none."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with (
        plain("hanging_ranks", framework, "1", folder, port, until="") as other,
        debugged("hanging_ranks", framework, "0", folder, port) as debugger,
    ):
        other.says("hangs")
        view = asleep(debugger)
        assert debugger.current is not None
        main = threads_of(view)["MainThread"]
        assert places(main.frames) in own_word(debugger.current.info.pid, folder / "stacks0")
        assert main.user_frame is not None and main.user_frame.line == marked("hanging_ranks", framework)
        assert main.call == function
        assert main.owns_gil == bool(holder)
        if stacks_pyspy.find():
            text = execute(debugger, "where all").text  # with native frames: gloo's loop takes that
            assert "no native frames" not in text and f"{holder or 'nobody'} holds the GIL" in text, text
            assert f"in {function}, called at " in text
        (folder / "go").touch()
        assert other.says("done") == "done [3.0, 3.0, 3.0]"
        assert other.process.wait(patience(60)) == 0
        assert debugger.model.wait_state(State.EXITED, timeout=patience(60))
        assert debugger.run.exit_code == 0


@pytest.mark.torch
def test_a_collective_that_waits_for_a_rank_torch(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    missing_rank("torch", tmp_path, "torch.distributed.all_reduce", "")


@needs_pyspy
@pytest.mark.paddle
def test_a_collective_that_waits_for_a_rank_paddle(tmp_path: Path) -> None:
    """Paddle's own barrier keeps the GIL while it waits: no code of adbg's can run, and all is read from outside."""
    pytest.importorskip("paddle")
    missing_rank("paddle", tmp_path, "gloo_barrier", "MainThread")


@pytest.mark.torch
def test_a_loader_that_waits_for_its_worker(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with debugged("hanging_loader", until="hangs 0") as debugger:
        main = threads_of(asleep(debugger))["MainThread"]
        assert main.call.startswith("torch.utils.data.dataloader."), main.call
        assert main.user_frame is not None and main.user_frame.line == marked("hanging_loader", "loader")
        assert main.os is not None and main.os.syscall in ("poll", "ppoll", "select", "pselect6"), main.os

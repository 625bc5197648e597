"""Nothing comes, neither a stop nor the process itself: the user is told, with what the program does instead."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from adbg.engine.attach.stacks_merged import merge
from adbg.engine.attach.stacks_read import Native, read
from adbg.engine.errors import AdbgError
from adbg.engine.protocol import messages as protocol
from adbg.tui.debugger.model import Model, State
from adbg.tui.debugger.process import Process
from adbg.tui.text.attach import no_node_text
from adbg.tui.text.threads import frame_line, frames_shown, text_of

QUIET = 5.0  # seconds without a stop
FRAMES = 6  # of the main thread that are told
ANSWER = 3.0  # seconds for the stack: an agent answers at once unless a C call holds Python's lock


def tell_when_quiet(model: Model) -> None:
    """Watch for ``QUIET`` seconds, on a thread of its own."""
    asked = [(process, process.stop_serial) for process in model.processes if process.stop is None]

    def watch() -> None:
        if model.wait_state(State.STOPPED, State.EXITED, State.DETACHED, timeout=QUIET):
            return
        for process, serial in asked:
            if process.alive and process.stop_serial == serial:
                _tell(model, process)

    threading.Thread(target=watch, name="adbg-quiet", daemon=True).start()


def tell_when_queued(
    pid: int, waits: Callable[[], bool], cancelled: threading.Event, say: Callable[[str], object]
) -> None:
    """Watch a process that adbg cannot get into yet, on a thread of its own; after ``QUIET`` seconds say once what its
    threads do. Nothing is stopped for it: adbg is getting in meanwhile."""

    def watch() -> None:
        if not cancelled.wait(QUIET) and waits():
            with contextlib.suppress(AdbgError):
                say(text_of([read(pid, None, Native.NO)]))

    threading.Thread(target=watch, name="adbg-quiet", daemon=True).start()


def _tell(model: Model, process: Process) -> None:
    stack: list[str] = []
    silent = False
    try:
        stack = main_stack(process)
    except AdbgError:
        silent = process.alive
    if model.state is State.RUNNING:
        title = f"process {process.info.pid}" if len(model.processes) < 2 else process.title
        model.run.quiet = True
        model.notice("warning", no_node_text(title, QUIET, stack, silent))


def main_stack(process: Process) -> list[str]:
    """The user's frames of the main thread, innermost first: "step  train.py:7".

    Raises:
        AdbgError: no answer.
    """
    facts: protocol.AllThreadsBody = process.client.request(protocol.AllThreads(), ANSWER)
    main = [thread for thread in merge((), facts, ()) if thread.name == "MainThread"]
    return [frame_line(frame) for thread in main for frame in frames_shown(thread, False)[:FRAMES]]

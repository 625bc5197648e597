"""The terminal that the app lives on: file descriptors kept from stray writers, and everything put back in the end.
Main thread.

Textual draws through fd 2, and so does any C code of this process that logs there: its bytes would land in the middle
of the screen (measured in tmux: they overwrite it). While the app runs, fd 1 and fd 2 are pipes whose text goes to
``on_stray``, and Textual draws through a private copy of the terminal. Both streams have to be given to it: without
``__stdout__`` the screen stayed blank.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import queue
import signal
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from typing import Any

from adbg.tui.debugger import events
from adbg.tui.debugger.debugger import Debugger, State

_RESET = (
    "\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l"  # mouse
    "\x1b[?2004l\x1b[?1004l\x1b[?2048l\x1b[<u"  # bracketed paste, focus reports, resize reports, kitty keys
    "\x1b[?25h\x1b[0m"  # cursor, colours
)
_LEAVE = "\x1b[?1049l"  # the alternate screen; twice would move the cursor back, so only after a crash


@contextlib.contextmanager
def guarded(on_stray: Callable[[str], None]) -> Iterator[None]:
    """Keep fd 1 and fd 2 from the screen inside; afterwards they are as before, and so are the terminal's modes.

    ``on_stray`` gets what was written there, on a daemon thread.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    modes = _modes(0)
    saved = (os.dup(1), os.dup(2))
    streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    screen_out = open(os.dup(saved[0]), "w", encoding="utf-8", errors="replace", newline="\n")  # noqa: SIM115
    screen_err = open(os.dup(saved[1]), "w", encoding="utf-8", errors="replace", newline="\n")  # noqa: SIM115
    if not screen_err.isatty() and screen_out.isatty():
        screen_err = screen_out  # `2>log`: draw on the terminal that is there
    reading, writing = os.pipe()
    os.dup2(writing, 1)
    os.dup2(writing, 2)
    os.close(writing)
    sys.__stdout__, sys.__stderr__ = screen_out, screen_err  # type: ignore[misc]
    sys.stdout = sys.stderr = _stray_stream()
    reader = threading.Thread(target=_pump, args=(reading, on_stray), name="adbg-stray", daemon=True)
    reader.start()
    crashed = True
    try:
        yield
        crashed = False
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
        reader.join(1)
        restore(screen_err, modes, crashed)
        sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__ = streams  # type: ignore[misc]
        for stream in {screen_out, screen_err}:
            with contextlib.suppress(OSError):
                stream.close()
        for fd in saved:
            os.close(fd)


def _stray_stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), encoding="utf-8", errors="replace", line_buffering=True)


def _modes(fd: int) -> list[Any] | None:
    try:
        return termios.tcgetattr(fd)
    except (termios.error, OSError, ValueError):
        return None


def restore(stream: Any, modes: list[Any] | None, crashed: bool) -> None:
    """Terminal modes and screen as a shell expects them; harmless when they are so already."""
    with contextlib.suppress(OSError, ValueError):
        if stream.isatty():
            stream.write((_LEAVE if crashed else "") + _RESET)
            stream.flush()
    if modes is not None:
        with contextlib.suppress(termios.error, OSError):
            termios.tcsetattr(0, termios.TCSADRAIN, modes)


def _pump(fd: int, on_stray: Callable[[str], None]) -> None:
    with open(fd, "rb", buffering=0) as pipe:
        while data := pipe.read(1 << 16):
            with contextlib.suppress(Exception):
                on_stray(data.decode("utf-8", "replace"))


def leave_on_signals(leave: Callable[[int], None]) -> None:
    """SIGTERM and SIGHUP leave in good order, through ``leave`` with the exit status: the terminal is put back, and the
    program continues by itself (a connection that drops must not cost a training). Called in the app's loop."""
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, leave, 128 + number)


class Afterwards:
    """What the program writes once the debugger let go of it: kept while the screen is up, passed on afterwards."""

    def __init__(self, debugger: Debugger) -> None:
        self._debugger = debugger
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._unsubscribe = debugger.model.subscribe(self._take)

    def _take(self, event: events.Event) -> None:
        if isinstance(event, events.Started):
            self._queue = queue.SimpleQueue()  # what is here is of the program before a restart
        elif isinstance(event, events.Output) and self._debugger.state in (State.DETACHED, State.EXITED):
            self._queue.put(event.text)
        elif isinstance(event, events.Exited):
            self._queue.put(None)

    def see_out(self) -> int:
        """Print until the program ended; its exit status. Ctrl-C goes to the program."""
        while True:
            try:
                text = self._queue.get()
                if text is None:
                    break
                sys.stdout.write(text)
                sys.stdout.flush()
            except KeyboardInterrupt:
                self._debugger.interrupt()
        self._unsubscribe()
        self._debugger.close()
        return self._debugger.run.exit_code or 0

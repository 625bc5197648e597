"""The commands of the command line, ``-b``, ``-e`` and ``-x``, as one list, and how they are run.

``run_startup`` serves the interactive front ends (in the app from a worker thread); batch mode has its own loop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from adbg.engine.errors import AdbgError, CommandError
from adbg.tui.commands.table import CommandResult, execute, resolve, split
from adbg.tui.debugger.debugger import Debugger, State

READY_TIMEOUT = 30.0  # seconds for the program's agent to come; Python itself starts in 0.05 to 0.5
SETTLED = (State.STOPPED, State.EXITED, State.DETACHED)

Report = Callable[[str, CommandResult | AdbgError], None]


def lines_of_file(path: str) -> list[str]:
    """The commands of a file: one a line, ``#`` comments, a ``commands N`` ... ``end`` block made one line.

    Raises:
        CommandError: the file cannot be read, or a block does not end.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CommandError(f"cannot read the command file {path}: {reason}") from None
    return join_blocks(text.splitlines(), path)


class PlacedLine(str):
    """A command line that knows where it was written ("setup.adbg:3"): its errors say so."""

    place: str = ""


def _placed(text: str, where: str, number: int) -> PlacedLine:
    line = PlacedLine(text)
    line.place = f"{where}:{number}"
    return line


def join_blocks(lines: Iterable[str], where: str) -> list[str]:
    """Blank lines and comments left out, each ``commands`` block joined into one line with line ends in it."""
    out: list[str] = []
    block: list[str] | None = None
    began = 0
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if block is not None:
            if text == "end":
                out.append(_placed("\n".join(block), where, began))
                block = None
            elif text and not text.startswith("#"):
                block.append(text)
        elif text and not text.startswith("#"):
            if opens_block(text):
                block, began = [text], number
            else:
                out.append(_placed(text, where, number))
    if block is not None:
        raise CommandError(f"{where}:{began}: `{block[0]}` has no `end`", "a line `end` closes the block")
    return out


def opens_block(line: str) -> bool:
    """``commands`` or ``commands N`` without commands after it: the lines up to ``end`` belong to it."""
    word, argument = split(line)
    try:
        name = resolve(word).name
    except CommandError:
        return False
    return name == "commands" and (not argument or argument.isdigit())


def stop_commands(debugger: Debugger) -> list[str]:
    """The ``commands`` of the breakpoints that stopped here, in order."""
    stop = debugger.stop
    if stop is None:
        return []
    lines: list[str] = []
    for row in debugger.settings.breakpoints:
        if row.id in stop.breakpoints:
            lines += row.commands
    return lines


def _agent_came(debugger: Debugger, cancelled: threading.Event) -> bool:
    """Within ``READY_TIMEOUT``; a process that is being entered is waited for as long as that takes."""
    limit = time.monotonic() + READY_TIMEOUT
    while not debugger.await_agent(0.1):
        if debugger.entering:
            limit = time.monotonic() + READY_TIMEOUT
        if cancelled.is_set() or time.monotonic() > limit:
            return cancelled.is_set()
    return True


def run_startup(debugger: Debugger, report: Report, cancelled: threading.Event | None = None) -> None:
    """Start the program, run ``debugger.startup``, and start the script if no command did so.

    A command that resumes the program is waited for before the next one. ``report`` gets every command line with
    its result or its error; stops and the end come as events. An error in one line does not keep the next ones from
    running.

    Raises:
        AdbgError: the program cannot be started.
    """
    cancelled = cancelled or threading.Event()
    debugger.start()
    if not _agent_came(debugger, cancelled) and not debugger.program.detached_start:
        debugger.model.notice(
            "warning", f"no agent connected within {READY_TIMEOUT:g} s; the program runs without the debugger"
        )
    for line in debugger.startup:
        if cancelled.is_set():
            return
        try:
            result = execute(debugger, line)
        except AdbgError as error:
            report(line, error)
            continue
        report(line, result)
        while result.running and not result.background and not debugger.model.wait_state(*SETTLED, timeout=0.2):
            if cancelled.is_set():
                return
    if debugger.state is State.STARTING and not cancelled.is_set():
        debugger.begin()

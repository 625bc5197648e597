"""The `!` key: a prompt on the whole terminal while the app is suspended, with prompt_toolkit's editing. UI thread.

``PromptSession.prompt`` cannot be called under a running event loop, ``prompt_async`` can; commands run in a thread
meanwhile. Ctrl-C never leaves: the next keys would be keys of the screen.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING

from adbg.engine.errors import AdbgError
from adbg.tui.app.panels.console import History
from adbg.tui.commands.startup import SETTLED, opens_block
from adbg.tui.commands.table import execute
from adbg.tui.debugger.debugger import Debugger, State
from adbg.tui.debugger.reports import stop_report
from adbg.tui.debugger.signals import Interrupts
from adbg.tui.repl.blocks import commands_in, incomplete, python_of

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession


async def converse(debugger: Debugger, before: Sequence[str], history: History) -> list[tuple[str, str]]:
    """Prompt until an empty line or Ctrl-D; returns what was typed and what came of it, for the console."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import ThreadedCompleter
    from prompt_toolkit.history import InMemoryHistory

    from adbg.tui.repl.completion import CommandCompleter
    from adbg.tui.repl.prompt import paste_bindings, plain_output

    session: PromptSession[str] = PromptSession(
        history=InMemoryHistory(history.lines),
        completer=ThreadedCompleter(CommandCompleter(debugger)),
        key_bindings=paste_bindings(),
        output=plain_output(),
    )
    print("\n".join(before))
    print("(empty line or Ctrl-D: back to the screen)")
    busy = threading.Event()
    with _ctrl_c(debugger, busy):
        return await _talk(debugger, session, history, busy)


async def _talk(
    debugger: Debugger, session: PromptSession[str], history: History, busy: threading.Event
) -> list[tuple[str, str]]:
    done: list[tuple[str, str]] = []
    begun = ""
    while True:
        try:
            typed = await session.prompt_async("(adbg) ", default=begun, handle_sigint=False)
            commands, begun = commands_in(typed) if "\n" in typed else ([await _whole(session, typed)], "")
        except KeyboardInterrupt:
            begun = ""
            continue
        except EOFError:
            return done
        if not typed.strip():
            return done
        for command in commands:
            history.add(command)
            busy.set()
            done.append((command, await _run(debugger, command)))
            busy.clear()


async def _whole(session: PromptSession[str], line: str) -> str:
    """With its further lines: of a Python block after ``!``, of ``commands N`` up to ``end``."""
    text = line.strip()
    if text.startswith("!"):
        while incomplete(python_of(line)):
            line += "\n" + await session.prompt_async("    ... ", handle_sigint=False)
    elif opens_block(text):
        while (more := await session.prompt_async("      > ", handle_sigint=False)).strip() != "end":
            line += "\n" + more
    return line.strip()


async def _run(debugger: Debugger, command: str) -> str:
    """Run a command and print what it says; where it set the program going, wait for the stop."""
    try:
        result = await asyncio.to_thread(execute, debugger, command)
        text = result.text
        if text:
            print(text, flush=True)
        if result.running and not result.background:
            await asyncio.to_thread(debugger.model.wait_state, *SETTLED)
            stop = debugger.stop
            if debugger.state is State.STOPPED and stop is not None:
                print(stop_report(debugger.view, stop), flush=True)
        return text
    except AdbgError as error:
        print(error)
        return str(error)


@contextlib.contextmanager
def _ctrl_c(debugger: Debugger, busy: threading.Event) -> Iterator[None]:
    """Within this block Ctrl-C is for ``Interrupts``, also between two prompts; unhandled it would end the app, whose
    loop this is. In a prompt Ctrl-C is a key, for the terminal is raw. The prompt must not take the signal for itself:
    as it begins and as it ends, the terminal is not raw, and one that comes then would meet a prompt that does not run,
    or Python's own handler, which ``remove_signal_handler`` puts in for a moment."""
    interrupts = Interrupts(debugger)

    def work() -> None:
        try:
            print(interrupts.press(busy.is_set), flush=True)
        except AdbgError as error:
            print(error, flush=True)

    def pressed(_number: int, _frame: FrameType | None) -> None:
        threading.Thread(target=work, name="adbg-interrupt", daemon=True).start()

    earlier = signal.signal(signal.SIGINT, pressed)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, earlier)

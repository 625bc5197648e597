"""The `!` key: a prompt on the whole terminal while the app is suspended, with prompt_toolkit's editing. UI thread.

``PromptSession.prompt`` cannot be called under a running event loop, ``prompt_async`` can; commands run in a thread
meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from adbg.engine.errors import AdbgError
from adbg.tui.app.panels.console import History
from adbg.tui.commands.table import execute
from adbg.tui.debugger.debugger import Debugger


async def converse(debugger: Debugger, before: Sequence[str], history: History) -> list[tuple[str, str]]:
    """Prompt until an empty line or Ctrl-D; returns what was typed and what came of it, for the console."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import ThreadedCompleter
    from prompt_toolkit.history import InMemoryHistory

    from adbg.tui.repl.completion import CommandCompleter

    session: PromptSession[str] = PromptSession(
        history=InMemoryHistory(history.lines), completer=ThreadedCompleter(CommandCompleter(debugger))
    )
    print("\n".join(before))
    print("(empty line or Ctrl-D: back to the screen)")
    done: list[tuple[str, str]] = []
    while True:
        try:
            line = (await session.prompt_async("(adbg) ")).strip()
        except (EOFError, KeyboardInterrupt):
            return done
        if not line:
            return done
        history.add(line)
        try:
            result = await asyncio.to_thread(execute, debugger, line)
            text = result.text
        except AdbgError as error:
            text = str(error)
        if text:
            print(text)
        done.append((line, text))

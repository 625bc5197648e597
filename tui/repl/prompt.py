"""The prompt of the REPL: its history, completion, highlighting and pastes. Main thread."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from adbg.tui.debugger.debugger import Debugger
from adbg.tui.repl.passthrough import terminal_size

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.data_structures import Size
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.output import Output


def history_path() -> Path:
    """$XDG_STATE_HOME/adbg/history, else ~/.local/state/adbg/history; shared with the console of the full screen."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "adbg" / "history"


def prompt_session(debugger: Debugger, colour: bool) -> PromptSession[str]:
    """With history, completion and highlighting."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    from adbg.tui.repl.completion import CommandCompleter
    from adbg.tui.repl.highlighting import CommandLexer

    path = history_path()
    history: FileHistory | InMemoryHistory
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        history = FileHistory(str(path))
    except OSError:
        history = InMemoryHistory()  # where nothing can be written, only this session's lines
    return PromptSession(
        output=plain_output(),
        history=history,
        completer=CommandCompleter(debugger),
        complete_in_thread=True,
        complete_while_typing=False,
        lexer=CommandLexer() if colour else None,
        enable_history_search=True,
        key_bindings=paste_bindings(),
    )


def plain_output() -> Output:
    """Without the cursor position requests: where a terminal leaves them unanswered (some multiplexers, serial lines),
    output that comes while the prompt stands would wait for the answer, and so would the line that was entered."""
    from prompt_toolkit.output.vt100 import Vt100_Output

    return Vt100_Output(sys.stdout, _screen_size, os.environ.get("TERM"), enable_cpr=False)


def paste_bindings() -> KeyBindings:
    """Lines that are pasted are run, as if they had been typed; what has no line end yet is only put in."""
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.keys import Keys

    bindings = KeyBindings()

    @bindings.add(Keys.BracketedPaste)
    def _(event: KeyPressEvent) -> None:
        text = event.data.replace("\r\n", "\n").replace("\r", "\n")
        event.current_buffer.insert_text(text)
        if "\n" in text:
            event.current_buffer.validate_and_handle()

    return bindings


def _screen_size() -> Size:
    from prompt_toolkit.data_structures import Size

    rows, columns = terminal_size() or (24, 80)
    return Size(rows, columns)

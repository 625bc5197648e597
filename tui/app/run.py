"""The app from its start to its end: the terminal around it, and the program that may outlive it. Main thread."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from adbg.engine.errors import AdbgError
from adbg.tui.app.app import AdbgApp
from adbg.tui.app.terminal import Afterwards, guarded
from adbg.tui.debugger.debugger import Debugger, State


def run_app(debugger: Debugger, history_file: str | None = None) -> int:
    """Show the app until the user leaves it or the terminal is lost; returns adbg's exit status (the script's).

    ``debugger`` is made but not started: the app does that. Must be called on the main thread, on a terminal. When the
    user detached, or the app itself failed, the program runs on: its output goes to the terminal until it ends.
    """
    from adbg.tui.repl.prompt import history_path

    app = AdbgApp(debugger, _history_file(history_path()) if history_file is None else history_file)
    afterwards = Afterwards(debugger)
    status: int | None = None
    try:
        with guarded(app.stray):
            status = app.run()
    except KeyboardInterrupt:
        status = 130
    except Exception as error:
        app.crash = app.crash or f"{type(error).__name__}: {error}"
    if app.crash:
        print(f"adbg: the screen failed: {app.crash}", file=sys.stderr)
        print("      the program continues without the debugger; `adbg run --repl` needs no screen", file=sys.stderr)
        with contextlib.suppress(AdbgError):
            debugger.detach()
    if debugger.state is State.DETACHED and debugger.program.launched:
        return afterwards.see_out()
    debugger.close()
    return 0 if status is None else status


def _history_file(path: Path) -> str:
    """The file as text, its folder made; "" where that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError:
        return ""
    return str(path)

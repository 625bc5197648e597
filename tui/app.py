"""The Textual app: one screen of five panels over a ``Debugger``. Runs on the main thread of the front end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adbg.tui.debugger import Debugger


def run_app(debugger: Debugger) -> int:
    """Show the app until the user leaves it or the terminal is lost; returns adbg's exit status (the script's).

    ``debugger`` is made but need not be connected: the app shows what state it is in. Must be called on the main thread.
    """
    from textual.app import App

    app: App[int] = App()
    return app.run() or 0

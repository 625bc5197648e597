"""The command table: ``execute(debugger, line)`` for every front end. See ``table``."""

from __future__ import annotations

from adbg.tui.commands.table import TABLE, Command, CommandResult, execute, resolve

__all__ = ["TABLE", "Command", "CommandResult", "execute", "resolve"]

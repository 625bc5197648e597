"""``why hang``: each rank is looked at twice, a moment apart, and the looks are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adbg.engine.errors import CommandError
from adbg.engine.hang.values import HangVerdict
from adbg.engine.protocol.codec import to_json
from adbg.tui.commands.table import CommandResult
from adbg.tui.debugger.job.look import APART, verdict_on
from adbg.tui.text.hang import hang_lines

if TYPE_CHECKING:
    from adbg.tui.debugger.debugger import Debugger


def why_hang(debugger: Debugger, argument: str) -> CommandResult:
    """``why hang [SECONDS]``."""
    apart = APART
    if argument:
        try:
            apart = float(argument)
        except ValueError:
            raise CommandError(f"expected seconds, got {argument!r}", "for example: why hang 5") from None
        if not 0.1 <= apart <= 60:
            raise CommandError("the looks are 0.1 to 60 seconds apart", "for example: why hang 5")
    return verdict_result(verdict_of(debugger, apart))


def verdict_result(verdict: HangVerdict, recorded: bool = False) -> CommandResult:
    return CommandResult("\n".join(hang_lines(verdict, recorded=recorded)), to_json(verdict))


def verdict_of(debugger: Debugger, apart: float = APART) -> HangVerdict:
    processes = list(debugger.run.processes)
    if not any(process.alive for process in processes):
        raise debugger.model.absent()
    return verdict_on(processes, debugger.run.exit, apart)

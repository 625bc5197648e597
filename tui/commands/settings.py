"""adbg's own settings: ``set NAME VALUE``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adbg.engine.errors import CommandError
from adbg.tui.commands.table import CommandResult
from adbg.tui.debugger.stop_all import HELD_SECONDS

if TYPE_CHECKING:
    from adbg.tui.debugger.debugger import Debugger

_STOP = "`set stop all` (the default: ranks stop and go on together) or `set stop one`"
_TIMEOUT = (
    "`set group-timeout hold` (the default: raised while a rank is or may be stopped), `keep` (never touched), or a "
    "number of seconds that collectives wait at least from now on"
)


def setting(debugger: Debugger, argument: str) -> CommandResult | None:
    """``set stop …`` and ``set group-timeout …``; None for anything else."""
    name, _, word = argument.strip().partition(" ")
    word, stop_all = word.strip(), debugger.stop_all
    if name == "stop" and "=" not in argument:
        if word and word not in ("all", "one"):
            raise CommandError(f"expected `all` or `one`, got {word!r}", _STOP)
        with debugger.model.changed:
            stop_all.on = word != "one" if word else stop_all.on
        how = "together" if stop_all.on else "one by one"
        return CommandResult(f"ranks stop {how}", "all" if stop_all.on else "one")
    if name == "group-timeout":
        if word and word not in ("hold", "keep") and not (word.isdecimal() and int(word) > 0):
            raise CommandError(f"expected `hold`, `keep` or seconds, got {word!r}", _TIMEOUT)
        with debugger.model.changed:
            if word == "keep":
                stop_all.timeout, stop_all.always = None, 0.0
            elif word:
                stop_all.always = float(word) if word.isdecimal() else 0.0
                stop_all.timeout = max(HELD_SECONDS, stop_all.always)
            stop_all.renew_timeouts()
        held = (
            "are left alone"
            if stop_all.timeout is None
            else "are raised to a day while a rank is stopped or may stop at a breakpoint"
        )
        always = f", and wait at least {stop_all.always:g} s at all times" if stop_all.always else ""
        return CommandResult(f"the time-outs of process groups {held}{always}", word or "hold")
    return None

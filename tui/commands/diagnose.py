"""The command ``diagnose``: what is wrong with this training, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adbg.engine.protocol import messages as protocol
from adbg.tui.commands.table import CommandResult, command

if TYPE_CHECKING:
    from adbg.tui.debugger.debugger import Debugger


@command("diagnose", group="information", args="[KIND] | start [deep] [KIND,…]")
def diagnose(debugger: Debugger, argument: str) -> CommandResult:
    """Name the causes of what is wrong with the training so far: node, line, reason and what proves it."""
    words = argument.split()
    starting = words[:1] == ["start"]
    only = [kind for word in words if word not in ("start", "deep") for kind in word.split(",")]
    request = protocol.Diagnose("start" if starting else "state", only, "deep" in words)
    body = debugger.view.request(request)
    return CommandResult("\n".join(finding.message for finding in body.findings))

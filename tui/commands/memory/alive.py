"""``why alive``: which variables keep a tensor, a node, or graphs of earlier iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adbg.engine.protocol import messages as protocol
from adbg.engine.protocol.codec import to_json
from adbg.tui.commands.table import CommandResult
from adbg.tui.text.memory import alive_lines

if TYPE_CHECKING:
    from adbg.tui.debugger.debugger import Debugger


def why_alive(debugger: Debugger, argument: str) -> CommandResult:
    """``why alive [EXPR|#NODE]``."""
    debugger.view.need_stop()
    text = argument.strip()
    node = debugger.view.find_node(text) if text.startswith("#") else 0
    request = protocol.Alive("" if node else text, node, debugger.view.frame_id())
    body: protocol.AliveBody = debugger.view.request(request)
    return CommandResult("\n".join(alive_lines(body)), to_json(body))

"""The line below the status bar at a bad stop: what is wrong, where, and on which evidence. Pure; any thread."""

from __future__ import annotations

import re

from adbg.engine.types import NodeStop, StopReason
from adbg.tui.text import cells as figures

ROOMY = 110  # cells; below, the evidence stands in short form
BAD = (StopReason.NAN, StopReason.INF, StopReason.ERROR)
_HEAD = {StopReason.NAN: "NaN", StopReason.INF: "Inf", StopReason.ERROR: "Error"}
# "grad_inputs[0]: 4 of 192 elements are nan, incoming gradients all finite", as engine.hooks words it
_SHORTER = (
    (re.compile(r"(\d+) of (\d+) elements? (?:is|are) "), r"\1/\2 "),
    (re.compile(r"incoming gradients all finite"), "incoming finite"),
    (re.compile(r"incoming gradients not finite either"), "incoming not finite"),
)


def banner_text(stop: NodeStop, width: int) -> str:
    """The banner of a bad ``stop`` in a terminal of ``width`` cells; it may be longer than that, the evidence first.

    "✗ NaN at SqrtBackward0#1 #199, made by model.py:20 — grad_inputs[0]: 4 of 192 elements are nan, incoming gradients
    all finite", or in few cells "✗ NaN #199 SqrtBackward0 grad_inputs[0]: 4/192 nan, incoming finite".
    """
    head = _HEAD[stop.reason]
    first = stop.message.split("\n", 1)[0]
    if stop.node is None:
        return f"✗ {head} at backward {stop.backward} — {first}"
    first = first.replace(f" of {stop.node.unique_name}", "")
    if width >= ROOMY:
        forward = stop.node.forward
        where = f", made by {figures.place(forward.file, forward.line)}" if forward else ""
        return f"✗ {head} at {stop.node.unique_name} #{stop.index}{where} — {first}"
    for pattern, short in _SHORTER:
        first = pattern.sub(short, first)
    return f"✗ {head} #{stop.index} {stop.node.name} {first}"

"""The line below the status bar at a bad stop: what is wrong, where, and on which evidence. Pure; any thread."""

from __future__ import annotations

from adbg.engine.types import NodeStop, StopReason
from adbg.tui.text import cells as figures
from adbg.tui.text.evidence import evidence_text

ROOMY = 110  # cells; below, the evidence stands in short form
BAD = (StopReason.NAN, StopReason.INF, StopReason.ERROR)
_HEAD = {StopReason.NAN: "NaN", StopReason.INF: "Inf", StopReason.ERROR: "Error"}


def banner_text(stop: NodeStop, width: int) -> str:
    """The banner of a bad ``stop`` in a terminal of ``width`` cells; it may be longer than that, the evidence first.

    "✗ NaN at SqrtBackward0#1 #199, made by model.py:20 — grad_inputs[0]: 4 of 192 elements are nan, incoming gradients
    all finite", or in few cells "✗ NaN #199 SqrtBackward0 grad_inputs[0]: 4/192 nan, incoming finite".
    """
    head = _HEAD[stop.reason]
    roomy = width >= ROOMY or stop.node is None
    evidence = evidence_text(stop.evidence, brief=not roomy)
    what = "; ".join(filter(None, (stop.message.split("\n", 1)[0], evidence)))
    if stop.node is None:
        return f"✗ {head} at backward {stop.backward} — {what}"
    if roomy:
        forward = stop.node.forward
        where = f", made by {figures.place(forward.file, forward.line)}" if forward else ""
        return f"✗ {head} at {stop.node.unique_name} #{stop.index}{where} — {what}"
    return f"✗ {head} #{stop.index} {stop.node.name} {what}"

"""The line below the status bar at a bad stop: what is wrong, where, and on which evidence. Pure; any thread."""

from __future__ import annotations

from adbg.engine.types import NodeStop, Phase, StopReason
from adbg.tui.text import cells as figures
from adbg.tui.text.evidence import evidence_text, failure_words, verdict_text

ROOMY = 110  # cells; below, the evidence stands in short form
BAD = (StopReason.NAN, StopReason.INF, StopReason.ERROR)
_HEAD = {StopReason.NAN: "NaN", StopReason.INF: "Inf", StopReason.ERROR: "Error"}


def banner_text(stop: NodeStop, width: int) -> str:
    """The banner of a bad ``stop`` in a terminal of ``width`` cells; it may be longer than that, the verdict first.

    "✗ Sqrt (model.py:20) made NaN from finite gradients — #199, grad_inputs[0]: 4 of 192 elements are nan", in few
    cells "… — #199, grad_inputs[0]: 4/192 nan".
    """
    roomy = width >= ROOMY or stop.node is None
    evidence = evidence_text(stop.evidence, brief=not roomy)
    verdict = verdict_text(stop)
    if verdict:
        told = "; ".join(filter(None, (stop.message.split("\n", 1)[0], evidence)))
        return f"✗ {verdict} — #{stop.index}, {told}" if told else f"✗ {verdict} — #{stop.index}"
    head = _HEAD[stop.reason]
    why, raised = failure_words(stop)
    what = "; ".join(filter(None, (why, raised.split("\n", 1)[0], evidence)))
    if stop.phase is Phase.PYTHON:
        where = f" at {figures.place(stop.location.file, stop.location.line)}" if stop.location else ""
        return f"✗ Uncaught exception{where} — {what}"
    if stop.node is None:
        return f"✗ {head} at backward {stop.backward} — {what}"
    if roomy:
        forward = stop.node.forward
        where = f" (forward {figures.place(forward.file, forward.line)})" if forward else ""
        return f"✗ {head} at {stop.node.unique_name} #{stop.index}{where} — {what}"
    return f"✗ {head} #{stop.index} {stop.node.name}: {what}"

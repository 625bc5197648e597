"""Texts that need a question to the agent: a stop with its gradients, the value of an expression, display entries.

Caller's thread, which must not be the dispatcher's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from adbg.engine.errors import AdbgError
from adbg.engine.protocol.messages import NodeBody
from adbg.engine.types import NodeStop, TensorView
from adbg.tui.debugger.stop_view import Shown, StopView
from adbg.tui.text.formatting import stop_lines, tensor_text

if TYPE_CHECKING:
    from adbg.tui.debugger.debugger import Debugger


def value_text(view: StopView, expression: str, form: str = "") -> str:
    """An expression's value as text: as the framework prints it (form ""), or as ``form`` asks."""
    if not form or form == "text":
        return view.evaluate(expression, "watch").result
    return tensor_text(tensor_view(view, expression, form))


def tensor_view(view: StopView, expression: str, form: str, node: int = 0) -> TensorView:
    """The TensorView that ``form`` (one of FORMATS but "text") asks for, at the current node or at ``node``."""
    stats, exact = form in ("stats", "exact"), form == "exact"
    return view.tensor(expression, node=node, stats=stats, exact=exact, window=form == "window", rows=16, cols=12)


def stop_report(view: StopView, stop: NodeStop | None = None) -> str:
    """The current stop with its gradients read from the agent; displays are the caller's affair."""
    stop = stop or view.need_stop()
    body: NodeBody | None = None
    if stop.node is not None and stop.index:
        try:
            body = view.node()
        except AdbgError:
            body = None  # the stop itself is known all the same
    return "\n".join(stop_lines(stop, body))


def entering_rows(debugger: Debugger, now: float) -> list[tuple[int, bool, str, float]]:
    """(pid, queued, what its main thread waits in, seconds) of the processes that adbg is getting into."""
    attachment = debugger.program.attachment
    rows = attachment.entering if attachment is not None else ()
    return [(row.pid, row.queued, row.blocked, now - row.since) for row in rows]


def shown_text(row: Shown) -> str:
    """ "3: norm(g) = 0.022", "* 4: w (watch) = 2, was 1"."""
    if row.error:
        return f"{row.number}: {row.expression}: {row.error}"
    mark = "* " if row.changed else ""
    value = row.text if "\n" not in row.text else "\n" + row.text
    was = f", was {row.before}" if row.changed and "\n" not in row.before else ""
    return f"{mark}{row.number}: {row.expression} = {value}{was}"

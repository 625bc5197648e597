"""``adbg/tensor``: meta, statistics and a window of a value. Runs on the parked thread. Never sends a whole
tensor.
"""

from __future__ import annotations

import re
from typing import Any

from adbg.engine.errors import Unsupported
from adbg.engine.graph.index import index_of
from adbg.engine.inspect.context import StopContext
from adbg.engine.inspect.evaluate import result_text, value_at
from adbg.engine.inspect.value_text import is_tensor
from adbg.engine.protocol import messages as protocol
from adbg.engine.python import expressions as python
from adbg.engine.types import TensorMeta, TensorView, ValueState

MAX_BINS = 512
MAX_ROWS, MAX_COLS = 512, 1024  # cells of a window: half a million floats, at most 10 MB of JSON

_GRADIENT = re.compile(r"\s*grad_(?:out|in)puts\[(?:\d+)\]\s*")


def tensor_view(stop: StopContext, request: protocol.Tensor) -> TensorView:
    """Meta always; statistics and a window as asked. A value that is not a tensor gives its text.

    Raises:
        CommandError: a bad expression, a bad slice, or a gradient of a node other than the current one.
    """
    value = _value(stop, request)
    if value is None and _GRADIENT.fullmatch(request.expression):
        return TensorView(
            request.expression, TensorMeta(None, state=ValueState.UNDEFINED), text="undefined: no gradient flows here"
        )
    if not is_tensor(stop.point.backend, value):
        return TensorView(request.expression, None, text=result_text(stop, value))
    backend = stop.backend
    bins = min(max(1, request.bins), MAX_BINS)
    rows, cols = min(max(1, request.rows), MAX_ROWS), min(max(1, request.cols), MAX_COLS)
    meta = backend.meta(value)
    stats, window, missing = None, None, ""
    try:
        stats = backend.stats(value, request.exact, bins) if request.stats else None
        window = backend.window(value, request.slice, rows, cols) if request.window else None
    except Unsupported as error:  # sparse, meta device: what there is shows, with the reason for the rest
        missing = str(error)
    return TensorView(request.expression, meta, stats, window, missing)


def _value(stop: StopContext, request: protocol.Tensor) -> Any:
    """The value at the current node, or (``node``) at another one."""
    point = stop.point
    if not request.node or (point.key is not None and request.node == point.stop.index):
        return value_at(stop, request.expression, request.frameId)
    graph, _ = stop.graph()
    key = index_of(graph).key_at(request.node)
    frame = stop.innermost
    return python.evaluate(request.expression, stop.node_names(graph, key, frame))

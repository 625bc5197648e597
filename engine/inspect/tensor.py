"""``adbg/tensor``: meta, statistics and a window of a value. Runs on the parked thread. Never sends a whole
tensor.
"""

from __future__ import annotations

import re

from adbg.engine.errors import Unsupported
from adbg.engine.inspect.context import StopContext
from adbg.engine.inspect.evaluate import result_text, value_of
from adbg.engine.inspect.value_text import is_tensor
from adbg.engine.protocol import messages as protocol
from adbg.engine.types import TensorMeta, TensorView, ValueState

MAX_BINS = 512
MAX_ROWS, MAX_COLS = 512, 1024  # cells of a window: half a million floats, at most 10 MB of JSON

_GRADIENT = re.compile(r"\s*grad_(?:out|in)puts\[(?:\d+)\]\s*")


def tensor_view(stop: StopContext, request: protocol.Tensor) -> TensorView:
    """Meta always; statistics and a window as asked. A value that is not a tensor gives its text.

    Raises:
        CommandError: a bad expression, a bad slice, or a gradient of a node other than the current one.
    """
    value = value_of(stop, request.expression, request.frameId, request.node)
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

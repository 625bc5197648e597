"""Which node overwrote a tensor that another one saved? By torch's own record of the tensor. At a stop or an error, on
its thread; nothing is executed.

An operation in place makes itself the tensor's ``grad_fn``, and the operators that took the tensor before keep their
edges to the one of before. A tensor that a node saved as its input knows its ``grad_fn`` of now; one that is the node's
own result does not, and is looked for among the nodes that took the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from adbg.engine.backends.base import SavedValue
from adbg.engine.backends.common.in_place import last_taker, overwritten_text, writes_in_place
from adbg.engine.backends.torch import private
from adbg.engine.types import SourceLine

if TYPE_CHECKING:
    from adbg.engine.backends.torch.graph import TorchGraph

_MOST_WRITES = 1000
_UNRECORDED = "overwritten where torch records nothing: under no_grad, through .data, or by an optimizer's step"


def overwritten(graph: TorchGraph, key: int, saved: SavedValue) -> tuple[str, SourceLine | None]:
    """ "overwritten at vae.py:12 by #10 ClampBackward1#1": the first write since it was saved, and its line; ""
    where it is not known."""
    value = saved.value
    if not isinstance(value, torch.Tensor):
        return "", None
    node = graph.node(key)
    if value.is_leaf and value.requires_grad:
        return _UNRECORDED, None
    now = private.attribute_grad_fn(value)
    if now is None:
        return _by_takers(graph, key, value)
    before = {below for below, _ in node.next_functions if below is not None}
    writers: list[Any] = []
    while now is not None and now not in before and len(writers) < _MOST_WRITES:
        writers.append(now)
        edges = now.next_functions
        now = edges[0][0] if edges else None
    if now is None:
        return "", None
    if not writers:
        return _UNRECORDED, None
    first = graph.key_of(writers[-1])
    if first is not None:
        return overwritten_text(graph, first), graph.describe(first).forward
    line = graph.line_of(writers[-1])
    where = f" at {line.file}:{line.line}" if line is not None else ""
    return f"overwritten{where} by {type(writers[-1]).__name__}, which has no part in this backward", line


def _by_takers(graph: TorchGraph, key: int, value: Any) -> tuple[str, SourceLine | None]:
    """``value`` is the result of ``key``."""
    taker = last_taker(graph, key)
    if taker is None:
        return "", None
    line = graph.describe(taker).forward
    if type(graph.node(taker)).__name__ == "CopySlices" or _same_memory(graph.node(taker), value):
        return overwritten_text(graph, taker), line
    return (overwritten_text(graph, taker, False), line) if writes_in_place(line) else ("", None)


def _same_memory(node: Any, value: Any) -> bool:
    """Its own result lies where ``value`` does."""
    raw = getattr(node, "_raw_saved_result", None)
    try:
        result = raw.data if raw is not None else None
        return result is not None and result.data_ptr() == value.data_ptr()
    except RuntimeError:  # freed
        return False

"""What the node timer says of a node beside its times. On the program's thread, while the call's graph is there."""

from __future__ import annotations

from typing import Any

from adbg.engine.outside import own
from adbg.engine.session.running_call import Running


def describe(running: Running, key: int, index: int, place: str) -> dict[str, Any]:
    """Name, line and module of the node that ran as number ``index``; ``place``: the line of the backward call."""
    try:
        info = running.call.describe(key)
        stack = running.call.forward_stack(key)[0]
    except own(Exception):
        return {
            "name": running.call.name(key), "unique_name": "", "file": "", "line": 0, "module": "",
            "index": index, "depth": running.call.depth, "backward_line": place, "numel": None,
        }  # fmt: skip
    line = stack[0] if stack else None
    return {
        "name": info.name,
        "unique_name": info.unique_name,
        "index": index,
        "file": line.file if line is not None else "",
        "line": line.line if line is not None else 0,
        "module": info.module or "",
        "depth": running.call.depth,
        "backward_line": place,
        "numel": _numel(running, key),
    }


def _numel(running: Running, key: int) -> int | None:
    """Of the largest gradient that flows into it; None where its shape is not known."""
    try:
        return max((meta.numel for meta in running.call.input_meta(key) if meta.shape is not None), default=None)
    except own(Exception):
        return None

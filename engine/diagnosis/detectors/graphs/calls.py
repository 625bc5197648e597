"""What the detectors of graphs know of operators by their names, which are those of the framework's functions."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.outside import suppress
from adbg.engine.own_files import is_library
from adbg.engine.types import SourceLine

_SPECIAL = frozenset({"__setitem__", "index_put_", "set_data", "set_value", "_inplace_assign", "_share_buffer_to"})
_KEEP = frozenset({"requires_grad_", "detach_", "share_memory_", "rename_", "retain_grad_"})  # no element
_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "truediv": "/", "subtract": "-", "multiply": "*", "divide": "/",
    "pow": "**", "matmul": "@",
}  # fmt: skip


@functools.lru_cache(4096)
def plain(name: str) -> str:
    """ "add" of "add_", "__add__", "__radd__", "__iadd__" and "_foreach_add_"."""
    if name.startswith("__") and name.endswith("__"):
        inner = name[2:-2]
        return inner[1:] if inner[:1] in "ri" and inner[1:] in _SIGNS else inner
    return name.removeprefix("_foreach_").strip("_")


def writes(call: OperatorCall) -> list[Any]:
    """The tensors that it writes into, as far as its name and its arguments say."""
    if call.name in _KEEP:
        return []
    if call.name in _SPECIAL:
        return list(call.operands[:1])
    if call.name.endswith("_") and not call.name.endswith("__"):
        if call.name.startswith("_foreach") and call.arguments and isinstance(call.arguments[0], (list, tuple)):
            return list(call.arguments[0])
        return list(call.operands[:1])
    if call.name.startswith("__i") and plain(call.name) in _SIGNS and call.results:
        return [each for each in call.operands[:1] if any(each is result for result in call.results)]
    out = call.keywords.get("out")
    return list(out) if isinstance(out, (list, tuple)) else [out] if out is not None else []


def line_of(lines: Iterable[SourceLine]) -> SourceLine | None:
    """The innermost that is the program's own: NumPy calls ``__array__`` from a file of its own."""
    first = None
    for line in lines:
        if not is_library(line.file):
            return line
        first = first or line
    return first


def place(line: SourceLine | None) -> str:
    """ "model.py:12"."""
    return f"{line.file.rpartition('/')[2]}:{line.line}" if line is not None else "an unknown line"


def shape(value: Any) -> list[int]:
    """[] where it has none that can be told: a nested tensor, whose rows differ."""
    with suppress(Exception):
        return [int(size) for size in value.shape]
    return []


def axis_of(call: OperatorCall, at: int | None = None) -> int | None:
    """The one axis that it is told, at place ``at`` of the arguments where it is not named."""
    given = call.keywords.get("dim", call.keywords.get("axis"))
    where = at if at is not None else 2 if "norm" in call.name else 1  # a norm has its order before it
    if given is None and len(call.arguments) > where:
        given = call.arguments[where]
    if isinstance(given, (list, tuple)) and len(given) == 1:
        given = given[0]
    return given if isinstance(given, int) and not isinstance(given, bool) else None

"""Texts of values of a program that runs: only what Python itself holds is read, and no code of the program's runs.

No ``__repr__``, no property, no number of a tensor. Any thread.
"""

from __future__ import annotations

import collections
import itertools
import types
from collections.abc import Iterable, Sequence
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.inspect.value_text import one_line, tensor_text, type_name
from adbg.engine.outside import own

ITEMS = 6
LEVELS = 3
_PLAIN = (bool, float, complex, type(None), type(Ellipsis))
_BRACKETS: dict[type, tuple[str, str]] = {
    list: ("[", "]"), tuple: ("(", ")"), set: ("{", "}"), frozenset: ("{", "}"), collections.deque: ("[", "]"),
}  # fmt: skip
_TENSORS = ("Tensor", "Parameter", "EagerParamBase")  # of a framework itself: a subclass may have code of its own


def still_text(value: Any, backends: Sequence[Backend] = (), level: int = LEVELS) -> str:
    """One line: numbers, strings and containers of them as Python writes them; a tensor as "f32 [4, 8] cpu"; of
    anything else its type."""
    kind = type(value)
    if kind in _PLAIN:
        return repr(value)
    if kind is int:
        return repr(value) if value.bit_length() <= 1024 else f"<int of {value.bit_length()} bits>"
    if kind in (str, bytes, bytearray):
        return one_line(repr(value[:200])) + (f"... ({len(value)})" if len(value) > 200 else "")
    if kind in _BRACKETS:
        return _container(value, backends, level)
    if kind is dict:
        return _dict(value, backends, level)
    if isinstance(value, types.ModuleType) and kind is types.ModuleType:
        return f"<module {value.__dict__.get('__name__')}>"
    if kind in (types.FunctionType, types.BuiltinFunctionType):
        return f"<function {value.__qualname__}>"
    if issubclass(kind, type):
        return f"<class {type.__dict__['__qualname__'].__get__(value)}>"
    return _tensor(value, kind, backends) or f"<{kind.__module__}.{type_name(value)} object>"


def _tensor(value: Any, kind: type, backends: Sequence[Backend]) -> str:
    module = type.__dict__["__module__"].__get__(kind)
    for backend in backends:
        if kind.__name__ in _TENSORS and isinstance(module, str) and module.partition(".")[0] == backend.name:
            try:
                return tensor_text(backend.meta(value))
            except own(Exception):
                return ""
    return ""


def _container(value: Any, backends: Sequence[Backend], level: int) -> str:
    left, right = _BRACKETS[type(value)]
    name = "" if type(value) in (list, tuple, set) else type_name(value)
    if type(value) in (set, frozenset) and not value:
        return f"{type_name(value)}()"
    inner = _items((still_text(item, backends, level - 1) for item in _first(value)), len(value), level)
    if type(value) is tuple and len(value) == 1:
        inner += ","
    return f"{name}({left}{inner}{right})" if name else f"{left}{inner}{right}"


def _dict(value: dict[Any, Any], backends: Sequence[Backend], level: int) -> str:
    pairs = (
        f"{still_text(key, backends, level - 1)}: {still_text(item, backends, level - 1)}"
        for key, item in _first(value.items())
    )
    return f"{{{_items(pairs, len(value), level)}}}"


def _first(items: Iterable[Any]) -> list[Any]:
    """In one call: another thread may change the container between two."""
    return list(itertools.islice(items, ITEMS))


def _items(texts: Iterable[str], count: int, level: int) -> str:
    if level <= 0 and count:
        return "..."
    shown = ", ".join(texts)
    return f"{shown}, ... {count} in all" if count > ITEMS else shown

"""Values of the program as JSON can say them, for front ends and scripts. Runs on the parked thread."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.inspect.value_text import is_tensor
from adbg.engine.outside import suppress
from adbg.engine.types import TensorMeta, TensorStats

ITEMS = 1_000  # of all lists and dicts of one value together
LEVELS = 8  # of lists in lists
LONG_TEXT = 20_000  # characters of a string, and of a result


class _Unsaid(Exception):
    """JSON cannot say it, or it is too large."""


def plain_value(value: Any, backend: Backend | None = None) -> Any:
    """``value`` where JSON can say it, else None: numbers, strings, bools, None; lists, tuples, sets and dicts of
    these; statistics as a dict of their fields; a tensor of one element as its number, any other one as a dict of
    ``tensor`` ("f32[64, 256]" is left to the front end: ``shape`` and ``dtype``). Numbers that are not finite become
    strings on the wire.

    No attribute of a value of an unknown type is touched: the program's code must not run for it.
    """
    try:
        return _plain(value, backend, itertools.count(), 0)
    except _Unsaid:
        return None


def _plain(value: Any, backend: Backend | None, seen: itertools.count[int], level: int) -> Any:
    if next(seen) > ITEMS or level > LEVELS:
        raise _Unsaid
    if backend is not None and is_tensor(backend, value):
        return _tensor(value, backend.meta(value))
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item, backend, seen, level + 1) for item in list(value)]
    if type(value) is dict:
        return {_key(key): _plain(item, backend, seen, level + 1) for key, item in list(value.items())}
    if isinstance(value, TensorStats):
        return {field.name: _plain(getattr(value, field.name), None, seen, level + 1) for field in _FIELDS}
    return _scalar(value)


_FIELDS = dataclasses.fields(TensorStats)


def _key(key: Any) -> str:
    if isinstance(key, str):
        return str(key)
    if key is None or isinstance(key, (bool, int, float)):
        return str(key)
    raise _Unsaid


def _tensor(value: Any, meta: TensorMeta) -> Any:
    if meta.numel != 1 or meta.shape is None:
        return {"shape": None if meta.shape is None else list(meta.shape), "dtype": meta.dtype}
    with suppress(Exception):
        return _scalar(value.item())
    return {"shape": list(meta.shape), "dtype": meta.dtype}


def _scalar(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str) and len(value) <= LONG_TEXT:
        return str(value)
    if isinstance(value, int) and value.bit_length() <= 1024:
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else value
    if type(value).__module__ == "numpy":  # float32(2.5)
        with suppress(Exception):
            number = value.item()
            if isinstance(number, (bool, int, float)):
                return number
    raise _Unsaid

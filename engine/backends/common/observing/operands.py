"""The tensors among the arguments of a call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_DEEP = 3


def tensors_in(kind: type, values: Iterable[Any], deep: int = _DEEP) -> list[Any]:
    """All of ``kind`` among ``values``, and in the lists, tuples and dicts among them."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, kind):
            found.append(value)
        elif deep and isinstance(value, (list, tuple)):
            found += tensors_in(kind, value, deep - 1)
        elif deep and isinstance(value, dict):
            found += tensors_in(kind, value.values(), deep - 1)
    return found

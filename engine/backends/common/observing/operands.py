"""The tensors among the arguments of a call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_DEEP = 3


def tensors_in(kind: type, values: Iterable[Any], deep: int = _DEEP) -> list[Any]:
    """All of ``kind`` among ``values``, and in the lists, tuples and dicts among them."""
    found: list[Any] = []
    for value in values:
        own = type(value)  # isinstance would ask an object of the program's for its __class__
        if issubclass(own, kind):
            found.append(value)
        elif not deep:
            continue
        elif issubclass(own, list):  # Python's own way through: a class of the program's may count, or refuse
            found += tensors_in(kind, list.__iter__(value), deep - 1)
        elif issubclass(own, tuple):
            found += tensors_in(kind, tuple.__iter__(value), deep - 1)
        elif issubclass(own, dict):
            found += tensors_in(kind, dict.values(value), deep - 1)
    return found

"""Gradients as Paddle hands them over (per slot a tensor, or a list of tensors) and as adbg counts them: one flat
tuple.

Pure functions, called on the thread that runs backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from adbg.engine.backends.paddle.tensors import defined, is_tensor


def _each(slots: Sequence[Any]) -> Iterator[Any]:
    for value in slots:
        if isinstance(value, (list, tuple)):
            yield from value
        else:
            yield value


def flat_slots(slots: Sequence[Any]) -> tuple[Any, ...]:
    """Slots and ranks counted through; None for an undefined gradient (Paddle's tensor without storage)."""
    return tuple([value if is_tensor(value) and defined(value) else None for value in _each(slots)])


def replaced_slots(old: Sequence[Any], new: Sequence[Any], safe: Callable[[Any, Any], bool]) -> list[Any]:
    """Per slot what shall stand in for the old value, None to keep it. Whatever Paddle could not stand (a wrong number,
    shape, dtype, no tensor) is kept out here, however it came about."""
    if len(new) != len(old):
        return [None] * len(old)
    return [
        value if value is not None and value is not kept and safe(kept, value) else None
        for kept, value in zip(old, new, strict=True)
    ]


def rebuilt(slots: Sequence[Any], replaced: Sequence[Any]) -> tuple[Any, ...]:
    """``slots`` with the values that ``replaced`` has (flat, None: as it was), in the same structure."""
    values = iter(replaced)
    return tuple([_taken(value, values) for value in slots])


def _taken(value: Any, values: Iterator[Any]) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)([_taken(item, values) for item in value])
    new = next(values)
    return value if new is None else new

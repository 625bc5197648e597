"""Gradients in a phrase, as tracepoints and stops tell them. On the thread that is at them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.types import remark_of


def slot_text(backend: Backend, value: Any) -> str:
    """One gradient in one phrase: "[2, 4] f32 norm 0.02134", its norm in the four digits of the front end."""
    if value is None:
        return "undefined"
    meta = backend.meta(value)
    if meta.shape is None:
        return remark_of(meta.state, meta.note)
    shape = "[" + ", ".join(map(str, meta.shape or ())) + "]"
    return f"{shape} {meta.dtype} norm {backend.norm(value):.4g}"


def slots_text(backend: Backend, name: str, values: Sequence[Any]) -> str:
    return ", ".join(f"{name}[{i}] {slot_text(backend, value)}" for i, value in enumerate(values))

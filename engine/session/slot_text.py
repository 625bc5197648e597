"""Gradients in a phrase, as tracepoints and stops tell them. On the thread that is at them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.types import Phase, remark_of


def slot_text(backend: Backend, value: Any) -> str:
    """One gradient in one phrase: "[2, 4] f32 norm 0.02134", its norm in the four digits of the front end."""
    if value is None:
        return "undefined"
    meta = backend.meta(value)
    if meta.shape is None:
        return remark_of(meta.state, meta.note)
    shape = "[" + ", ".join(map(str, meta.shape or ())) + "]"
    return f"{shape} {meta.dtype} norm {backend.norm(value):.4g}"


def gradients_text(backend: Backend, phase: Phase, values: Sequence[Any], outs: Sequence[Any]) -> str:
    """Those of a node at ``phase``: of one that gives nothing on (accumulate), what flowed into it."""
    came = phase is Phase.BEFORE or not values
    name = "grad_outputs" if came else "grad_inputs"
    return ", ".join(f"{name}[{i}] {slot_text(backend, value)}" for i, value in enumerate(outs if came else values))

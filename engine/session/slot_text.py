"""Gradients in a phrase, as tracepoints and stops tell them. On the thread that is at them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adbg.engine.backends.base import Backend


def slot_text(backend: Backend, value: Any) -> str:
    """One gradient in one phrase: "[2, 4] f32 norm 0.02134", its norm in the four digits of the front end."""
    if value is None:
        return "undefined"
    meta = backend.meta(value)
    shape = "[" + ", ".join(map(str, meta.shape or ())) + "]"
    return f"{shape} {meta.dtype} norm {backend.norm(value):.4g}"


def slots_text(backend: Backend, name: str, values: Sequence[Any]) -> str:
    return ", ".join(f"{name}[{i}] {slot_text(backend, value)}" for i, value in enumerate(values))


def nonfinite_evidence(backend: Backend, name: str, where: str, values: Sequence[Any]) -> str:
    """ "grad_inputs[0] of SqrtBackward0#1: 1 of 64 elements is inf"; "" when all is finite."""
    found = []
    for i, value in enumerate(values):
        nan, inf = (0, 0) if value is None else backend.nonfinite(value)
        numel = backend.meta(value).numel if nan or inf else 0
        kinds = [
            f"{count} of {numel} elements {'is' if count == 1 else 'are'} {kind}"
            for count, kind in ((nan, "nan"), (inf, "inf"))
            if count
        ]
        if kinds:
            found.append(f"{name}[{i}] of {where}: " + " and ".join(kinds))
    return "; ".join(found)

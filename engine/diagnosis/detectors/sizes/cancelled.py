"""Gradients that cancel: what a node gets from those that took its result is 0 in sum, though none of them is. The
log-probability of a sample that was drawn by ``rsample`` of the same mean, for one. Asked by ``zeros``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from adbg.engine.diagnosis.detectors.sizes.sizes import Origin, Size
from adbg.engine.graph.index import index_of
from adbg.engine.types import SourceLine

CANCELLED = "cancelled"  # in place of an operator's name


def cancelled(call: Any, above: Sequence[int], sizes: Mapping[int, Size]) -> Size | None:
    """The first node of these, in execution order, that gets 0 in sum of several that give something."""
    for at in above:
        if at in sizes and sizes[at].entering == 0:
            parts = [each for each in _parts(call, at, sizes) if each[1] > 0]
            if len(parts) > 1:
                return replace(sizes[at], op=CANCELLED, entering=max(norm for _, norm in parts), leaving=(0.0,))
    return None


def origin_of(call: Any, key: int, sizes: Mapping[int, Size]) -> Origin:
    """The line that took the result first, in the forward: the last of them to run in the backward."""
    parts = [each for each in _parts(call, key, sizes) if each[1] > 0]
    lines: list[SourceLine] = []
    told = []
    for consumer, norm in parts:
        info = call.describe(consumer)
        if info.forward is not None:
            lines.append(info.forward)
            where = f"{os.path.basename(info.forward.file)}:{info.forward.line}"
            told.append(f"{info.unique_name} ({where}) gives it a gradient of norm {norm:.4g}")
    return Origin(lines[-1] if lines else None, (*told[:4], "their sum is 0 in all elements"))


def _parts(call: Any, key: int, sizes: Mapping[int, Size]) -> list[tuple[int, float]]:
    """(node that took a result of ``key``, norm of what it gives back), in execution order."""
    found: dict[int, float] = {}
    for consumer, _ in index_of(call).consumers(call, key):
        size = sizes.get(consumer)
        for place, edge in enumerate(call.edges(consumer)):
            norm = size.leaving[place] if size is not None and edge.to == key and place < len(size.leaving) else None
            if norm is not None:
                found[consumer] = max(found.get(consumer, 0.0), norm)
    return list(found.items())

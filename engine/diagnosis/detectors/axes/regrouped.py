"""A reshape to the sizes that a transpose and a reshape would have made: ``[b, c, h, w]`` to ``[w, b, c * h]``. Asked
by ``exchanged``."""

from __future__ import annotations

import math
from collections.abc import Sequence

_FEW = 64  # numbers of each place that are compared


def group_in_front(before: Sequence[int], behind: Sequence[int]) -> tuple[int, ...]:
    """The axes of ``before`` next to each other whose elements are as many as ``behind`` has in front, where its first
    axis comes second; () where that is no such reshape: no axis has moved, or several groups fit."""
    if len(before) < 2 or len(behind) < 3 or behind[1] != before[0] or 1 in behind[:2] or behind[0] == before[0]:
        return ()
    found = []
    for begin in range(1, len(before)):
        for end in range(begin + 1, len(before) + 1):
            group = tuple(at for at in range(begin, end) if before[at] > 1)
            if group and math.prod(before[begin:end]) == behind[0] and group not in found:
                found.append(group)
    return found[0] if len(found) == 1 else ()


def places(before: Sequence[int], group: Sequence[int], step: int, row: int) -> list[int]:
    """Where the numbers of one row and one step lie in what is reshaped, in the order in which a transpose keeps
    them."""
    strides = [math.prod(before[at + 1 :]) for at in range(len(before))]
    start = row * strides[0]
    for at in reversed(group):
        start += step % before[at] * strides[at]
        step //= before[at]
    rest = [at for at in range(1, len(before)) if at not in group]
    found = [start]
    for at in rest:
        found = [each + one * strides[at] for each in found[:_FEW] for one in range(before[at])]
    return found[:_FEW]

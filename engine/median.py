"""The median, without ``statistics``: that one brings ``decimal``, ``fractions`` and four more modules into the program
(4 ms), and a script with a ``statistics.py`` of its own beside it would be asked instead.
"""

from __future__ import annotations

from collections.abc import Iterable


def median(values: Iterable[float]) -> float:
    """The middle value, or the mean of the two in the middle. Raises ValueError for no values."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("the median of no values")
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2

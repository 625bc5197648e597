"""Pictures of numbers in cells: histogram of 1/8 blocks, heat map of half blocks. Pure; any thread."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style

from adbg.tui.app import theme

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_COLD, _WARM, _HOT = "#4f7fd6", "#e8935a", "#ffe9a8"
_NAN, _INF = "#ff2d55", "#ff5fd2"

Rgb = str


def histogram(counts: Sequence[int], width: int, height: int = 1) -> list[str]:
    """``height`` lines (top first) of ``width`` cells; the tallest bin fills them, a bin that is not empty shows at
    least 1/8."""
    if not counts or width <= 0:
        return [" " * max(width, 0)] * height
    top = max(counts)
    bars = []
    for column in range(width):
        value = counts[column * len(counts) // width]
        eighths = 0 if value == 0 or top == 0 else max(round(value / top * 8 * height), 1)
        bars.append(eighths)
    return ["".join(_EIGHTHS[min(max(bar - 8 * level, 0), 8)] for bar in bars) for level in range(height - 1, -1, -1)]


def colour(value: float, scale: float, magnitudes: bool) -> Rgb:
    """Colour of one element. ``scale`` is the largest finite |x|; the square root of the share, so that small values
    show.

    ``magnitudes``: values are maxima of |x| (dark to bright); else blue is negative, orange positive. NaN and Inf stand
    out.
    """
    if math.isnan(value):
        return _NAN
    if math.isinf(value):
        return _INF
    if scale <= 0 or value == 0:
        return theme.RAISED
    share = math.sqrt(min(abs(value) / scale, 1.0))
    if magnitudes:
        if share < 0.7:
            return theme.blend(theme.RAISED, _WARM, share / 0.7)
        return theme.blend(_WARM, _HOT, (share - 0.7) / 0.3)
    return theme.blend(theme.RAISED, _WARM if value > 0 else _COLD, share)


def heatmap(values: Sequence[Sequence[float]], width: int, height: int, magnitudes: bool) -> list[list[Segment]]:
    """At most ``height`` lines of at most ``width`` cells; each cell is two rows high. Rows and columns are stretched
    by whole factors only, so that every element has the same size; what does not fit is not drawn (ask the engine for
    fewer blocks)."""
    if not values or not values[0] or width <= 0 or height <= 0:
        return []
    finite = [abs(v) for row in values for v in row if math.isfinite(v)]
    scale = max(finite, default=0.0)
    wide = max(width // len(values[0]), 1)
    wide = min(wide, 8)
    tall = min(max(2 * height // len(values), 1), max(wide, 2))
    rows = [[colour(v, scale, magnitudes) for v in row[: width // wide]] for row in values]
    stretched = [row for row in rows for _ in range(tall)][: 2 * height]
    if len(stretched) % 2:
        stretched.append([theme.BACKGROUND] * len(stretched[0]))
    lines = []
    for upper, lower in zip(stretched[::2], stretched[1::2]):
        lines.append([Segment("▀" * wide, Style(color=a, bgcolor=b)) for a, b in zip(upper, lower)])
    return lines

"""How the panels write numbers, shapes and names in few cells. Pure; any thread."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

Spans = list[tuple[str, str]]  # (text, style name of theme.STYLES), left to right


def width_of(spans: Spans) -> int:
    """Cells that ``spans`` take."""
    return sum(cell_len(text) for text, _ in spans)


def plain(spans: Spans) -> str:
    """The text without its styles."""
    return "".join(text for text, _ in spans)


def elide(text: str, width: int) -> str:
    """``text`` in at most ``width`` cells; what is cut is shown by "…"."""
    if width <= 0:
        return ""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + "…"


def fit(spans: Spans, width: int) -> Spans:
    """``spans`` in at most ``width`` cells, the cut shown by "…"."""
    if width_of(spans) <= width:
        return spans
    kept: Spans = []
    left = width
    for text, style in spans:
        size = cell_len(text)
        if size >= left:
            kept.append((elide(text + "  ", left), style))
            break
        kept.append((text, style))
        left -= size
    return kept


def from_column(spans: Spans, column: int) -> Spans:
    """``spans`` without their first ``column`` characters; what was cut is shown by "…" in place of the first left."""
    if column <= 0 or not spans:
        return spans
    kept: Spans = []
    skip = column + 1
    for text, style in spans:
        if len(text) > skip:
            kept.append((text[skip:], style))
        skip = max(skip - len(text), 0)
    return [("…", spans[0][1]), *kept] if kept or skip == 0 else []


def beside(left: Spans, right: Spans, width: int) -> Spans:
    """``left`` at the left edge and ``right`` at the right one; ``left`` gives way."""
    room = width - width_of(right)
    if room <= 1:
        return fit(left, width)
    left = fit(left, room - 1)
    return [*left, (" " * (room - width_of(left)), ""), *right]


def elide_parameter(text: str, width: int) -> str:
    """ "→layers.1.down.bias" in at most ``width`` cells: leading parts of the path go first ("→…down.bias")."""
    if cell_len(text) <= width:
        return text
    parts = text.removeprefix("→").split(".")
    for first in range(1, len(parts)):
        short = "→…" + ".".join(parts[first:])
        if cell_len(short) <= width:
            return short
    return elide(text, width)


def number(value: float | None, digits: int = 1) -> str:
    """Seven cells at most: "2.1e-2", "0.022", "1.5", "nan"; "·" where there is none."""
    if value is None:
        return "·"
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0:
        return "0"
    size = abs(value)
    if 0.1 <= size < 10000:
        return f"{value:.3g}" if size < 1000 else f"{value:.0f}"
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def shape(dimensions: Sequence[int] | None) -> str:
    """ "[2,4,8]", "[]" for a scalar, "" where none is known."""
    return "" if dimensions is None else "[" + ",".join(str(d) for d in dimensions) + "]"


def count(value: int) -> str:
    """With thousands separators."""
    return f"{value:,}"


def place(file: str, line: int) -> str:
    """ "model.py:16"."""
    return f"{os.path.basename(file)}:{line}" if file else ""


def place_in(file: str, line: int, width: int) -> str:
    """As ``place`` in at most ``width`` cells; the file's name gives way, the line number stays: "train_po…:45"."""
    whole = place(file, line)
    if not file or cell_len(whole) <= width:
        return whole
    name, mark, number = whole.rpartition(":")
    room = width - len(mark + number)
    return (elide(name, room) if room >= 3 else "") + elide(mark + number, width)


def matched(text: str, style: str, match: re.Pattern[str] | None) -> Spans:
    """``text`` in ``style``; what ``match`` finds stands out."""
    if match is None:
        return [(text, style)]
    spans: Spans = []
    end = 0
    for found in match.finditer(text):
        if found.end() > found.start():
            spans += [(text[end : found.start()], style), (found[0], "match")]
            end = found.end()
    return [*spans, (text[end:], style)]

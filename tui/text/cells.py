"""How the panels write numbers, shapes and names in few cells. Pure; any thread."""

from __future__ import annotations

import math
import os
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


def elide_left(text: str, width: int) -> str:
    """As ``elide``, keeping the end (paths)."""
    if cell_len(text) <= width:
        return text
    return "…" + text[len(text) - width + 1 :] if width > 0 else ""


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


def duration(us: float | None) -> str:
    """Microseconds in at most five cells: "41", "999", "1.2ms", "12ms", "1.2s"."""
    if us is None:
        return "·"
    if us < 999.5:
        return f"{us:.0f}"
    for factor, unit in ((1e3, "ms"), (1e6, "s")):
        value = us / factor
        if value < 9.95:
            return f"{value:.1f}{unit}"
        if value < 999.5 or unit == "s":
            return f"{value:.0f}{unit}"
    raise AssertionError("unreachable")


def size(nbytes: float) -> str:
    """Bytes with a binary unit: "512B", "64KiB", "1.5MiB"."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f}{unit}" if value >= 10 or unit == "B" or value == int(value) else f"{value:.1f}{unit}"
        value /= 1024
    raise AssertionError("unreachable")


def shape(dimensions: Sequence[int] | None) -> str:
    """ "[2,4,8]", "[]" for a scalar, "" where none is known."""
    return "" if dimensions is None else "[" + ",".join(str(d) for d in dimensions) + "]"


def count(value: int) -> str:
    """With thousands separators."""
    return f"{value:,}"


def short_op(name: str) -> str:
    """Op of a node name without the framework's affixes: BmmBackward0 -> Bmm, GradNodePyLayer_Outer -> Outer."""
    for prefix in ("torch::autograd::", "GradNodePyLayer_"):
        if name.startswith(prefix):
            name = name[len(prefix) :]
    if name.endswith("GradNode") and name != "GradNode":
        return name[: -len("GradNode")]
    stem = name.rstrip("0123456789")
    if stem.endswith("Backward") and stem != "Backward":
        return stem[: -len("Backward")]
    return name


def short_name(unique_name: str) -> str:
    """A unique name in short: "BmmBackward0#3" -> "Bmm#3"."""
    name, mark, ordinal = unique_name.partition("#")
    return short_op(name) + mark + ordinal


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

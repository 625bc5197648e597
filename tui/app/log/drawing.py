"""A line of the log panel as styled text: columns, guides of the nesting, fold marks, matches. Pure; UI thread."""

from __future__ import annotations

import re

from adbg.tui.app.log.view import BLOCK_LINES, LogView
from adbg.tui.text import cells as figures
from adbg.tui.text.cells import Spans, elide, matched, width_of

_STYLE = {"W": "warn", "E": "bad", "F": "bad", "■": "stop"}
_WIDE = 50  # cells from which the time has its minutes
_THREAD = 90  # ... the thread is shown
_PLACE = 110  # ... and the place in the source


def drawn(view: LogView, line: int, width: int, match: re.Pattern[str] | None) -> Spans:
    """Line ``line`` of ``view`` in ``width`` cells; what ``match`` finds stands out."""
    row, inner = view.map.at(line)
    return _block_line(view, row, inner, width, match) if inner else _record_line(view, row, width, match)


def _record_line(view: LogView, row: int, width: int, match: re.Pattern[str] | None) -> Spans:
    store = view.store
    line = store.line(row)
    style = _STYLE.get(line.level, "")
    time = line.time if width >= _WIDE else line.time[3:]
    spans: Spans = [("'" if row in view.marks else " ", "key"), (f"{time:>{9 if width >= _WIDE else 6}} ", "faint")]
    if view.columns and width >= _THREAD:
        spans.append((f"{line.thread or '':>7} ", "faint"))
    spans.append((f"{line.level:<1} ", style or "dim"))
    spans += _guide(store.depths[row], width)
    folds, folded = store.has_children(row), view.is_folded(row)
    if folds or line.block:
        shut = folded if folds else row not in view.map.blocks
        spans.append(("▸ " if shut else "▾ ", "key" if shut else "dim"))
    elif line.level:
        spans.append(("  ", ""))
    tail = f"  +{figures.count(store.end_of(row) - row - 1)}" if folded else ""
    place = f"  {line.where}" if view.columns and line.where and width >= _PLACE else ""
    room = max(width - width_of(spans) - len(tail) - len(place), 4)
    spans += matched(elide(line.text, room), style or ("" if line.level else "dim"), match)
    if tail:
        spans.append((tail, "key"))
    if place:
        spans += [(" " * max(width - width_of(spans) - len(place), 0), ""), (place, "faint")]
    return spans


def _block_line(view: LogView, row: int, inner: int, width: int, match: re.Pattern[str] | None) -> Spans:
    lines = view.store.block(row)
    text = lines[inner - 1] if inner <= len(lines) else ""
    if inner == BLOCK_LINES and len(lines) > BLOCK_LINES:
        text = f"… {len(lines) - inner + 1:,} more lines: y copies all"
    lead = 11 + (8 if view.columns and width >= _THREAD else 0) + 2 if width >= _WIDE else 10
    spans: Spans = [(" " * lead, ""), *_guide(view.store.depths[row] + 1, width), ("┊ ", "faint")]
    return [*spans, *matched(elide(text, max(width - width_of(spans), 4)), "dim", match)]


def _guide(depth: int, width: int) -> Spans:
    most = max((width - 40) // 2, 2)
    if depth <= most:
        return [("│ " * depth, "faint")]
    return [("│ " * (most - 1) + f"{depth:<2}", "faint")]

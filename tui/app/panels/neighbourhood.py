"""The neighbourhood of a node in three columns of boxes: who feeds it, itself, whom it feeds. Pure drawing and a small
widget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from textual.widgets import Static

from adbg.engine.names import short_op
from adbg.engine.types import GraphRow
from adbg.tui.app import theme
from adbg.tui.text import cells as figures
from adbg.tui.text.cells import Spans, elide

HEIGHT = 6  # lines: a title and boxes of three entries
_ENTRIES = 3


def _entry(row: GraphRow, width: int) -> str:
    name = ("→" + row.parameter) if row.accumulate and row.parameter else short_op(row.name)
    return elide(f"#{row.index} {name}", width).ljust(width)


def _entries(rows: Sequence[GraphRow], width: int) -> list[str]:
    """Up to three lines; where there are more rows the last line says how many."""
    shown = list(rows) if len(rows) <= _ENTRIES else list(rows[: _ENTRIES - 1])
    lines = [_entry(row, width) for row in shown]
    if len(shown) < len(rows):
        lines.append(f"+{len(rows) - len(shown)} more".ljust(width))
    return lines + [""] * (_ENTRIES - len(lines))


def _arrow(label: str, width: int, tip: str) -> str:
    label = label if len(label) <= width - 2 else ""
    line = "─" + label
    return line + "─" * (width - 1 - len(line)) + tip


def boxes(
    node: GraphRow, feeders: Sequence[GraphRow], fed: Sequence[GraphRow], saved: int | None, width: int
) -> list[Spans]:
    """``HEIGHT`` lines of at most ``width`` cells; [] where there is no room (less than 44 cells)."""
    if width < 44:
        return []
    arrow = 10 if width >= 76 else 4
    room = width - 2 * arrow - 6
    side = min(room // 3, 26)
    middle = min(room - 2 * side, side + 4)
    title = f" neighbourhood of #{node.index} "
    facts = [f"#{node.index} {short_op(node.name)}"]
    facts.append(node.parameter or node.module or (f"{saved} saved" if saved else ""))
    facts.append(f"{saved} saved" if saved and facts[1] != f"{saved} saved" else "")
    left, right = _entries(feeders, side), _entries(fed, side)
    frame = "bad" if node.nonfinite else "here" if node.state == "here" else "title"
    gap = " " * arrow
    top: Spans = [("─", "faint"), (title, "dim"), ("─" * (width - len(title) - 1), "faint")]

    def rim(corners: str, has_left: bool, has_right: bool) -> Spans:
        start = corners[0] + "─" * side + corners[1] if has_left else " " * (side + 2)
        end = corners[0] + "─" * side + corners[1] if has_right else ""
        double = ("╔", "╗") if corners[0] == "┌" else ("╚", "╝")
        return [
            (start, "faint"), (gap, ""), (double[0] + "═" * middle + double[1], frame), (gap, ""), (end, "faint"),
        ]  # fmt: skip

    lines = [top, rim("┌┐", bool(feeders), bool(fed))]
    for number in range(_ENTRIES):
        known = number < len(feeders) and bool(left[number].strip()) and not left[number].startswith("+")
        comes = _arrow(figures.shape(node.shape), arrow, "▶") if known else gap
        target = fed[number] if number < len(fed) and not right[number].startswith("+") else None
        goes = _arrow(figures.shape(target.shape), arrow, "▶") if target else gap
        spans: Spans = []
        if feeders:
            spans += [("│", "faint"), (left[number] or " " * side, "op"), ("├" if known else "│", "faint")]
        else:
            spans.append((" " * (side + 2), ""))
        spans += [
            (comes, "dim"), ("║", frame),
            (elide(facts[number], middle).ljust(middle), "bold" if number == 0 else "dim"),
            ("╟" if target else "║", frame), (goes, "dim"),
        ]  # fmt: skip
        if fed:
            style = "leaf" if target is not None and target.accumulate else "op"
            spans += [("│", "faint"), (right[number] or " " * side, style), ("│", "faint")]
        lines.append(spans)
    lines.append(rim("└┘", bool(feeders), bool(fed)))
    return [figures.fit(line, width) for line in lines]


class Neighbourhood(Static):
    """Below the graph where the panel is tall enough."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._shown: tuple[GraphRow, tuple[GraphRow, ...], tuple[GraphRow, ...], int | None] | None = None

    def show(
        self, node: GraphRow | None, feeders: Sequence[GraphRow], fed: Sequence[GraphRow], saved: int | None
    ) -> None:
        """Draw around ``node``; None clears."""
        self._shown = None if node is None else (node, tuple(feeders), tuple(fed), saved)
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        lines = boxes(*self._shown, self.size.width) if self._shown and self.size.width else []
        self.update(theme.styled(*lines))

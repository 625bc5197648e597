"""The ranks of a job, a line each. What does not fit is left out, the least important column first. UI thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.text import ranks as words
from adbg.tui.text.cells import Spans, elide, fit, width_of
from adbg.tui.text.quantities import size
from adbg.tui.text.ranks import NONE, RankRow

# (heading, importance: 0 is never left out, right-aligned)
_COLUMNS: tuple[tuple[str, int, bool], ...] = (
    ("", 0, False), ("rank", 0, True), ("state", 0, False), ("bwd", 2, True), ("iter", 5, True), ("node", 1, False),
    ("collective", 3, False), ("gives up in", 1, True), ("mem", 4, True), ("age", 3, True), ("pid", 6, True),
    ("process", 7, True),
)  # fmt: skip
_WIDEST = 44  # cells of a column


def _texts(row: RankRow) -> tuple[str, ...]:
    backward, iteration = words.counts(row)
    state = row.state
    ended = row.life in ("exited", "lost")
    return (
        "▸" if row.shown else "",
        str(row.rank),
        words.state_text(row),
        "" if backward is None else str(backward),
        "" if iteration is None else str(iteration),
        words.node_text(row),
        words.collective_text(state.collective) if state is not None else "",
        words.gives_up_text(row),
        size(state.rss) if state is not None and state.rss and not ended else "",
        words.seconds_text(row.age),
        str(row.pid),
        str(row.number),
    )


def _style(row: RankRow) -> str:
    waits = row.state is not None and row.state.collective is not None and row.state.collective.running
    return {"stopped": "stop", "lost": "bad", "exited": "dim"}.get(
        row.life, "warn" if waits or row.stopping else "good"
    )


def layout(rows: Sequence[RankRow], width: int) -> list[tuple[int, int]]:
    """(number, width) of the columns that fit into ``width`` cells; one that is empty in all rows is left out."""
    table = [_texts(row) for row in rows]
    needed = []
    for number, (head, importance, _) in enumerate(_COLUMNS):
        widest = max((width_of([(texts[number], "")]) for texts in table), default=0)
        if widest or importance == 0:
            needed.append((number, min(max(widest, len(head)), _WIDEST)))
    while sum(cells + 2 for _, cells in needed) > width:
        least = max(needed, key=lambda column: _COLUMNS[column[0]][1])
        if _COLUMNS[least[0]][1] == 0:
            break
        needed.remove(least)
    return needed


class RanksPanel(LinePanel):
    """``rows`` is replaced by ``show``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.rows: list[RankRow] = []

    def show(self, rows: list[RankRow]) -> None:
        self.rows = rows
        self.lines_changed()

    def line_count(self) -> int:
        return len(self.rows)

    def empty_text(self) -> str:
        return NONE

    def heading(self, width: int) -> Spans:
        """Above the lines."""
        return _joined([(_COLUMNS[number][0], "heading", number, cells) for number, cells in layout(self.rows, width)])

    def line(self, row: int, width: int) -> Spans:
        rank = self.rows[row]
        texts = _texts(rank)
        dim = rank.life in ("exited", "lost")
        styles = {0: "here", 1: "bold", 2: _style(rank), 5: "op", 7: "warn"}
        spans = _joined(
            [
                (texts[number], styles.get(number, "number") if not dim or number == 2 else "dim", number, cells)
                for number, cells in layout(self.rows, width)
            ]
        )
        return fit(spans, width)

    def copied(self) -> str:
        return "  ".join(text for text in _texts(self.rows[self.cursor]) if text) if self.rows else ""


def _joined(parts: Sequence[tuple[str, str, int, int]]) -> Spans:
    spans: Spans = []
    for text, style, number, cells in parts:
        text = elide(text, cells)
        room = " " * (cells - width_of([(text, "")]))
        spans.append((f"{room}{text}  " if _COLUMNS[number][2] else f"{text}{room}  ", style))
    return spans

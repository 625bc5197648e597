"""The flame graph as an icicle: the outermost frames above, each as wide as its share. UI thread.

Only frames of at least one cell are laid out (``report/flame.py``), and lines are made when they are painted: a key
costs the same in a profile of ten stacks and of a hundred thousand.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from textual import events
from textual.binding import Binding
from textual.message import Message

from adbg.profiles.report.flame import ROOT, Span, Tree, at, layout
from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.app.profile.colours import kind_of
from adbg.tui.text.cells import Spans, elide
from adbg.tui.text.profile_report import amount_text


class Icicle(LinePanel):
    """``here`` is the frame under the cursor, ``zoom`` the one in full width; both are nodes of ``stacks``."""

    BINDINGS = [
        Binding("h,left", "sideways(-1)", "The frame on the left", show=False),
        Binding("l,right", "sideways(1)", "The frame on the right", show=False),
    ]
    show_cursor = False

    @dataclass(eq=False)
    class Pointed(Message):
        """The cursor is on another frame, or the zoom is another one."""

        node: int

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.stacks: Tree | None = None
        self.unit = ""
        self.whole = 1.0
        self.here = self.zoom = ROOT
        self.found: set[int] = set()  # what the search found
        self.waiting = "reading the profile …"
        self._tints: Sequence[str] | None = None
        self._kinds: dict[int, str] = {}
        self._before: list[int] = []  # zooms to go back to
        self._rows: list[list[Span]] = []
        self._made: tuple[int, int, int] | None = None

    def show(self, tree: Tree | None, unit: str, tints: Sequence[str] | None = None, whole: float = 0.0) -> None:
        """``whole``: what shares are of, where the tree is of a part."""
        self.stacks, self.unit, self._tints = tree, unit, tints
        self.whole = whole or (tree.weight[ROOT] if tree is not None else 0.0) or 1.0
        self.here = self.zoom = ROOT
        self.found, self._before, self._kinds, self._made = set(), [], {}, None
        self.lines_changed()
        self._point()

    # ---- the layout

    @property
    def rows(self) -> list[list[Span]]:
        """What is at least one cell wide, from the top."""
        tree, width = self.stacks, self.size.width
        if tree is None or width <= 0:
            return []
        made = (id(tree), width, self.zoom)
        if made != self._made:
            self._rows, self._made = layout(tree, width, self.zoom), made
        return self._rows

    def line_count(self) -> int:
        return len(self.rows)

    def empty_text(self) -> str:
        return self.waiting

    def line(self, row: int, width: int) -> Spans:
        spans: Spans = []
        at_cell = 0
        for node, column, across in self.rows[row]:
            if column > at_cell:
                spans.append((" " * (column - at_cell), ""))
            spans.append((self._box(node, across), self._style(node, row)))
            at_cell = column + across
        return spans

    def _box(self, node: int, width: int) -> str:
        assert self.stacks is not None
        frame = self.stacks.frame_of(node)
        name = frame.name if frame is not None else "all"
        told = f"{name} {amount_text(self.stacks.weight[node], self.unit)}"
        text = elide(told if cell_len(told) <= width - 1 else name, width - 1) if width > 2 else ""
        return "▏" + text + " " * (width - 1 - cell_len(text))

    def _style(self, node: int, row: int = 0) -> str:
        """Rows take turns between two shades."""
        if node == self.here:
            return "flame-here"
        if node in self.found:
            return "match"
        if node == ROOT or self.stacks is None:
            return "flame-all"
        if self._tints is not None:
            return self._tints[node]
        number = self.stacks.frame[node]
        style = self._kinds.get(number)
        if style is None:
            style = self._kinds[number] = f"flame-{kind_of(self.stacks.frames[number])}"
        return style + "-odd" if row % 2 else style

    # ---- moving

    def _depth(self, node: int) -> int:
        return len(self.stacks.path(node)) - 1 if self.stacks is not None else 0

    def point(self, node: int) -> None:
        """Put the cursor on a frame that is laid out."""
        self.here = node
        self.cursor = self._depth(node)
        self.reveal(self.cursor, 1)
        self.refresh()
        self._point()

    def _point(self) -> None:
        self.post_message(self.Pointed(self.here))

    def _below(self, node: int) -> int | None:
        """The widest of what it calls."""
        row = self._depth(node) + 1
        if self.stacks is None or row >= len(self.rows):
            return None
        return next((span.node for span in self.rows[row] if self.stacks.parent[span.node] == node), None)

    def action_move(self, rows: int) -> None:
        node = self.here
        for _ in range(abs(rows)):
            above = self.stacks.parent[node] if self.stacks is not None else -1
            following = self._below(node) if rows > 0 else (above if above >= 0 else None)
            if following is None:
                break
            node = following
        if node == self.here:
            self.app.bell()
        else:
            self.point(node)

    def action_sideways(self, step: int) -> None:
        """The frame beside this one."""
        depth = self._depth(self.here)
        row = [span.node for span in self.rows[depth]] if depth < len(self.rows) else []
        place = row.index(self.here) + step if self.here in row else -1
        if 0 <= place < len(row):
            self.point(row[place])
        else:
            self.app.bell()

    def on_click(self, event: events.Click) -> None:
        """Select the frame; a second click zooms."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        node = at(self.rows, offset.y + self.scroll_offset.y, offset.x)
        if node is not None:
            self.point(node)
            if event.chain == 2:
                self.action_open()

    # ---- zoom

    def action_open(self) -> None:
        """The frame under the cursor in full width."""
        if self.here == self.zoom:
            self.app.bell()
            return
        self._before.append(self.zoom)
        self._zoom_to(self.here)

    def zoom_to(self, node: int) -> None:
        """``node`` in full width, under the cursor; ``zoom_back`` undoes it."""
        if node != self.zoom:
            self._before.append(self.zoom)
        self.here = node
        self._zoom_to(node)

    def zoom_back(self) -> bool:
        """To the zoom before; False where there is none."""
        if not self._before:
            return False
        self._zoom_to(self._before.pop())
        return True

    def _zoom_to(self, node: int) -> None:
        self.zoom = node
        shown = {span.node for row in self.rows for span in row}
        while self.here not in shown and self.stacks is not None:
            self.here = self.stacks.parent[self.here]
        self.lines_changed()
        self.point(self.here)

    # ---- search

    def search(self, pattern: re.Pattern[str]) -> int:
        """Mark what matches; how many."""
        self.found = self.stacks.find(pattern) if self.stacks is not None else set()
        self.refresh()
        self._point()
        return len(self.found)

    def next_found(self, step: int) -> bool:
        """To the next frame that matches, from left to right and down; what is too narrow to be drawn is zoomed to."""
        tree = self.stacks
        if tree is None or not self.found:
            return False
        order = [span.node for row in self.rows for span in row]
        here = order.index(self.here) if self.here in order else 0
        size = len(order)
        for distance in range(1, size + 1):
            node = order[(here + step * distance) % size]
            if node in self.found and node != self.here:
                self.point(node)
                return True
        if self.here in self.found:
            return True
        self.zoom_to(max(self.found, key=lambda node: tree.weight[node]))
        return True

"""A scrolled list of styled lines with a cursor: the base of most panels. Runs on the UI thread.

Lines are made when they are painted (Textual's Line API): the cost is that of the window, whatever the number of lines.
"""

from __future__ import annotations

from typing import Any

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.content import Content
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from adbg.tui import theme
from adbg.tui.keymap import bindings
from adbg.tui.widgets.figures import Spans
from adbg.tui.widgets.wrapping import wrap

_SELECTED = Style(bgcolor=theme.SELECTED)
_SELECTED_DIM = Style(bgcolor=theme.SELECTED_DIM)


class LinePanel(ScrollView, can_focus=True):
    """Subclasses give ``line_count`` and ``line``, and call ``lines_changed`` when either changed.

    Attributes:
        cursor: the selected line, 0 <= cursor < line_count (0 when empty).
        show_cursor: False for text that is only read.
    """

    BINDINGS = bindings("panel")
    DEFAULT_CSS = "LinePanel { scrollbar-size: 0 0; overflow-x: hidden; }"
    show_cursor = True

    class Moved(Message):
        """The user (or ``select``) moved the cursor to ``row``."""

        def __init__(self, panel: LinePanel, row: int) -> None:
            super().__init__()
            self.panel = panel
            self.row = row

        @property
        def control(self) -> LinePanel:
            return self.panel

    class Opened(Message):
        """Enter, or a second click, on ``row``."""

        def __init__(self, panel: LinePanel, row: int) -> None:
            super().__init__()
            self.panel = panel
            self.row = row

        @property
        def control(self) -> LinePanel:
            return self.panel

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.cursor = 0

    # ---- what a subclass says

    def line_count(self) -> int:
        """Number of lines."""
        raise NotImplementedError

    def line(self, row: int, width: int) -> Spans:
        """Line ``row`` in at most ``width`` cells."""
        raise NotImplementedError

    def empty_text(self) -> str:
        """What stands in the panel while it has no line."""
        return ""

    # ---- painting

    def lines_changed(self) -> None:
        """The number or the contents of the lines changed."""
        self.cursor = min(self.cursor, max(self.line_count() - 1, 0))
        self.virtual_size = Size(max(self.size.width, 1), self.line_count())
        self.refresh()

    def tell_frame(self, text: str) -> None:
        """Put ``text`` into the lower border of the frame around the panel."""
        frame = self.parent
        if isinstance(frame, Widget) and frame.has_class("frame"):
            frame.border_subtitle = Content(text)

    def on_resize(self, event: events.Resize) -> None:
        """Keep the cursor in sight."""
        self.virtual_size = Size(max(self.size.width, 1), self.line_count())
        if self.show_cursor:
            self.call_after_refresh(lambda: self.reveal(self.cursor, 3))  # where it is then: it may move before

    def render_line(self, y: int) -> Strip:
        """One painted line (Line API)."""
        width = self.size.width
        row = y + self.scroll_offset.y
        lines = self.line_count()
        if row < lines:
            spans = self.line(row, width)
        else:
            message = wrap(self.empty_text(), max(width - 2, 8)) if lines == 0 else []
            spans = [(" " + message[y], "dim")] if y < len(message) else []
        strip = Strip([Segment(text, theme.STYLES[style]) for text, style in spans])
        strip = strip.adjust_cell_length(width, Style()).apply_style(self.rich_style)
        if self.show_cursor and row == self.cursor and row < lines:
            strip = Strip(
                [
                    Segment(text, (style or Style()) + (_SELECTED if self.has_focus else _SELECTED_DIM))
                    if (style is None or style.bgcolor is None or style.bgcolor == self.rich_style.bgcolor)
                    else Segment(text, style)
                    for text, style, _ in strip
                ],
                width,
            )
        return strip

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()

    # ---- moving

    def reveal(self, row: int, margin: int = 0) -> None:
        """Scroll so that ``row`` is in sight, with ``margin`` rows around it where there is room."""
        height = self.size.height
        if height <= 0:
            return
        margin = min(margin, max((height - 1) // 2, 0))
        top = self.scroll_offset.y
        if row < top + margin:
            top = row - margin
        elif row >= top + height - margin:
            top = row - height + 1 + margin
        else:
            return
        self.scroll_to(y=max(top, 0), animate=False, force=True)

    def select(self, row: int, notify: bool = True) -> None:
        """Put the cursor on ``row`` (clamped), bring it in sight, and tell."""
        row = min(max(row, 0), max(self.line_count() - 1, 0))
        moved = row != self.cursor
        self.cursor = row
        self.reveal(row, 2)
        self.refresh()
        if notify and moved and self.line_count():
            self.post_message(self.Moved(self, row))

    def action_move(self, rows: int) -> None:
        if self.show_cursor:
            self.select(self.cursor + rows)
        else:
            self.scroll_relative(y=rows, animate=False, force=True)

    def action_page(self, halves: int) -> None:
        self.action_move(halves * max(self.size.height // 2, 1))

    def action_first(self) -> None:
        self.action_move(-self.line_count())

    def action_last(self) -> None:
        self.action_move(self.line_count())

    def action_open(self) -> None:
        if self.line_count():
            self.post_message(self.Opened(self, self.cursor))

    def on_click(self, event: events.Click) -> None:
        """Select the line; a second click opens it."""
        offset = event.get_content_offset(self)
        row = -1 if offset is None else offset.y + self.scroll_offset.y
        if not 0 <= row < self.line_count():
            return
        if self.show_cursor:
            self.select(row)
        if event.chain == 2:
            self.action_open()

    def refresh_row(self, row: int) -> None:
        """Repaint one line."""
        self.refresh(Region(0, row - self.scroll_offset.y, self.size.width, 1))

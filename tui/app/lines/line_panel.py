"""A scrolled list of styled lines with a cursor: the base of most panels. Runs on the UI thread.

Lines are made when they are painted (Textual's Line API): the cost is that of the window, whatever the number of lines.
A panel whose lines are the same wherever they stand (``keeps_lines``) makes only those that scrolling brought into
sight.
"""

from __future__ import annotations

from dataclasses import dataclass
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

from adbg.tui.app import theme
from adbg.tui.app.keymap import bindings
from adbg.tui.app.lines.wrapping import wrap
from adbg.tui.text.cells import Spans, width_of

_SELECTED = Style(bgcolor=theme.SELECTED)
_SELECTED_DIM = Style(bgcolor=theme.SELECTED_DIM)
_KEPT = 400  # painted lines, a few windows of them


class LinePanel(ScrollView, can_focus=True):
    """Subclasses give ``line_count`` and ``line``, and call ``lines_changed`` when either changed.

    Attributes:
        cursor: the selected line, 0 <= cursor < line_count (0 when empty).
        show_cursor: False for text that is only read.
        keeps_lines: a painted line stays as it is until ``refresh`` or ``refresh_row``, also while it scrolls.
    """

    BINDINGS = bindings("panel")
    DEFAULT_CSS = "LinePanel { scrollbar-size: 0 0; overflow-x: hidden; }"
    show_cursor = True
    keeps_lines = False

    @dataclass(eq=False)
    class Moved(Message):
        """The user (or ``select``) moved the cursor to ``row``."""

        panel: LinePanel
        row: int

        @property
        def control(self) -> LinePanel:
            return self.panel

    @dataclass(eq=False)
    class Opened(Message):
        """Enter, or a second click, on ``row``."""

        panel: LinePanel
        row: int

        @property
        def control(self) -> LinePanel:
            return self.panel

    @dataclass(eq=False)
    class Resized(Message):
        """The panel has another size, or other columns: what stands beside it may depend on that."""

        panel: LinePanel

    def __init__(self, **options: Any) -> None:
        self._kept: dict[int, Strip] = {}
        self._kept_width = 0
        self._ground = Style()  # of the panel itself
        self._inks: dict[str, Style] = {}  # the styles of the theme on it
        super().__init__(**options)
        self.cursor = 0
        self._told = ""

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
        """Put ``text`` into the lower border of the frame around the panel. Only news: a border that is set is painted
        anew, with all that is inside the frame."""
        frame = self.parent
        if isinstance(frame, Widget) and frame.has_class("frame") and text != self._told:
            self._told = text
            frame.border_subtitle = Content(text)

    def on_resize(self, event: events.Resize) -> None:
        """Keep the cursor in sight."""
        self.post_message(self.Resized(self))
        self.virtual_size = Size(max(self.size.width, 1), self.line_count())
        if self.show_cursor:
            self.call_after_refresh(lambda: self.reveal(self.cursor, 3))  # where it is then: it may move before

    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> LinePanel:
        """As the widget's; without regions all lines are made again."""
        if not regions:
            self._kept.clear()
        super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)
        return self

    def render_lines(self, crop: Region) -> list[Strip]:
        """Painted lines (Line API). Kept ones need no style of the widget: they go past Textual's cache, which is by
        place on the screen and empty after each step of scrolling."""
        ground = self.rich_style  # 30 us, so not once a line
        if ground != self._ground or not self._inks:
            self._ground = ground
            self._inks = {name: ground + style for name, style in theme.STYLES.items()}
            self._kept.clear()
        if not self.keeps_lines or self.styles.gutter:
            return super().render_lines(crop)
        width = self.size.width
        filters, background = self.get_line_filters(), self.background_colors[1]
        strips = [self.render_line(y) for y in crop.line_range]
        for line_filter in filters:
            strips = [strip.apply_filter(line_filter, background) for strip in strips]
        if crop.column_span != (0, width):
            strips = [strip.crop(*crop.column_span) for strip in strips]
        return strips

    def render_line(self, y: int) -> Strip:
        """One painted line (Line API)."""
        width = self.size.width
        row = y + self.scroll_offset.y
        lines = self.line_count()
        if row < lines:
            strip = self._kept_line(row, width) if self.keeps_lines else self._painted(self.line(row, width), width)
        else:
            message = wrap(self.empty_text(), max(width - 2, 8)) if lines == 0 else []
            strip = self._painted([(" " + message[y], "dim")] if y < len(message) else [], width)
        return self._selected(strip, width) if self.show_cursor and row == self.cursor and row < lines else strip

    def _kept_line(self, row: int, width: int) -> Strip:
        if width != self._kept_width or len(self._kept) > _KEPT:
            self._kept.clear()
            self._kept_width = width
        strip = self._kept.get(row)
        if strip is None:
            strip = self._kept[row] = self._painted(self.line(row, width), width)
        return strip

    def _painted(self, spans: Spans, width: int) -> Strip:
        inks = self._inks
        segments = [Segment(text, inks[style]) for text, style in spans if text]
        cells = width_of(spans)
        if cells < width:
            segments.append(Segment(" " * (width - cells), self._ground))
        strip = Strip(segments, max(cells, width))
        return strip if cells <= width else strip.adjust_cell_length(width, self._ground)

    def _selected(self, strip: Strip, width: int) -> Strip:
        bar = _SELECTED if self.has_focus else _SELECTED_DIM
        own = (None, self._ground.bgcolor)
        return Strip(
            [
                Segment(text, (style or Style()) + bar if style is None or style.bgcolor in own else style)
                for text, style, _ in strip
            ],
            width,
        )

    def on_focus(self) -> None:
        self.refresh()

    on_blur = on_focus

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
        before, moved = self.cursor, row != self.cursor
        self.cursor = row
        self.reveal(row, 2)
        if self.keeps_lines:
            self.refresh_row(before)
            self.refresh_row(row)
        else:
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
        """Make one line again."""
        self._kept.pop(row, None)
        self.refresh(Region(0, row - self.scroll_offset.y, self.size.width, 1))

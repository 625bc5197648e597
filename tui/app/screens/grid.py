"""The value as numbers: a window over a 2-D slice that is moved through it; only what is on the screen is ever asked
for. UI thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from adbg.engine.errors import AdbgError
from adbg.engine.types import TensorView
from adbg.tui.app import theme
from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.app.messages import Read
from adbg.tui.app.panels.value_lines import counts_line, meta_line, range_line, sample_text
from adbg.tui.app.screens.dialogs import LineScreen
from adbg.tui.app.screens.grid_search import moved_slice
from adbg.tui.text import cells as figures
from adbg.tui.text.cells import Spans, number, width_of

CELL = 10  # cells of a number: "-4.57e-39" and one between
Answered = Callable[[Read], None]
Ask = Callable[[str, int, int, bool, Answered], None]  # (slice, rows, cols, exact, what takes the answer)
Seek = Callable[[str, int, int, bool, Answered], None]  # (slice, row, column, other planes too, what takes the place)


class GridText(LinePanel):
    """Numbers of the window, row and column numbers around them."""

    show_cursor = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.view: TensorView | None = None
        self.message = "reading …"
        self.mark: tuple[int, int] | None = None  # row and column of the window that a search led to

    def show(self, view: TensorView | None, message: str = "") -> None:
        self.view, self.message = view, message
        self.lines_changed()

    def empty_text(self) -> str:
        return self.message

    def line_count(self) -> int:
        window = self.view.window if self.view else None
        return len(window.values) + 1 if window is not None and window.values else 0

    def line(self, row: int, width: int) -> Spans:
        window = self.view.window if self.view else None
        assert window is not None
        rows, cols = window.row_range, window.col_range
        tall = max((rows[1] - rows[0]) // max(len(window.values), 1), 1)
        wide = max((cols[1] - cols[0]) // max(len(window.values[0]), 1), 1)
        if row == 0:
            heads = [(f"{cols[0] + i * wide:>{CELL}}", "faint") for i in range(len(window.values[0]))]
            return figures.fit([(" " * 7, ""), *heads], width)
        values = window.values[row - 1]
        spans: Spans = [(f"{rows[0] + (row - 1) * tall:>6} ", "faint")]
        for column, value in enumerate(values):
            if width_of(spans) + CELL > width:
                break
            if self.mark == (row - 1, column):
                spans.append((f"{'▸' + number(value, 2):>{CELL}}", "match"))
                continue
            style = "bad" if value != value or value in (float("inf"), float("-inf")) else "faint" if value == 0 else ""
            spans.append((f"{number(value, 2):>{CELL}}", style))
        return spans


class GridScreen(ModalScreen[None]):
    """``ask`` has a view of (slice, rows, cols, exact) read on a worker thread, and hands it on; ``seek`` has a search
    done there."""

    BINDINGS = [
        Binding("escape,q,enter", "leave", "Back", show=False),
        Binding("j,down", "go(1, 0)", "Down", show=False, priority=True),
        Binding("k,up", "go(-1, 0)", "Up", show=False, priority=True),
        Binding("l,right", "go(0, 1)", "Right", show=False, priority=True),
        Binding("h,left", "go(0, -1)", "Left", show=False, priority=True),
        Binding("ctrl+f,pagedown", "go(20, 0)", "Page down", show=False, priority=True),
        Binding("ctrl+b,pageup", "go(-20, 0)", "Page up", show=False, priority=True),
        Binding("g,home", "to_start", "Start", show=False, priority=True),
        Binding("n", "next_nonfinite", "Next NaN or Inf", show=False),
        Binding("x", "slice", "Slice", show=False),
        Binding("e", "exact", "Exact statistics", show=False),
        Binding("y", "yank", "Copy", show=False),
    ]

    def __init__(self, title: str, slice_text: str, ask: Ask, seek: Seek) -> None:
        super().__init__()
        self._title = title
        self._slice = slice_text
        self._ask = ask
        self._seek = seek
        self._exact = False
        self._top = self._left = 0
        self._base = ""  # the slice, normalised, once a view of it came
        self._good: tuple[str, str] | None = None  # slice and base before a slice was typed
        self._cell: tuple[int, int] | None = None  # row and column of the base that a search led to
        self._view: TensorView | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame full") as box:
            box.border_title = Content(f"Value  {self._title}")
            box.border_subtitle = r"h j k l move · n next NaN or Inf · x slice · e exact statistics · y yank · esc back"
            yield Static("", id="grid-head")
            yield GridText(id="grid-text")

    def on_mount(self) -> None:
        self.set_focus(self.query_one("#grid-text"))
        self.call_after_refresh(self._read)

    def on_resize(self) -> None:
        self.call_after_refresh(self._read)

    def _room(self) -> tuple[int, int]:
        size = self.query_one("#grid-text").size
        return max(size.height - 1, 1), max((size.width - 7) // CELL, 1)

    def _read(self) -> None:
        rows, cols = self._room()
        wanted = self._slice
        if self._base:
            wanted, self._top, self._left = moved_slice(self._base, self._top, self._left, rows, cols)
        self._ask(wanted, rows, cols, self._exact, self._answered)

    def _answered(self, event: Read) -> None:
        """A view came, or the reason why not."""
        if self not in self.app.screen_stack:
            return
        text = self.query_one(GridText)
        if event.error is not None:
            self._refused(event.error)
            return
        view: TensorView = event.result
        window = view.window
        if not self._base and window is not None:
            self._base, self._good = window.slice, None
            if window.reduced != "exact":
                self._read()
                return
        self._view = view
        text.mark = (self._cell[0] - self._top, self._cell[1] - self._left) if self._cell else None
        text.show(view, view.text or "no element to show")
        self._head(view)

    def _refused(self, error: AdbgError) -> None:
        """The numbers that were there stay, and the slice that was refused is named."""
        if self._good is None or self._view is None:
            self.query_one(GridText).show(None, str(error))
            return
        (self._slice, self._base), self._good = self._good, None
        self.app.notify(str(error), title="not shown", severity="error", timeout=8, markup=False)
        self._read()

    def _head(self, view: TensorView) -> None:
        width = self.query_one("#grid-head").size.width or 80
        lines: list[Spans] = [meta_line(view.meta, view.stats, width)] if view.meta else []
        if view.stats is not None and view.stats.numel:
            lines += [
                [*range_line(view.stats, width), ("  " + sample_text(view.stats), "faint")],
                counts_line(view.stats, width),
            ]
        if view.window is not None:
            whole = f" of {figures.shape(view.meta.shape)}" if view.meta is not None else ""
            lines.append([(view.window.slice + whole, "title"), (f"  {view.window.reduced}", "faint")])
        head = theme.styled(*(figures.fit(spans, width) for spans in lines))
        self.query_one("#grid-head", Static).update(head)

    def action_go(self, down: int, right: int) -> None:
        if not self._base:
            return
        rows, _ = self._room()
        self._top += down if abs(down) == 1 else (rows if down > 0 else -rows)
        self._left += right
        if self._top < 0 or self._left < 0:
            self._top, self._left = max(self._top, 0), max(self._left, 0)
        self._read()

    def action_to_start(self) -> None:
        self._top = self._left = 0
        self._read()

    def action_exact(self) -> None:
        self._exact = True
        self._read()

    def action_next_nonfinite(self) -> None:
        """To the next NaN or Inf of the slice, from the start again behind the end."""
        if self._base:
            whole = not self._slice.strip("[] ")  # what was typed is kept to
            self._seek(self._base, *(self._cell or (-1, -1)), whole, self._sought)

    def _sought(self, event: Read) -> None:
        if self not in self.app.screen_stack:
            return
        if event.error is not None or event.result is None:
            where = self._slice if self._slice.strip("[] ") else "this tensor"
            text = f"no NaN and no Inf in {where}" if event.error is None else str(event.error)
            self.app.notify(text, timeout=4, markup=False)
            return
        self._base, row, column = event.result
        self._cell = row, column
        rows, cols = self._room()
        if not self._top <= row < self._top + rows:
            self._top = row - rows // 2
        if not self._left <= column < self._left + cols:
            self._left = column - cols // 2
        self._read()

    def action_slice(self) -> None:
        def chosen(text: str | None) -> None:
            if text is not None:
                self._good = (self._slice, self._base)
                self._slice, self._base, self._cell, self._top, self._left = text.strip(), "", None, 0, 0
                self._read()

        self.app.push_screen(LineScreen("slice", self._base or self._slice, "as in Python: [0, :, 10:20]"), chosen)

    def action_yank(self) -> None:
        window = self._view.window if self._view else None
        if window is not None:
            self.app.copy_to_clipboard("\n".join("\t".join(repr(v) for v in row) for row in window.values))
            self.app.notify("copied")

    def action_leave(self) -> None:
        self.dismiss(None)

"""Below the source: stack, breakpoints or watches, one list at a time. UI thread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from adbg.engine.protocol.messages import StackFrame
from adbg.engine.types import SourceLine
from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.debugger.breakpoint_list import Breakpoint
from adbg.tui.debugger.stop_view import Shown
from adbg.tui.text import cells as figures
from adbg.tui.text.cells import Spans, beside, elide, fit, width_of
from adbg.tui.text.starting_frames import starts


@dataclass(frozen=True, slots=True)
class FrameRow:
    """One line of the stack. ``frame`` is the index of a selectable frame of the stop, -1 for a forward line of another
    node."""

    name: str
    kind: str
    place: SourceLine | None
    frame: int = -1


def frame_rows(frames: Iterable[StackFrame]) -> list[FrameRow]:
    """The stack at the stop."""
    rows = []
    for index, frame in enumerate(frames):
        file = (frame.source.path or frame.source.name) if frame.source else ""
        place = SourceLine(file, frame.line, frame.name) if file and frame.line else None
        rows.append(FrameRow(frame.name, frame.kind, place, index))
    return rows


def forward_rows(name: str, forward: Iterable[SourceLine]) -> list[FrameRow]:
    """The forward stack of another node than the current one."""
    return [FrameRow(name, "node", None), *(FrameRow(line.function, "forward", line) for line in forward)]


TABS = ("stack", "breakpoints", "watches")
_KIND = {"node": ("node", "here"), "enclosing": ("in", "custom"), "forward": ("fwd", "title"), "live": ("live", "good")}


class ListsPanel(LinePanel):
    """Stack, breakpoints or watches: one list at a time, each with its own cursor.

    Attributes:
        tab: which one, of ``TABS``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.tab = "stack"
        self.frames: list[FrameRow] = []
        self.frame = 0
        self.frames_note = ""
        self.breakpoints: tuple[Breakpoint, ...] = ()
        self.shown: tuple[Shown, ...] = ()
        self._cursors = dict.fromkeys(TABS, 0)

    def show_tab(self, tab: str) -> None:
        self._cursors[self.tab] = self.cursor
        self.tab = tab
        self.cursor = self._cursors[tab]
        self.lines_changed()
        self.reveal(self.cursor)

    def show_frames(self, rows: list[FrameRow], selected: int, note: str = "") -> None:
        """Another stack."""
        self.frames, self.frame, self.frames_note = rows, selected, note
        if self.tab == "stack":
            self.cursor = min(selected, max(len(rows) - 1, 0))
            self.lines_changed()
            self.reveal(self.cursor, 1)
        else:
            self._cursors["stack"] = selected

    def show_breakpoints(self, breakpoints: tuple[Breakpoint, ...]) -> None:
        self.breakpoints = breakpoints
        self.lines_changed()

    def show_values(self, shown: tuple[Shown, ...]) -> None:
        self.shown = shown
        self.lines_changed()

    def line_count(self) -> int:
        return len({"stack": self.frames, "breakpoints": self.breakpoints, "watches": self.shown}[self.tab])

    def empty_text(self) -> str:
        return {
            "stack": self.frames_note or "no stack: the program is not stopped",
            "breakpoints": "no breakpoint: b sets one at the cursor, `break SPEC` anywhere",
            "watches": "nothing watched: w watches the value shown, `watch EXPR` anything",
        }[self.tab]

    def line(self, row: int, width: int) -> Spans:
        if self.tab == "stack":
            return self._frame_line(row, width)
        if self.tab == "breakpoints":
            return self._breakpoint_line(self.breakpoints[row], width)
        return self._watch_line(self.shown[row], width)

    def _frame_line(self, row: int, width: int) -> Spans:
        frame = self.frames[row]
        kind, style = _KIND.get(frame.kind, (frame.kind, "dim"))
        digits = len(str(len(self.frames) - 1))
        place = figures.place_in(frame.place.file, frame.place.line, width // 2) if frame.place else ""
        name = "dim" if frame.place and starts(frame.place.file, frame.name) else "op"
        left: Spans = [
            ("▸" if row == self.frame else " ", "here"), (f"{row:>{digits}} ", "dim"), (f"{kind:<4} ", style),
            (frame.name, "bold" if row == self.frame else name),
        ]  # fmt: skip
        return beside(left, [(place + " ", "dim")], width) if place else fit(left, width)

    def _breakpoint_line(self, row: Breakpoint, width: int) -> Spans:
        sign = "◇" if row.trace else "◆"
        style = "bad" if not row.verified else "breakpoint" if row.enabled else "breakpointoff"
        left: Spans = [(f" {sign} ", style), (f"{row.id:<2} ", "dim")]
        # what it is before what it looks for: the end of the line is cut away
        for on, word in ((not row.enabled, "off "), (row.temporary, "once "), (row.trace, "trace ")):
            if on:
                left.append((word, "warn" if word == "off " else "dim"))
        left.append((row.spec, "op" if row.enabled else "faint"))
        if row.condition and row.condition not in row.spec:
            left.append((f" if {row.condition}", "dim"))
        if row.message:
            left.append((f"  {row.message}", "warn"))
        words = [f"{row.matches} match" if row.matches is not None else "", f"{row.hits} hit{'s' * (row.hits != 1)}"]
        return beside(left, [(" · ".join(filter(None, words)) + " ", "dim")], width)

    def _watch_line(self, row: Shown, width: int) -> Spans:
        left: Spans = [(f" {row.number:<2} ", "dim"), (elide(row.expression, max(width // 2, 8)), "op"), ("  ", "")]
        if row.error:
            return fit([*left, (row.error, "dim")], width)
        left.append((row.text.split("\n", 1)[0], "warn" if row.changed else "number"))
        if row.changed and row.before and width_of(left) + 12 < width:
            left.append((f"  was {row.before}", "faint"))
        return fit(left, width)

    def copied(self) -> str:
        lines = self.line_count()
        return figures.plain(self.line(min(self.cursor, lines - 1), 500)).strip() if lines else ""

    def toggle_command(self) -> str:
        if self.tab != "breakpoints" or not self.breakpoints:
            return ""
        row = self.breakpoints[self.cursor]
        return f"{'disable' if row.enabled else 'enable'} {row.id}"

    def delete_command(self) -> str | None:
        if not self.line_count():
            return None
        if self.tab == "breakpoints":
            return f"delete {self.breakpoints[self.cursor].id}"
        return f"undisplay {self.shown[self.cursor].number}" if self.tab == "watches" else ""

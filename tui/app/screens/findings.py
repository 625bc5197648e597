"""What diagnosis found: the list above, and below what proves the finding under the cursor. UI thread; the program is
asked on a worker: as the screen opens, at each stop, now and again while it runs, and at `r`."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from textwrap import wrap
from typing import Any

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from adbg.tui.app import theme
from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.app.messages import Read
from adbg.tui.app.screens.keys import KeysScreen
from adbg.tui.commands.diagnosis.diagnose import advice, look_again, progress
from adbg.tui.debugger.debugger import Debugger
from adbg.tui.debugger.findings.own_words import is_shells
from adbg.tui.debugger.model import State
from adbg.tui.text.cells import Spans, elide, fit, place_in
from adbg.tui.text.cells import place as file_place
from adbg.tui.text.findings import (
    FindingLine,
    Ranked,
    examined_lines,
    finding_lines,
    headline,
    place_of,
    taken_back_lines,
)

EVERY = 0.5  # seconds between two looks at what was told meanwhile
ASK_EVERY = 2.0  # seconds between two questions to a program that runs
Ask = Callable[[str, Any, Callable[[], None], Callable[[Read], None]], None]
_STYLES = {"error": "bad", "warning": "warn", "note": "dim"}
COPIED = 110  # cells of a line that is copied
_KEYS = "⏎ go there · 1-9 run a next · ? keys · esc back"
_ALL_KEYS = (
    ("j k g G", "down, up, the first, the last; the mouse selects"),
    ("enter", "go there: its node in the graph, its value, and the line to change in the source"),
    ("space", "more of a finding that is longer than its half of the screen"),
    ("1 … 9", "run the command of that number after `next`; one for a shell is copied"),
    ("y", "copy the finding, with all that proves it"),
    ("r", "have the program look now (it is asked now and again anyway)"),
    ("escape q F8", "back"),
)


class FindingsList(LinePanel):
    """A line each."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.rows: list[Ranked] = []
        self._places = 0  # cells of the widest place
        self._folds = False  # something is folded under one of them

    def show(self, rows: list[Ranked]) -> bool:
        """New ones; the cursor stays with its finding. Whether anything changed."""
        if rows == self.rows:
            return False
        here = self.selected
        self.rows = rows
        self._places = max((len(_where(row)) for row in rows), default=0)
        self._folds = any(row.also for row in rows)
        self.lines_changed()
        if here is not None:
            same = [i for i, row in enumerate(rows) if (row.process, row.finding.id) == (here.process, here.finding.id)]
            self.select(same[0] if same else min(self.cursor, len(rows) - 1), notify=False)
        return True

    @property
    def selected(self) -> Ranked | None:
        return self.rows[min(self.cursor, len(self.rows) - 1)] if self.rows else None

    def line_count(self) -> int:
        return len(self.rows)

    def line(self, row: int, width: int) -> Spans:
        each = self.rows[row]
        finding, place = each.finding, place_of(each.finding)
        room = min(self._places, max(width // 4, 12))
        where = place_in(place.file, place.line, room) if place is not None else ""
        also = f"+{len(each.also)}" if each.also else ""
        head: Spans = [
            (f" {each.number:>2} ", "dim"),
            (f"{finding.severity:<8}", _STYLES.get(finding.severity, "")),
            (f"{where:<{room}}  ", "number"),
            (f"{also:<4}" if self._folds and width >= 100 else "", "dim"),
            (f"{finding.kind}  ", "bold"),
        ]
        return fit([*head, (finding.message, "")], width)


class FindingText(LinePanel):
    """One finding in full."""

    show_cursor = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._row: Ranked | None = None
        self._notes: list[str] = []
        self._lines: list[FindingLine] = []

    def show(self, row: Ranked | None, notes: list[str]) -> None:
        """``notes``: what was looked at, below, or alone where nothing was found."""
        other = row != self._row
        self._row, self._notes = row, notes
        self._make()
        if other:
            self.scroll_to(y=0, animate=False, force=True)

    def _make(self) -> None:
        width = max(self.size.width - 1, 20)
        found = finding_lines(self._row, width, keys=True) if self._row is not None else []
        rest = [FindingLine(part, "dim") for note in self._notes for part in wrap(note, width, break_on_hyphens=False)]
        self._lines = [*found, *([FindingLine("")] if found and rest else []), *rest]
        self.lines_changed()
        self._tell()

    def _tell(self) -> None:
        """In the frame: what is below."""
        below = self.line_count() - self.scroll_offset.y - self.size.height
        more = f"space {below} more line{'s' * (below > 1)} · " if below > 0 and self.size.height else ""
        self.tell_frame(more + _KEYS)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._tell()

    def page_on(self) -> None:
        """A page further; behind the last, the first."""
        last = self.scroll_offset.y + self.size.height >= self.line_count()
        self.scroll_to(y=0 if last else self.scroll_offset.y + self.size.height - 1, animate=False, force=True)

    def on_resize(self, event: Any) -> None:
        self._make()
        super().on_resize(event)

    def line_count(self) -> int:
        return len(self._lines)

    def line(self, row: int, width: int) -> Spans:
        line = self._lines[row]
        return [(elide(line.text, width), line.style if line.style in theme.STYLES else "string")]


class FindingsScreen(ModalScreen["Ranked | str | None"]):
    """Returns the finding that was chosen with enter, or the command that was chosen by its number."""

    BINDINGS = [
        Binding("escape,q,f8", "leave", "Back", show=False),
        Binding("r", "again", "Look again", show=False),
        Binding("question_mark,f1", "keys", "Keys", show=False),
        Binding("y", "yank", "Copy", show=False),
        Binding("space", "page", "More of the finding", show=False),
        *(Binding(str(key), f"follow({key})", f"Next command {key}", show=False) for key in range(1, 10)),
    ]

    def __init__(self, debugger: Debugger, ask: Ask) -> None:
        super().__init__()
        self._debugger = debugger
        self._ask = ask
        self._asking = False
        self._asked_at: tuple[object, float] = (None, 0.0)  # the stop, and the time
        self._problem = ""
        self._drawn: tuple[str, ...] = ()
        self._head = Static("", id="findings-head")

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame full") as box:
            box.border_title = "Findings"
            box.border_subtitle = Content(_KEYS)
            yield self._head
            yield FindingsList(id="findings-list")
            yield FindingText(id="findings-text")

    def on_mount(self) -> None:
        self.action_again()
        self.set_interval(EVERY, self._renew)

    def on_resize(self) -> None:
        self._drawn = ()
        self._renew()

    @property
    def _list(self) -> FindingsList:
        return self.query_one(FindingsList)

    @property
    def _text(self) -> FindingText:
        return self.query_one(FindingText)

    def action_again(self) -> None:
        """Have the program look now."""
        self._asking = True
        self._asked_at = (self._debugger.stop, time.monotonic())
        self._ask("findings", None, partial(look_again, self._debugger), self._answered)

    def _answered(self, read: Read) -> None:
        self._asking = False
        if self.is_mounted:
            self._problem = str(read.error) if read.error is not None else ""
            self._renew()

    def _renew(self) -> None:
        """Draw what is known now; a program that runs, or stands at another stop, is asked again."""
        if not self.query(FindingsList):  # not composed yet, or taken down already: an answer came meanwhile
            return
        debugger = self._debugger
        stop, since = debugger.stop, time.monotonic() - self._asked_at[1]
        running = debugger.state is State.RUNNING and since > ASK_EVERY
        if not self._asking and (running or stop is not self._asked_at[0]):
            self.action_again()
        changed = self._list.show(debugger.findings.ranked())
        now, rows = progress(debugger), self._list.rows
        head = "asking the program …" if self._asking and not now.known and not rows else ""
        head = head or headline(rows, debugger.findings.examined(), now)
        notes = [self._problem] if self._problem else [] if rows or self._asking else [advice(now)]
        if debugger.state is State.STOPPED and not rows:
            notes.append("the program is stopped: esc, and c goes on")
        notes += examined_lines(debugger.findings.examined(), now, bool(rows)) if now.known else []
        notes += taken_back_lines(debugger.findings.taken_back())
        drawn = (head, *filter(None, notes))
        if not changed and drawn == self._drawn:
            return
        self._drawn = drawn
        self._head.update(theme.styled([(f" {head}", "bold")]))
        self._list.styles.height = max(1, min(len(rows), self.size.height // 2 - 3))
        self._list.display = bool(rows)
        if not isinstance(self.focused, FindingText) or changed:
            self.set_focus(self._list if rows else self._text)
        self._list.refresh()
        self._tell()

    def _tell(self) -> None:
        self._text.show(self._list.selected, list(self._drawn[1:]))

    def action_page(self) -> None:
        self._text.page_on()

    def action_follow(self, number: int) -> None:
        """Run that one of the next commands; one of a shell is copied."""
        row = self._list.selected
        commands = row.finding.next if row is not None else []
        if not 1 <= number <= len(commands):
            self.app.bell()
        elif is_shells(commands[number - 1]):
            self.app.copy_to_clipboard(commands[number - 1])
            self.notify(f"copied, for a shell: {commands[number - 1]}", timeout=4, markup=False)
        else:
            self.dismiss(commands[number - 1])

    def on_line_panel_moved(self, event: LinePanel.Moved) -> None:
        event.stop()
        self._tell()

    def on_line_panel_opened(self, event: LinePanel.Opened) -> None:
        event.stop()
        row = self._list.selected
        if row is None:
            self.app.bell()
        elif place_of(row.finding) is None and (row.finding.node is None or not row.finding.node.unique_name):
            self.notify("this finding names no line and no node", timeout=3)
        else:
            self.dismiss(row)

    def action_yank(self) -> None:
        row = self._list.selected
        if row is None:
            self.app.bell()
            return
        self.app.copy_to_clipboard("\n".join(line.text for line in finding_lines(row, COPIED)))
        self.notify(f"copied finding {row.number}", timeout=2, markup=False)

    def action_keys(self) -> None:
        self.app.push_screen(KeysScreen("Keys of the findings", _ALL_KEYS))

    def action_leave(self) -> None:
        self.dismiss(None)


def _where(row: Ranked) -> str:
    place = place_of(row.finding)
    return file_place(place.file, place.line) if place is not None else ""

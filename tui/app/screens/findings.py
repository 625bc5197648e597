"""What diagnosis found: the list above, and below what proves the finding under the cursor. UI thread; the program is
asked on a worker, once the screen opens and at each `r`."""

from __future__ import annotations

from collections.abc import Callable
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
from adbg.tui.debugger.findings.store import Findings
from adbg.tui.text.cells import Spans, elide, fit
from adbg.tui.text.findings import FindingLine, Ranked, count_text, examined_lines, finding_lines, headline, place_of
from adbg.tui.text.formatting import file_text

EVERY = 0.5  # seconds between two looks at what was told meanwhile
Answer = str  # why there is nothing to see; "" where there is
Ask = Callable[[str, Any, Callable[[], Answer], Callable[[Read], None]], None]
_STYLES = {"error": "bad", "warning": "warn", "note": "dim"}


class FindingsList(LinePanel):
    """A line each."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.rows: list[Ranked] = []
        self.waiting = "asking the program …"

    def show(self, rows: list[Ranked]) -> bool:
        """New ones; the cursor stays with its finding. Whether anything changed."""
        if rows == self.rows:
            return False
        here = self.selected
        self.rows = rows
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
        where = f"{file_text(place.file).rpartition('/')[2]}:{place.line}" if place is not None else ""
        also = f"+{len(each.also)}" if each.also else ""
        head: Spans = [
            (f" {each.number:>2} ", "dim"),
            (f"{finding.severity:<8}", _STYLES.get(finding.severity, "")),
            (f"{where:<18} ", "number"),
            (f"{also:<4}" if width >= 100 else "", "dim"),
            (f"{finding.kind}  ", "bold"),
        ]
        return fit([*head, (finding.message, "")], width)

    def empty_text(self) -> str:
        return self.waiting

    def copied(self) -> str:
        row = self.selected
        return row.finding.message if row is not None else ""


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
        self._row, self._notes = row, notes
        self._make()
        self.scroll_to(y=0, animate=False, force=True)

    def _make(self) -> None:
        width = max(self.size.width - 1, 20)
        found = finding_lines(self._row, width, keys=True) if self._row is not None else []
        rest = [FindingLine(part, "dim") for note in self._notes for part in wrap(note, width)]
        self._lines = [*found, *([FindingLine("")] if found and rest else []), *rest]
        self.lines_changed()

    def on_resize(self, event: Any) -> None:
        self._make()
        super().on_resize(event)

    def line_count(self) -> int:
        return len(self._lines)

    def line(self, row: int, width: int) -> Spans:
        line = self._lines[row]
        return [(elide(line.text, width), line.style if line.style in theme.STYLES else "string")]


class FindingsScreen(ModalScreen["Ranked | str | None"]):
    """Returns the finding that was chosen with enter, or the command that was chosen by its number. ``question`` has
    the program look, and says why it cannot; ``alive``: whether it may tell more."""

    BINDINGS = [
        Binding("escape,q,f8", "leave", "Back", show=False),
        Binding("r", "again", "Look again", show=False),
        Binding("y", "yank", "Copy", show=False),
        *(Binding(str(key), f"follow({key})", f"Next command {key}", show=False) for key in range(1, 10)),
    ]

    def __init__(
        self, findings: Findings, ask: Ask, question: Callable[[], Answer], alive: Callable[[], bool] = lambda: True
    ) -> None:
        super().__init__()
        self._findings = findings
        self._ask = ask
        self._question = question
        self._alive = alive
        self._drawn = ""
        self._head = Static("", id="findings-head")

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame full") as box:
            box.border_title = "Findings"
            box.border_subtitle = Content("⏎ node, line, value · 1-9 run a next · r look again · y copy · esc back")
            yield self._head
            yield FindingsList(id="findings-list")
            yield FindingText(id="findings-text")

    def on_mount(self) -> None:
        self.set_focus(self._list)
        self._renew(True)
        self.action_again()
        self.set_interval(EVERY, self._renew)

    @property
    def _list(self) -> FindingsList:
        return self.query_one(FindingsList)

    def action_again(self) -> None:
        """Have the program look now."""
        self._ask("findings", None, self._question, self._answered)

    def _answered(self, read: Read) -> None:
        if self.is_mounted:
            self._list.waiting = str(read.error) if read.error is not None else read.result or "nothing found so far"
            self._renew(True)

    def _renew(self, anew: bool = False) -> None:
        """Draw what is known now."""
        changed = self._list.show(self._findings.ranked())
        head = self._headline()
        if not changed and not anew and head == self._drawn:
            return
        self._drawn = head
        rows = self._list.rows
        self._head.update(theme.styled([(f" {head}", "bold")]))
        height = max(1 if rows else 3, min(len(rows), self.size.height // 2 - 3))
        self._list.styles.height = height
        self._list.refresh()
        self._tell()

    def _headline(self) -> str:
        """The count; while the program runs it may find more, and where it was cut short that is said."""
        rows, findings = self._list.rows, self._findings
        if self._alive():
            return f"{count_text(rows)} so far"
        if findings.told_end or rows:
            return headline(rows, findings.examined(), findings.told_end)
        return count_text(rows)

    def action_follow(self, number: int) -> None:
        """Run that one of the next commands; one of a shell is copied."""
        row = self._list.selected
        commands = row.finding.next if row is not None else []
        if not 1 <= number <= len(commands):
            self.app.bell()
        elif commands[number - 1].startswith("adbg "):
            self.app.copy_to_clipboard(commands[number - 1])
            self.notify(f"copied, for a shell: {commands[number - 1]}", timeout=4, markup=False)
        else:
            self.dismiss(commands[number - 1])

    def _tell(self) -> None:
        findings = self._findings
        found = bool(self._list.rows)
        notes = examined_lines(findings.examined(), findings.iterations, True, found) if findings.told_end else []
        self.query_one(FindingText).show(self._list.selected, notes)

    def on_line_panel_moved(self, event: LinePanel.Moved) -> None:
        event.stop()
        self._tell()

    def on_line_panel_opened(self, event: LinePanel.Opened) -> None:
        event.stop()
        row = self._list.selected
        if row is None:
            self.app.bell()
        else:
            self.dismiss(row)

    def action_yank(self) -> None:
        self.app.copy_to_clipboard(self._list.copied())

    def action_leave(self) -> None:
        self.dismiss(None)

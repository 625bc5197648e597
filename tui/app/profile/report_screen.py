"""The report of a profile: the verdict, the flame graph, tables, and what is under the cursor in full. UI thread; the
profile is read and its tables are made on a worker."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Static

from adbg.engine.errors import AdbgError, CommandError
from adbg.engine.types import SourceLine
from adbg.profiles.report.flame import ROOT, Tree
from adbg.profiles.report.formats import detect
from adbg.profiles.report.model import Frame
from adbg.profiles.report.tables import Grouping
from adbg.tui.app import theme
from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.app.lookups import Lookups
from adbg.tui.app.messages import Read
from adbg.tui.app.profile import contents as views
from adbg.tui.app.profile import report_words as words
from adbg.tui.app.profile.contents import CHANGES, FLAME, NODES, TABLE, Contents
from adbg.tui.app.profile.icicle import Icicle
from adbg.tui.app.profile.sheet_panel import Bar, SheetPanel
from adbg.tui.app.profile.sheets import GROUPINGS, Sheet
from adbg.tui.app.screens.dialogs import LineScreen
from adbg.tui.app.screens.keys import KeysScreen
from adbg.tui.text.cells import Spans, elide, fit, width_of

Go = Callable[["ReportScreen", "SourceLine | str"], None]
Made = tuple[Tree, "list[str] | None", float]  # a flame graph, its tints, what shares are of


class ReportScreen(ModalScreen[None]):
    """``path`` is read, and ``before`` with it where the two are compared. ``go(screen, where)`` is called with a
    source line or the unique name of a node that was chosen. ``known`` keeps what was read, by its path."""

    BINDINGS = [
        Binding("escape", "back", "Back", show=False),
        Binding("q,f5", "leave", "Back", show=False),
        Binding("tab,right_square_bracket", "cycle(1)", "Next view", show=False, priority=True),
        Binding("shift+tab,left_square_bracket", "cycle(-1)", "Previous view", show=False, priority=True),
        Binding("i", "invert", "Invert", show=False),
        Binding("s", "sort(1)", "Sort", show=False),
        Binding("S", "sort(-1)", "Sort", show=False),
        Binding("b", "group", "By", show=False),
        Binding("o", "source", "Source", show=False),
        Binding("f", "around(False)", "What it calls", show=False),
        Binding("c", "around(True)", "Callers", show=False),
        Binding("0", "whole", "Whole", show=False),
        Binding("question_mark,f1", "keys", "Keys", show=False),
        Binding("slash", "search", "Search", show=False),
        Binding("n,full_stop", "search_next(1)", "Next", show=False),
        Binding("N,P,comma", "search_next(-1)", "Previous", show=False),
        Binding("d", "difference", "Difference", show=False),
        Binding("w", "write", "Write", show=False),
        Binding("y", "yank", "Copy", show=False),
    ]

    def __init__(self, path: str, known: dict[str, Contents], go: Go, before: str = "") -> None:
        super().__init__()
        self.path, self._before = path, before
        self._go = go
        self._known = known
        self._lookups: Lookups | None = None
        self.contents: Contents | None = None
        self.view = ""
        self._grouping = Grouping.FUNCTION
        self._inverted = self._single = False
        self._around: tuple[Frame, bool] | None = None  # the flame graph is of this function: its callers, or not
        self._pattern: re.Pattern[str] | None = None
        self._places: list[tuple[int, int, str]] = []  # (first cell, end cell, view) of the bar
        self._head = Static("", id="report-head")
        self._bar = Bar("", id="report-bar")
        self._columns = Bar("", id="report-columns")
        self.icicle = Icicle(id="report-flame")
        self.table = SheetPanel(id="report-table")
        self._foot = Static("", id="report-foot")
        self.past: list[str] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame full") as box:
            box.border_title = Content(f"Profile  {self.path}")
            yield self._head
            yield self._bar
            yield self._columns
            yield self.icicle
            yield self.table
            yield self._foot

    def on_mount(self) -> None:
        self._lookups = Lookups(self.app.post_message, "adbg-report")
        self.table.display = self._columns.display = False
        self.set_focus(self.icicle)
        known, path, before = self._known, self.path, self._before

        self._ask("read", lambda: views.read_with(path, before, known), self._read)

    def on_unmount(self) -> None:
        if self._lookups is not None:
            self._lookups.close()

    def _ask(self, kind: str, question: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Have it answered on the worker."""

        def answered(read: Read) -> None:
            if not self.is_mounted:
                return
            if read.error is not None:
                self._failed(read.error)
            else:
                then(read.result)

        if self._lookups is not None:
            self._lookups.ask(kind, None, question, answered)

    def _failed(self, error: AdbgError) -> None:
        text = f"{error.message}\n{error.hint}".strip()
        if self.contents is None:
            self.icicle.waiting = self.table.waiting = text.replace("\n", " — ")
            self.icicle.refresh()
        else:
            self.notify(text, severity="error", markup=False)

    def _read(self, contents: Contents) -> None:
        self.contents = contents
        self.query_one(".frame").border_title = Content(f"Profile  {contents.name}")
        self._tell_head()
        self._show(contents.views[0] if contents.views else TABLE)

    # ---- what is shown

    def on_resize(self) -> None:
        self.call_after_refresh(self._tell_all)

    def _tell_all(self) -> None:
        self._tell_head()
        self._tell_bar()
        self._tell_here()

    def _tell_head(self) -> None:
        """The verdict and the three lines; in a low terminal these in one."""
        if self.contents is None:
            return
        width, low = max(self.app.size.width - 4, 20), self.app.size.height < words.LOW
        self._head.update(theme.styled(*words.head(self.contents.head(), width, low)))

    def _show(self, view: str) -> None:
        """Make it if need be, and show it."""
        contents = self.contents
        if contents is None:
            return
        self.view = view
        flame = view == FLAME
        self.icicle.display, self.table.display, self._columns.display = flame, not flame, not flame
        self.set_focus(self.icicle if flame else self.table)
        self._tell_bar()
        if flame:
            inverted, around = self._inverted, self._around

            def made() -> Made:
                whole = contents.tree(False).weight[ROOT]
                if around is not None:
                    return contents.around(*around), None, whole
                return contents.tree(inverted), contents.tints(inverted), whole

            self._ask("flame", made, self._flame)
        else:
            grouping, single = self._grouping, self._single
            self._ask("sheet", lambda: contents.sheet(view, grouping, single), self._sheet)

    def _flame(self, made: Made) -> None:
        assert self.contents is not None
        tree, tints, whole = made
        if tree is not self.icicle.stacks:
            unit = self.contents.profile.unit if self.contents.profile.samples else "seconds"
            self.icicle.show(tree, unit, tints, whole)
            if self._pattern is not None:
                self.icicle.search(self._pattern)
        self._tell_bar()
        self._tell_here()

    def _sheet(self, sheet: Sheet) -> None:
        if self.view != FLAME:
            self.table.show(sheet)
            self._tell_bar()
            self._tell_here()

    def _tell_bar(self) -> None:
        """The views, and how this one is shown."""
        contents = self.contents
        if contents is None:
            return
        spans: Spans = [(" ", "")]
        self._places = []
        self.query_one(".frame").border_subtitle = Content(words.keys(self.view, self.app.size.width))
        for view in contents.views:
            first = width_of(spans)
            spans.append((f" {view} ", "stopped" if view == self.view else "dim"))
            self._places.append((first, width_of(spans), view))
        spans.append(("  ", ""))
        if self.view == FLAME:
            spans += words.turned(self._around, self._inverted)
            spans += words.legend(contents.before is not None and self._around is None, self.icicle.stacks)
        elif self.view in (TABLE, CHANGES):
            spans.append((f"by {self._grouping.value}", "dim"))
        elif self.view == NODES:
            spans.append(("each node" if self._single else "by kind and line", "dim"))
        if self._pattern is not None:
            spans.append((f"  /{self._pattern.pattern}/", "number"))
            spans.append((words.matched(self.icicle) if self.view == FLAME else "", "number"))
        width = max(self.app.size.width - 2, 20)
        self._bar.update(theme.styled(fit(spans, width)))
        if self.table.sheet is not None and self.table.display:
            self._columns.update(theme.styled(fit(self.table.sheet.heading(self.table.size.width or width), width)))

    def frame_here(self) -> Frame | None:
        """Under the cursor."""
        if self.view == FLAME:
            return self.icicle.stacks.frame_of(self.icicle.here) if self.icicle.stacks is not None else None
        sheet = self.table.sheet
        return sheet.items[self.table.cursor].frame if sheet is not None and sheet.items else None

    def _tell_here(self) -> None:
        """What is under the cursor, in full."""
        frame = self.frame_here()
        width = max(self.app.size.width - 4, 20)
        sheet = self.table.sheet
        if self.view == FLAME:
            name, numbers = words.of_span(self.icicle)
        elif sheet is not None and sheet.items:
            name, numbers = words.of_item(sheet, self.table.cursor)
        else:
            name, numbers = "", ""
        lines: list[Spans] = [[(elide(name, width), "bold")], [(elide(numbers, width), "number")]]
        self._foot.update(theme.styled(*lines, [(words.place(frame, width), "dim")]))

    @on(Icicle.Pointed)
    @on(LinePanel.Moved)
    def _moved(self, event: Message) -> None:
        event.stop()
        self._tell_here()

    @on(Bar.Clicked, "#report-bar")
    def _view_clicked(self, event: Bar.Clicked) -> None:
        event.stop()
        for first, end, view in self._places:
            if first <= event.x < end:
                self._show(view)

    @on(Bar.Clicked, "#report-columns")
    def _column_clicked(self, event: Bar.Clicked) -> None:
        event.stop()
        sheet = self.table.sheet
        order = sheet.column_at(event.x, self.table.size.width) if sheet is not None else None
        if sheet is not None and order is not None:
            self._ask("sort", lambda: sheet.sorted_by(order), self._sheet)

    def action_cycle(self, step: int) -> None:
        shown = self.contents.views if self.contents is not None else ()
        if shown:
            self._show(shown[(shown.index(self.view) + step) % len(shown)])

    def action_invert(self) -> None:
        if self._around is None:
            self._inverted = not self._inverted
        self._around = None
        self._show(FLAME)

    def action_sort(self, step: int) -> None:
        sheet = self.table.sheet
        if self.view == FLAME or sheet is None:
            self.app.bell()
            return
        order = sheet.next_order(step)
        self._ask("sort", lambda: sheet.sorted_by(order), self._sheet)

    def action_group(self) -> None:
        """Rows of functions, of lines, of files, …"""
        if self.view in (TABLE, CHANGES):
            self._grouping = GROUPINGS[(GROUPINGS.index(self._grouping) + 1) % len(GROUPINGS)]
        elif self.view == NODES:
            self._single = not self._single
        else:
            self.app.bell()
            return
        self._show(self.view)

    def on_line_panel_opened(self, event: LinePanel.Opened) -> None:
        """The node in the graph, or the line that it stands for."""
        event.stop()
        frame = self.frame_here()
        if self.view == NODES and frame is not None:
            self._go(self, frame.name)
        else:
            self.action_source()

    def action_source(self) -> None:
        """The line under the cursor, in the source panel."""
        frame = self.frame_here()
        if frame is None or not frame.file or not frame.line:
            self.app.bell()
        elif not os.path.isfile(frame.file):
            self.notify(f"{frame.file} is not here", severity="warning", timeout=3, markup=False)
        else:
            self._go(self, SourceLine(os.path.abspath(frame.file), frame.line, frame.name))

    def action_around(self, callers: bool) -> None:
        """All that the function under the cursor calls, or all of its callers, wherever it stands."""
        frame = self.frame_here()
        if frame is None or self.contents is None or FLAME not in self.contents.views:
            self.app.bell()
            return
        self._around = frame, callers
        self._show(FLAME)

    def action_whole(self) -> None:
        """All of the flame graph again."""
        self._around = None
        self.icicle.zoom_to(ROOT)
        self._show(FLAME)

    def action_keys(self) -> None:
        self.app.push_screen(KeysScreen("Keys of the report", words.ALL_KEYS))

    def action_back(self) -> None:
        """One zoom back; then leave."""
        if self.view == FLAME and self.icicle.zoom_back():
            return
        if self.view == FLAME and self._around is not None:
            self._around = None
            self._show(FLAME)
            return
        self.dismiss(None)

    def action_leave(self) -> None:
        self.dismiss(None)

    def action_yank(self) -> None:
        frame = self.frame_here()
        if frame is not None:
            self.app.copy_to_clipboard(f"{frame.name} {frame.file}:{frame.line}".strip())
            self.notify(f"copied {frame.name[:40]}", timeout=2, markup=False)

    # ---- search

    def _line(self, question: str, hint: str, then: Callable[[str], None], past: list[str], text: str = "") -> None:
        def answered(line: str | None) -> None:
            if line and line.strip():
                try:
                    then(line.strip())
                except AdbgError as error:
                    self._failed(error)

        self.app.push_screen(LineScreen(question, text, hint, past), answered)

    def action_search(self) -> None:
        def chosen(text: str) -> None:
            try:
                self._pattern = re.compile(text, re.IGNORECASE)
            except re.error as error:
                raise CommandError(f"{text!r} is no regular expression: {error}") from None
            self.icicle.search(self._pattern)
            self.action_search_next(1)
            self._tell_bar()

        self._line("/", "a regular expression in names, files, modules; n next, N previous", chosen, self.past)

    def action_search_next(self, step: int) -> None:
        if self._pattern is None:
            self.action_search()
            return
        if self.view == FLAME:
            found = self.icicle.next_found(step)
        else:
            row = self.table.sheet.find(self._pattern, self.table.cursor, step) if self.table.sheet else None
            found = row is not None
            if row is not None:
                self.table.select(row)
        if not found:
            self.notify(f"{self._pattern.pattern!r} not found", severity="warning", timeout=2, markup=False)

    # ---- another profile, another format

    def action_difference(self) -> None:
        """Compare with an earlier profile: red takes more here, green less."""
        path = self.path.rstrip("/")
        parent = os.path.dirname(path)
        hint = "an earlier profile: a file, or a folder of one (up: those beside this one); red takes more in this one"
        beside = words.earlier(path)

        def chosen(text: str) -> None:
            given = os.path.expanduser(text)
            before = given if os.path.exists(given) else os.path.join(parent, text)
            self.app.push_screen(ReportScreen(self.path, self._known, self._go, before))

        self._line("difference to", hint, chosen, beside, beside[-1] if beside else "")

    def action_write(self) -> None:
        """In another format."""

        def chosen(text: str) -> None:
            assert self.contents is not None
            from pathlib import Path

            target, profile = Path(os.path.expanduser(text)), self.contents.profile
            self._ask("write", lambda: detect.write(profile, target), lambda _: self._wrote(target))

        if self.contents is not None:
            self._line("write to", "a name that ends in one of " + " ".join(detect.WRITERS), chosen, [])

    def _wrote(self, target: object) -> None:
        self.notify(f"wrote {target}", timeout=4, markup=False)

"""Panel 2: what the framework says (VLOG), with stops and traces between it, and what is looked for in it. UI thread.

Nothing here takes longer than a frame, however long the log: what has to look through it (search, filter, the records
of nodes) does so for ``SLICE`` seconds at a time, and keys are taken in between. The lower border of the frame says how
far it is; Escape gives it up and leaves the cursor where it was.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from textual.message import Message
from textual.timer import Timer

from adbg.tui.app.keymap import bindings
from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.app.log.drawing import drawn
from adbg.tui.app.log.folds import OPEN
from adbg.tui.app.log.index import NOTE
from adbg.tui.app.log.nodes import NodeLink
from adbg.tui.app.log.search import Search
from adbg.tui.app.log.sought import Sought
from adbg.tui.app.log.view import LogView
from adbg.tui.text.cells import Spans

SLICE = 0.005  # seconds of looking ...
TURN = 0.008  # ... from one turn to the next: the rest is for keys and painting
AT_ONCE = 0.012  # seconds after which an answer may come later; 4 MB of log are looked through by then
WHILE_WALKING = 0.002  # the same where the next key is a few ms away


class VlogPanel(LinePanel):
    """Shows ``view``, follows its end, searches it, and links its records about nodes to the graph. ``poll`` is called
    by the app's timer.

    Attributes:
        following: the cursor stays on the last line.
        levels: as the agent says them.
        quiet: only stops have been noted so far.
        match: what stands out in all lines.
        waiting: what stands there while there is no log.
    """

    BINDINGS = [*bindings("foldable"), *bindings("vlog")]
    keeps_lines = True

    @dataclass(eq=False)
    class NodeWanted(Message):
        """The cursor is on a record about a node: the ``occurrence``-th of its name in the backward (0: unknown), or
        the one with ``index``."""

        name: str
        index: int
        occurrence: int
        address: str = ""

    @dataclass(eq=False)
    class SearchEnded(Message):
        """A search that took longer is over; ``found``: the cursor is there now."""

        text: str
        found: bool

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.following = True
        self.levels = ""
        self.quiet = True
        self.match: re.Pattern[str] | None = None
        self.waiting = "no log yet: `vlog 4` turns it on, 3 (calls) to 6 (unique names)"
        self._search: Search | None = None
        self._search_text = ""
        self._kept_row = -1  # has the cursor again once the filter has come to it
        self._resume = False  # the graph's selection took the cursor away from the end: the next stop takes it back
        self._turns: Timer | None = None
        self._set_view(LogView())

    def _set_view(self, view: LogView) -> None:
        self.view = view
        self.store = view.store
        self._links = NodeLink(view.store)
        self._search = None
        self._kept_row = -1

    # ---- coming in

    def open_file(self, path: str) -> None:
        """Follow the log of another run."""
        if path != self.store.path:
            self.store.close()
            columns = self.view.columns
            self._set_view(LogView(path, self.view.filter_text))
            self.view.columns = columns
            self.grown()

    def poll(self) -> None:
        """Take in what was appended, and show how far a search or a filter has come."""
        if self.store.poll() or self.view.filtering:
            self.grown()
        self.tell_frame(self.subtitle_text())

    def note(self, text: str, time: str, stop: bool = False) -> None:
        """A trace, or a stop: the way to it is unfolded."""
        self.quiet = self.quiet and stop
        self.store.poll()
        self.store.note(text, time)
        self.following = self.following or self._resume
        self._resume = False
        self.view.take_in()
        if stop:
            self.view.uncover_stop(len(self.store) - 1)
        self.grown()

    def grown(self) -> None:
        """Rows were added, given up at the front, or kept by the filter."""
        gone = self.view.take_in()
        self.quiet = self.quiet and self.store.kinds.count(NOTE) == len(self.store)
        if gone:
            self._links.forget()
            self._kept_row = max(self._kept_row - gone, -1)
            if self._search is not None:
                self._search.shift(gone)
        if self.view.filter is not None and self.view.filtering:
            self.view.filter.advance(SLICE)
            self._look()
        kept, reached = self._kept_row, self.view.filter.position if self.view.filter is not None else len(self.store)
        if 0 <= kept < reached:  # the filter has looked where the cursor was before it came
            self._kept_row = -1
            if not self.following:
                self.lines_changed()
                self.select(self.view.line_of(kept), notify=False)
                self.following = False
        if self.following:
            self.cursor = max(self.line_count() - 1, 0)
        self.lines_changed()
        if self.following:
            self.call_after_refresh(self.reveal, self.cursor)

    # ---- lines

    def line_count(self) -> int:
        return self.view.line_count()

    def row_at(self, line: int) -> int:
        """Row of the store behind a line."""
        return self.view.row_at(line)

    def line(self, row: int, width: int) -> Spans:
        return drawn(self.view, row, width, self.match)

    def lines_changed(self) -> None:
        super().lines_changed()
        self.tell_frame(self.subtitle_text())

    def empty_text(self) -> str:
        store = self.store
        if self.view.filter_text and len(store):
            return "searching …" if self.view.filtering else "no line matches the filter: & changes it"
        return store.error if store.error and store.size == 0 and store.unpacked else self.waiting

    def subtitle_text(self) -> str:
        """What is being looked for, and how much there is."""
        words = []
        if self._search is not None:
            words.append(f"searching for {self._search_text} {self._search.share:.0%} · esc stops")
        elif self.view.filter is not None and self.view.filtering:
            words.append(f"filtered {self.view.filter.position / max(len(self.store), 1):.0%} · esc stops")
        if self.following:
            words.append("FOLLOW")
        cut = [self.store.error] if self.store.error and self.store.size else []
        return " · ".join([*words, *self.view.words(), *cut])

    # ---- moving

    def select(self, row: int, notify: bool = True) -> None:
        self._kept_row = -1
        self.following = row >= self.line_count() - 1
        super().select(row, notify)
        self.tell_frame(self.subtitle_text())
        if notify and self.line_count() and self._links.ask_node(self.row_at(self.cursor)):
            self._answer(WHILE_WALKING)

    def on_mouse_scroll_up(self) -> None:
        self.following = False
        self.tell_frame(self.subtitle_text())

    def action_follow(self) -> None:
        self.following = not self.following
        if self.following:
            self.action_last()
        self.tell_frame(self.subtitle_text())

    def action_columns(self) -> None:
        """Thread and place, or only what was said."""
        self.view.columns = not self.view.columns
        self.refresh()

    def go_to(self, row: int, notify: bool = True) -> None:
        """The cursor to a row of the store, whatever it is folded into."""
        if self.view.uncover(row):
            self.lines_changed()
        self.select(self.view.line_of(row), notify)

    # ---- folding

    def action_fold(self) -> None:
        """Fold or unfold the record under the cursor, its text, or the one it lies in."""
        self._folded(self.view.toggle_at(self.cursor))

    def action_fold_to(self, direction: int) -> None:
        """h folds, l unfolds."""
        self._folded(self.view.fold_at(self.cursor, direction < 0))

    def open_record(self) -> bool:
        """Unfold or fold the whole text of a record, else what lies in it. False where there is neither."""
        return not self.line_count() or self._folded(self.view.open_at(self.cursor))

    def action_fold_level(self, step: int) -> None:
        """< folds all, one level more each time; > one less."""
        if len(self.store):
            self.fold_all(self.view.next_depth(step))

    def fold_all(self, depth: int) -> None:
        """Fold all that lies deeper than ``depth``; OPEN unfolds all."""
        row = self.row_at(self.cursor) if self.line_count() else 0
        self.view.fold_all(min(depth, OPEN))
        self._folded(row)

    def _folded(self, row: int) -> bool:
        """The lines are others; the cursor stays on ``row``. -1: nothing was folded."""
        if row >= 0:
            self.lines_changed()
            self.select(self.view.line_of(row), notify=False)
        return row >= 0

    # ---- places

    def next_bad(self, step: int) -> bool:
        """To the next warning or error."""
        row = self.view.next_alarm(self.row_at(self.cursor) if self.line_count() else 0, step)
        if row >= 0:
            self.go_to(row)
        return row >= 0

    def toggle_mark(self) -> None:
        if self.line_count():
            self.view.toggle_mark(self.row_at(self.cursor))
            self.refresh()

    def to_mark(self) -> bool:
        row = self.view.next_mark(self.row_at(self.cursor)) if self.line_count() else -1
        if row >= 0:
            self.go_to(row)
        return row >= 0

    def copied(self) -> str:
        """What `y` copies."""
        return self.store.raw(self.row_at(self.cursor)).strip() if self.line_count() else ""

    # ---- looking through a long log, a slice at a time

    def _look(self) -> None:
        if self._turns is None:
            self._turns = self.set_interval(TURN, self._look_on)
        self._turns.resume()

    def _look_on(self) -> None:
        """One turn of what takes longer, first of what the user waits for."""
        if self._search is not None:
            if self._search.advance(SLICE):
                self._end_search(self._search, told=True)
        elif self.view.filter is not None and self.view.filtering:
            self.view.filter.advance(SLICE)
            if not self.view.filtering:
                self.grown()
        elif self._links.waiting:
            self._answer(SLICE)
        elif self._turns is not None:
            self._turns.pause()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Escape is the panel's only while there is something to give up."""
        if action == "give_up" and self._search is None and not self.view.filtering:
            return False
        return super().check_action(action, parameters)

    def action_give_up(self) -> None:
        """End the search, else a filter that is still looking."""
        if self._search is not None:
            self._search = None
        elif self.view.filtering:
            self.set_filter("")
        self.tell_frame(self.subtitle_text())

    # ---- filter and search

    def set_filter(self, text: str) -> None:
        """``folds.wanted`` has the words; "" shows all. What is kept comes as it is found. Raises CommandError."""
        view = self.view
        at = self._kept_row if self._kept_row >= 0 else self.row_at(self.cursor) if self.line_count() else 0
        view.set_filter(text.strip())
        self._search = None
        if view.filter is not None:
            view.filter.advance(AT_ONCE)
            view.lay_out()
        self._kept_row = at
        self.grown()

    def search(self, text: str, step: int) -> bool | None:
        """To the next record that matches; False when none does, None when ``SearchEnded`` will tell. Raises
        CommandError."""
        sought = Sought(text) if text else None
        self.match = sought.shown if sought is not None else None
        self._search = None
        self.refresh()
        if sought is None or not self.line_count():
            return False
        among = None if self.view.filter is None else self.view.filter.rows
        self._search_text = text
        search = Search(self.store, sought, self.row_at(self.cursor), step, among)
        if search.advance(AT_ONCE):
            return self._end_search(search, told=False)
        self._search = search
        self.tell_frame(self.subtitle_text())
        self._look()
        return None

    def _end_search(self, search: Search, told: bool) -> bool:
        self._search = None
        found, shown = search.found, self.match
        if found >= 0:
            self.go_to(found)
            if shown is not None and not shown.search(self.store.line(found).text):
                inner = self.view.show_in_block(found, shown)
                self.lines_changed()
                self.select(self.view.line_of(found) + inner, notify=False)
        self.tell_frame(self.subtitle_text())
        if told:
            self.post_message(self.SearchEnded(self._search_text, found >= 0))
        return found >= 0

    # ---- nodes

    def says_node(self) -> bool:
        """The record under the cursor is about a node of the current backward call."""
        return self._links.said_at(self.row_at(self.cursor)) is not None

    def show_node(self, name: str, index: int, occurrence: int) -> bool | None:
        """The cursor to the last backward's record that node ``index`` is about to run; Paddle has no index in its log:
        there it is the ``occurrence``-th of its name. False when there is none (it did not run; the level is low), None
        when that takes longer."""
        self._links.drop()
        if self.app.focused is self:  # ``has_focus`` follows some messages later
            return False
        self._links.ask_record(name, index, occurrence)
        return self._answer(WHILE_WALKING)

    def _answer(self, seconds: float) -> bool | None:
        if not self._links.advance(seconds):
            self._look()
            return None
        node, row = self._links.answer()
        if node is not None:
            self.post_message(self.NodeWanted(*node))
        if row < 0:
            return False
        line = self.view.line_of(row)
        if not self.following or line < self.line_count() - max(self.size.height, 1):  # else it is in sight
            self._resume = self._resume or self.following
            self.go_to(row, notify=False)
        return True

"""Panel 2: what the framework says (VLOG), with stops and traces between it, and what is looked for in it. UI thread.

Nothing here takes longer than a frame, however long the log: what has to look through it (search, filter, the records
of nodes) does so for ``SLICE`` seconds at a time, and keys are taken in between. The lower border of the frame says how
far it is; Escape gives it up and leaves the cursor where it was.
"""

from __future__ import annotations

import re
from typing import Any

from textual.message import Message
from textual.timer import Timer

from adbg.tui.app.log.folds import compile_bytes, compile_pattern
from adbg.tui.app.log.log_panel import LogPanel
from adbg.tui.app.log.nodes import NodeRecords, NodeSaid, node_said
from adbg.tui.app.log.search import Search

SLICE = 0.005  # seconds of looking ...
TURN = 0.008  # ... from one turn to the next: the rest is for keys and painting
AT_ONCE = 0.012  # seconds after which an answer may come later; 4 MB of log are looked through by then
WHILE_WALKING = 0.002  # the same where the next key is a few ms away


class VlogPanel(LogPanel):
    """A log that is searched and filtered, and whose records about nodes are linked to the graph.

    Attributes:
        levels: as the agent says them.
    """

    class NodeWanted(Message):
        """The cursor is on a record about a node: the ``occurrence``-th of its name in the backward (0: unknown), or
        the one with ``index``."""

        def __init__(self, panel: VlogPanel, name: str, index: int, occurrence: int) -> None:
            super().__init__()
            self.panel = panel
            self.name = name
            self.index = index
            self.occurrence = occurrence

        @property
        def control(self) -> VlogPanel:
            return self.panel

    class SearchEnded(Message):
        """A search that took longer is over; ``found``: the cursor is there now."""

        def __init__(self, panel: VlogPanel, text: str, found: bool) -> None:
            super().__init__()
            self.panel = panel
            self.text = text
            self.found = found

        @property
        def control(self) -> VlogPanel:
            return self.panel

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.levels = ""
        self._search: Search | None = None
        self._search_text = ""
        self._kept_row = -1  # has the cursor again once the filter has come to it
        self._node_records: NodeRecords | None = None
        self._asked: tuple[NodeSaid, int] | None = None  # the record whose node is to be told, and its row
        self._shown: tuple[str, int, int] | None = None  # the node whose record is to be shown
        self._resume = False  # the graph's selection took the cursor away from the end: the next stop takes it back
        self._turns: Timer | None = None

    def on_mount(self) -> None:
        self._turns = self.set_interval(TURN, self._look_on, pause=True)

    # ---- coming in

    def poll(self) -> None:
        """Take in what was appended, and show how far what goes on has come."""
        if self.view.filtering:
            self.store.poll()
            self.grown()
        super().poll()

    def note(self, text: str, time: str, stop: bool = False) -> None:
        """A trace, or a stop: the way to it is unfolded."""
        self.store.poll()
        self.store.note(text, time)
        self.following = self.following or self._resume
        self._resume = False
        self.view.take_in()
        if stop:
            self.view.uncover_stop(len(self.store) - 1)
        self.grown()

    def taken_in(self, gone: int) -> None:
        if gone:
            self._node_records = self._asked = self._shown = None
            self._kept_row = max(self._kept_row - gone, -1)
            if self._search is not None:
                self._search.shift(gone)
        if self.view.filter is not None and self.view.filtering:
            self.view.filter.advance(SLICE)
            self._look()
        self._restore_cursor()

    def open_file(self, path: str) -> None:
        if path != self.store.path:
            self._search = self._node_records = self._asked = self._shown = None
            self._kept_row = -1
        super().open_file(path)

    # ---- looking through a long log, a slice at a time

    def _look(self) -> None:
        if self._turns is not None:
            self._turns.resume()

    def _look_on(self) -> None:
        """One turn of what goes on, the one a person waits for first."""
        if self._search is not None:
            if self._search.advance(SLICE):
                self._end_search(self._search, told=True)
        elif self.view.filter is not None and self.view.filtering:
            self.view.filter.advance(SLICE)
            if not self.view.filtering:
                self.grown()
        elif self._asked is not None or self._shown is not None:
            if self._know_nodes(SLICE):
                self._answer()
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

    def subtitle_text(self) -> str:
        """What goes on, and how much there is."""
        words = []
        if self._search is not None:
            words.append(f"looking for {self._search_text} {self._search.share:.0%} · esc stops")
        elif self.view.filter is not None and self.view.filtering:
            words.append(f"looked at {self.view.filter.position / max(len(self.store), 1):.0%} · esc stops")
        return " · ".join([*words, super().subtitle_text()])

    def empty_text(self) -> str:
        if self.filter_text and len(self.store):
            return "looking …" if self.view.filtering else "no line matches the filter: & changes it"
        return super().empty_text()

    # ---- filter and search

    def set_filter(self, text: str) -> None:
        """``logfolds.wanted`` has the words; "" shows all. What is kept comes as it is found. Raises CommandError."""
        view = self.view
        at = self._kept_row if self._kept_row >= 0 else self.row_at(self.cursor) if self.line_count() else 0
        view.set_filter(text.strip())
        self._search = None
        if view.filter is not None:
            view.filter.advance(AT_ONCE)
            view.lay_out()
        self._kept_row = at
        self.grown()

    def _restore_cursor(self) -> None:
        """The cursor to the row it was on before the filter came, once the filter has looked there."""
        if self._kept_row < 0 or (self.view.filter is not None and self.view.filter.position <= self._kept_row):
            return
        row, following = self._kept_row, self.following
        self._kept_row = -1
        if not following:
            self.lines_changed()
            self.select(self.view.line_of(row), notify=False)
            self.following = False

    def select(self, row: int, notify: bool = True) -> None:
        self._kept_row = -1
        super().select(row, notify)
        if notify and self.line_count():
            self._ask_node(self.row_at(self.cursor))

    def search(self, text: str, step: int) -> bool | None:
        """To the next record that matches; False when none does, None when ``SearchEnded`` will tell. Raises
        CommandError."""
        self.match = compile_pattern(text) if text else None
        self._search = None
        self.refresh()
        if not text or not self.line_count():
            return False
        among = None if self.view.filter is None else self.view.filter.rows
        self._search_text = text
        search = Search(self.store, compile_bytes(text), self.row_at(self.cursor), step, among)
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
                self._show_in_block(found, shown)
        self.tell_frame(self.subtitle_text())
        if told:
            self.post_message(self.SearchEnded(self, self._search_text, found >= 0))
        return found >= 0

    def _show_in_block(self, row: int, shown: re.Pattern[str]) -> None:
        blocks = self.view.map.blocks
        if row not in blocks and self.store.line(row).block:
            self.toggle_block(row)
        lines = self.store.block(row)[: blocks.get(row, 0)]
        inner = next((number for number, line in enumerate(lines, 1) if shown.search(line)), 0)
        self.select(self.view.line_of(row) + inner, notify=False)

    # ---- nodes

    def _know_nodes(self, seconds: float) -> bool:
        """The records of the last backward's nodes are known, as far as the log goes."""
        began = self.store.last_backward()
        if self._node_records is None or self._node_records.began != began:
            self._node_records = NodeRecords(self.store, began) if began >= 0 else None
        return self._node_records is None or self._node_records.advance(seconds)

    def _ask_node(self, row: int) -> None:
        """Have the node that a record of the present backward is about selected."""
        said = node_said(self.store.line(row).text)
        self._asked = self._shown = None
        if said is not None and self.store.backward_of(row) == self.store.last_backward():
            self._asked = (said, row)
            self._answer_soon()

    def says_node(self) -> bool:
        """The record under the cursor is about a node of the backward call at hand."""
        row = self.row_at(self.cursor)
        backward = self.store.last_backward()
        return node_said(self.store.line(row).text) is not None and self.store.backward_of(row) == backward

    def show_node(self, name: str, index: int, occurrence: int) -> bool | None:
        """The cursor to the last backward's record that node ``index`` is about to run; Paddle has no index in its log:
        there it is the ``occurrence``-th of its name. False when there is none (it did not run; the level is low), None
        when that takes longer."""
        self._asked = self._shown = None
        if self.app.focused is self:  # ``has_focus`` follows some messages later
            return False
        self._shown = (name, index, occurrence)
        return self._answer_soon()

    def _answer_soon(self) -> bool | None:
        if self._know_nodes(WHILE_WALKING):
            return self._answer()
        self._look()
        return None

    def _answer(self) -> bool:
        nodes, asked, shown = self._node_records, self._asked, self._shown
        self._asked = self._shown = None
        if nodes is not None and asked is not None:
            said, row = asked
            occurrence = 0 if said.index else nodes.occurrence(said, row)
            if said.index or occurrence:
                self.post_message(self.NodeWanted(self, said.name, said.index, occurrence))
        at = nodes.row_of(*shown) if nodes is not None and shown is not None else -1
        if at < 0:
            return False
        line = self.view.line_of(at)
        if not self.following or line < self.line_count() - max(self.size.height, 1):  # else it is in sight
            self._resume = self._resume or self.following
            self.go_to(at, notify=False)
        return True

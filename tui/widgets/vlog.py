"""Panel 2: what the framework says (VLOG), and stops and traces between it: folded, followed, searched, filtered. UI
thread."""

from __future__ import annotations

import bisect
import re
from array import array
from typing import Any

from textual.message import Message

from adbg.tui.keymap import bindings
from adbg.tui.widgets import figures
from adbg.tui.widgets.figures import Spans, elide, width_of
from adbg.tui.widgets.linepanel import LinePanel
from adbg.tui.widgets.logfolds import OPEN, Filter, Folds, compile_bytes, compile_pattern, wanted
from adbg.tui.widgets.loglines import LineMap
from adbg.tui.widgets.logstore import BUDGET, LogStore

_STYLE = {"W": "warn", "E": "bad", "F": "bad", "■": "stop"}
_BLOCK_LINES = 500
NODE = re.compile(r"(?P<name>[\w:<>.]+)\((?:#(?P<index>\d+)|(?P<pointer>0x[0-9a-f]+))\)")


class VlogPanel(LinePanel):
    """Reads ``store``; ``poll`` is called by the app's timer.

    Attributes:
        following: the cursor stays on the last line.
    """

    BINDINGS = [*bindings("foldable"), *bindings("vlog")]
    keeps_lines = True

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

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.store = LogStore()
        self.following = True
        self.columns = True  # thread, place in the source
        self.levels = ""  # as the agent says them
        self.filter_text = ""
        self.waiting = "no log yet: `vlog 4` turns it on, 3 (calls) to 6 (unique names)"
        self._filter: Filter | None = None
        self._folds = Folds()
        self._map = LineMap()
        self._match: re.Pattern[str] | None = None
        self._marks: list[int] = []
        self._dropped = 0
        self._seen = 0  # rows that have their lines
        self._resume = False  # the graph's selection took the cursor away from the end: the next stop takes it back

    # ---- coming in

    def poll(self) -> None:
        """Take in what was appended."""
        behind = self.store.behind
        if self.store.poll() or (self._filter is not None and self._filter.position < len(self.store)):
            self.grown()
        elif behind != self.store.behind:
            self.tell_frame(self.subtitle_text())

    def note(self, text: str, time: str) -> None:
        """A stop or a trace."""
        self.store.poll()
        self.store.note(text, time)
        self.following = self.following or self._resume
        self._resume = False
        self.grown()

    def grown(self) -> None:
        """Rows were added, or given up at the front."""
        if self.store.dropped != self._dropped or len(self.store) < self._seen:
            self._shifted()
        if self._filter is not None:
            self._filter.advance(BUDGET)
            self._map.rows = self._filter.rows
        elif self._map.rows is not None:
            self._map.rows.extend(self._folds.rows(self.store, self._seen))
        self._seen = len(self.store)
        self._map.total = len(self.store)
        if self.following:
            self.cursor = max(self.line_count() - 1, 0)
        self.lines_changed()
        if self.following:
            self.call_after_refresh(self.reveal, self.cursor)

    def _shifted(self) -> None:
        gone = self.store.dropped - self._dropped if self.store.dropped != self._dropped else self._seen
        self._dropped = self.store.dropped
        self._folds.shift(gone)
        self._marks = [mark - gone for mark in self._marks if mark >= gone]
        self._map.blocks.clear()
        if self._filter is not None:
            self._filter.shift(gone)
        self._seen = 0
        if self._map.rows is not None:
            self._map.rows = array("q")

    def open_file(self, path: str) -> None:
        """Follow the log of another run."""
        if path != self.store.path:
            self.store.close()
            self.store = LogStore(path)
            self._folds, self._map, self._marks = Folds(), LineMap(), []
            self._dropped = self._seen = 0
            self._filter = Filter(self.store, wanted(self.filter_text)) if self.filter_text else None
            self.grown()

    # ---- lines

    def line_count(self) -> int:
        return self._map.count()

    def empty_text(self) -> str:
        if self.filter_text and len(self.store):
            return "no line matches the filter: & changes it"
        return self.waiting

    def row_at(self, line: int) -> int:
        """Row of the store behind a line."""
        return self._map.at(line)[0]

    def line_of(self, row: int) -> int:
        """Line of a row, or of the row before it that has one."""
        return self._map.line_of(row)

    def lines_changed(self) -> None:
        super().lines_changed()
        self.tell_frame(self.subtitle_text())

    def subtitle_text(self) -> str:
        words = ["FOLLOW"] if self.following else []
        size = len(self.store) + self.store.dropped
        words.append(f"{figures.count(size)} record{'s' * (size != 1)}")
        if self.store.dropped:
            words.append(f"{figures.count(self.store.dropped)} oldest dropped")
        if self.store.behind > 1_000_000:
            words.append(f"{self.store.behind / 1e6:.0f} MB to read")
        if self.store.unpacking:
            words.append("unpacking")
        if self.store.error and len(self.store):
            words.append(self.store.error)
        if self._folds.depth < OPEN:
            words.append(f"folded at {self._folds.depth}")
        if self._folds.closed:
            words.append(f"{len(self._folds.closed)} folded")
        if self._filter is not None:
            words.append(f"{figures.count(self._filter.hits)} match & {self.filter_text}")
            if self._filter.position < len(self.store):
                words.append(f"{100 * self._filter.position // len(self.store)} % looked at")
        return " · ".join(words)

    def line(self, row: int, width: int) -> Spans:
        number, inner = self._map.at(row)
        if inner:
            return self._block_line(number, inner, width)
        line = self.store.line(number)
        style = _STYLE.get(line.level, "")
        time = line.time if width >= 50 else line.time[3:]
        spans: Spans = [
            ("'" if number in self._marks else " ", "key"),
            (f"{time:>{9 if width >= 50 else 6}} ", "faint"),
        ]
        if self.columns and width >= 76:
            spans.append((f"{line.thread or '':>7} ", "faint"))
        spans.append((f"{line.level:<1} ", style or "dim"))
        spans += self._guide(self.store.depths[number], width)
        children = self.store.has_children(number)
        folded = children and self._filter is None and self._folds.is_closed(self.store, number)
        if children or line.block:
            shut = folded if children else number not in self._map.blocks
            spans.append(("▸ " if shut else "▾ ", "key" if shut else "dim"))
        elif line.level:
            spans.append(("  ", ""))
        tail = f"  +{figures.count(self.store.end_of(number) - number - 1)}" if folded else ""
        place = f"  {line.where}" if self.columns and line.where and width >= 110 else ""
        room = max(width - width_of(spans) - len(tail) - len(place), 4)
        text = elide(line.text, room)
        spans += self._matched(text, style or ("" if line.level else "dim"))
        if tail:
            spans.append((tail, "key"))
        if place:
            spans += [(" " * max(width - width_of(spans) - len(place), 0), ""), (place, "faint")]
        return spans

    @staticmethod
    def _guide(depth: int, width: int) -> Spans:
        most = max((width - 40) // 2, 2)
        if depth <= most:
            return [("│ " * depth, "faint")]
        return [("│ " * (most - 1) + f"{depth:<2}", "faint")]

    def _block_line(self, row: int, inner: int, width: int) -> Spans:
        lines = self.store.block(row)
        text = lines[inner - 1] if inner <= len(lines) else ""
        if inner == _BLOCK_LINES and len(lines) > _BLOCK_LINES:
            text = f"… {len(lines) - inner + 1:,} more lines: y copies all"
        lead = 11 + (8 if self.columns and width >= 76 else 0) + 2 if width >= 50 else 10
        spans: Spans = [(" " * lead, ""), *self._guide(self.store.depths[row] + 1, width), ("┊ ", "faint")]
        return [*spans, *self._matched(elide(text, max(width - width_of(spans), 4)), "dim")]

    def _matched(self, text: str, style: str) -> Spans:
        if self._match is None:
            return [(text, style)]
        spans: Spans = []
        end = 0
        for found in self._match.finditer(text):
            if found.end() > found.start():
                spans += [(text[end : found.start()], style), (found[0], "match")]
                end = found.end()
        return [*spans, (text[end:], style)]

    # ---- moving

    def select(self, row: int, notify: bool = True) -> None:
        self.following = row >= self.line_count() - 1
        super().select(row, notify)
        self.tell_frame(self.subtitle_text())
        if notify and self.line_count():
            self._tell_node(self.row_at(self.cursor))

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
        self.columns = not self.columns
        self.refresh()

    def go_to(self, row: int, notify: bool = True) -> None:
        """The cursor to a row of the store, whatever it is folded into."""
        if self._filter is None and self._map.rows is not None and not self._map.has(row):
            holder = self.store.holder_of(row)
            while holder >= 0:
                if self._folds.is_closed(self.store, holder):
                    self._folds.fold(self.store, holder, close=False)
                holder = self.store.holder_of(holder)
            self._refold()
        self.select(self.line_of(row), notify)

    # ---- folding

    def action_fold(self) -> None:
        """Fold or unfold the record under the cursor, its text, or the one it lies in."""
        if not self.line_count():
            return
        row, inner = self._map.at(self.cursor)
        if inner or (not self._folding(row) and self.store.line(row).block):
            self._toggle_block(row)
        elif self._folding(row):
            self._toggle(row, not self._folds.is_closed(self.store, row))
        else:
            self._toggle(self.store.holder_of(row), True)

    def action_detail(self) -> None:
        """Unfold or fold the whole text of a record, where there is more than a line; else as ``action_fold``."""
        if not self.line_count():
            return
        row = self.row_at(self.cursor)
        if self.store.line(row).block:
            self._toggle_block(row)
        else:
            self.action_fold()

    def action_fold_to(self, direction: int) -> None:
        """h folds, l unfolds."""
        if not self.line_count():
            return
        row, inner = self._map.at(self.cursor)
        if inner or (
            not self._folding(row) and self.store.line(row).block and (row in self._map.blocks) != (direction > 0)
        ):
            self._toggle_block(row)
            return
        if direction < 0 and (not self._folding(row) or self._folds.is_closed(self.store, row)):
            row = self.store.holder_of(row)
        self._toggle(row, direction < 0)

    def action_fold_level(self, step: int) -> None:
        """< folds all, one level more each time; > one less."""
        if not len(self.store):
            return
        deepest = max(self.store.depths)
        depth = self._folds.depth
        depth = min(0 if step < 0 and depth == OPEN else depth + step, OPEN)
        self.fold_all(OPEN if depth >= deepest else max(depth, 0))

    def fold_all(self, depth: int) -> None:
        """Fold all that lies deeper than ``depth``; OPEN unfolds all."""
        row = self.row_at(self.cursor) if self.line_count() else 0
        self._folds.all(depth)
        self._refold()
        self.select(self.line_of(row), notify=False)

    def _folding(self, row: int) -> bool:
        return self._filter is None and self.store.has_children(row)

    def _toggle(self, row: int, fold: bool) -> None:
        if row < 0 or self._filter is not None or not self.store.has_children(row):
            return
        self._folds.fold(self.store, row, fold)
        self._refold()
        self.select(self.line_of(row), notify=False)

    def _toggle_block(self, row: int) -> None:
        lines = 0 if row in self._map.blocks else min(len(self.store.block(row)), _BLOCK_LINES)
        self._map.unfold(row, lines)
        self.lines_changed()
        self.select(self.line_of(row), notify=False)

    def _refold(self) -> None:
        """All lines anew."""
        if self._filter is not None:
            self._map.rows = self._filter.rows
        else:
            self._map.rows = self._folds.rows(self.store) if self._folds.any else None
        self._map.total = self._seen = len(self.store)
        self.lines_changed()

    # ---- searching

    def set_filter(self, text: str) -> None:
        """``logfolds.wanted`` has the words; "" shows all. Raises CommandError."""
        given = text.strip()
        what = wanted(given) if given else None
        at = self.row_at(self.cursor) if self.line_count() else 0
        self.filter_text = given
        self._filter = Filter(self.store, what) if what is not None else None
        if self._filter is not None:
            self._filter.advance(BUDGET)
        self._map.blocks.clear()
        self._refold()
        self.select(self.line_of(at), notify=False)

    def search(self, text: str, step: int) -> bool:
        """To the next record that matches; False when none does."""
        self._match = compile_pattern(text) if text else None
        self.refresh()
        if not text or not self.line_count():
            return False
        pattern, shown = compile_bytes(text), self._match
        found = self._next_match(pattern, self.row_at(self.cursor), step)
        if found < 0:
            return False
        self.go_to(found)
        if shown is not None and not shown.search(self.store.line(found).text):
            self._show_in_block(found, shown)
        return True

    def _next_match(self, pattern: re.Pattern[bytes], row: int, step: int) -> int:
        if self._filter is None:
            return self.store.find(pattern, row, step)
        rows = self._filter.rows
        at = bisect.bisect_right(rows, row) if step > 0 else bisect.bisect_left(rows, row) - 1
        for distance in range(len(rows)):
            candidate = rows[(at + step * distance) % len(rows)]
            if pattern.search(self.store.raw(candidate).encode()):
                return candidate
        return -1

    def _show_in_block(self, row: int, shown: re.Pattern[str]) -> None:
        if row not in self._map.blocks and self.store.line(row).block:
            self._toggle_block(row)
        lines = self.store.block(row)[: self._map.blocks.get(row, 0)]
        inner = next((number for number, line in enumerate(lines, 1) if shown.search(line)), 0)
        self.select(self.line_of(row) + inner, notify=False)

    def next_bad(self, step: int) -> bool:
        """To the next warning or error."""
        row = self.row_at(self.cursor) if self.line_count() else 0
        row = self.store.next_alarm(row, step, None if self._filter is None else self._filter.rows)
        if row >= 0:
            self.go_to(row)
        return row >= 0

    # ---- nodes

    def _tell_node(self, row: int) -> None:
        """Select the node that a record of the present backward is about."""
        store = self.store
        line = store.line(row)
        found = NODE.match(line.text)
        if not found:
            return
        began = store.backward_of(row)
        if began != store.last_backward():
            return
        occurrence = 0
        if found["pointer"]:
            occurrence = self._occurrence(began, row, found[0])
            if not occurrence:
                return
        self.post_message(self.NodeWanted(self, found["name"], int(found["index"] or 0), occurrence))

    def _occurrence(self, began: int, row: int, node: str) -> int:
        """Which of the nodes with this name, counted by "Preparing", ``node`` is in the backward from row ``began``."""
        name = node.partition("(")[0]
        pattern = re.compile(rb"\] ?" + re.escape(name).encode() + rb"\((\w+)\) Preparing")
        count, last = 0, 0
        for at in self.store.matching_rows(pattern, began, row + 1):
            if self.store.backward_of(at) == began:
                count += 1
                if self.store.line(at).text.startswith(node):
                    last = count
        return last

    def show_node(self, name: str, index: int, occurrence: int) -> bool:
        """The cursor to the last backward's record that node ``index`` is about to run; Paddle has no index in its log:
        there it is the ``occurrence``-th of its name. False when there is none (it did not run; the level is low)."""
        store = self.store
        began = store.last_backward()
        if began < 0 or self.has_focus:
            return False
        pattern = re.compile(rb"\] ?" + re.escape(name).encode() + rb"\((#\d+|0x[0-9a-f]+)\) Preparing")
        count = 0
        for at in store.matching_rows(pattern, began, len(store)):
            text = store.line(at).text
            numbered = text.startswith(f"{name}(#")
            count += store.backward_of(at) == began
            if text.startswith(f"{name}(#{index})") or (not numbered and count == occurrence):
                line = self.line_of(at)
                if self.following and line >= self.line_count() - max(self.size.height, 1):
                    return True  # it is in sight
                self._resume = self._resume or self.following
                self.go_to(at, notify=False)
                return True
        return False

    # ---- marks

    def toggle_mark(self) -> None:
        if self.line_count():
            row = self.row_at(self.cursor)
            self._marks = [m for m in self._marks if m != row] if row in self._marks else sorted([*self._marks, row])
            self.refresh()

    def to_mark(self) -> bool:
        if not self._marks or not self.line_count():
            return False
        here = self.row_at(self.cursor)
        at = bisect.bisect_right(self._marks, here)
        self.go_to(self._marks[at % len(self._marks)])
        return True

    def copied(self) -> str:
        """What `y` copies."""
        return self.store.raw(self.row_at(self.cursor)).strip() if self.line_count() else ""

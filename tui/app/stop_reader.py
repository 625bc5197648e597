"""Questions to the program and their answers as contents of the panels. UI thread; the waiting is done by ``Lookups``.

What is read at a stop: the page of the graph around it (then the others), the stack, the selected node, its value, the
watches. The node under the cursor is read once the cursor rests.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rich.text import Text

from adbg.engine.protocol.messages import GraphBody, NodeBody
from adbg.engine.types import NodeStop, Phase, SourceLine, StopReason
from adbg.tui.app import theme
from adbg.tui.app.base import AppBase
from adbg.tui.app.messages import Read
from adbg.tui.app.panels.frames import GraphHead, ListsBar, lists_title
from adbg.tui.app.panels.graph_model import PAGE
from adbg.tui.app.panels.lists import FrameRow, forward_rows, frame_rows
from adbg.tui.app.panels.neighbourhood import Neighbourhood
from adbg.tui.app.panels.value import BINS
from adbg.tui.text import cells as figures

SETTLE_EVERY = 0.5  # seconds; further pages of a large graph are shown together
DEBOUNCE = 0.08  # seconds the cursor must rest before the node under it is read


class Reading(AppBase):
    """Mixed into the app."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._at_stop = True  # stack and source are the stop's: the user has not moved to another node
        self._refreshing: set[int] = set()  # pages of the graph to read again
        self._told = 0  # selection that the debugger was told: its echo may come when the cursor is elsewhere
        self._rest: Any = None  # timer: the cursor rests
        self._settle_at = 0.0
        self._frames: list[FrameRow] = []  # of the stop
        self._frames_note = ""

    # ---- questions

    def _read_graph(self, stop: NodeStop) -> None:
        """The page with the node at hand first; the pages between the last stop and this one again."""
        model = self.graph.model
        same = stop.backward == model.backward and stop.total == model.total
        low, high = sorted((max(model.here, 1), max(stop.index, 1)))
        self._refreshing = set(range((low - 1) // PAGE, (high - 1) // PAGE + 1)) if same else set()
        if same:
            model.place(stop.index)
            self.graph.lines_changed()
            self.graph.select_index(stop.nearest or 1, notify=False)
        self._ask_page((max(stop.index, 1) - 1) // PAGE * PAGE + 1)

    def _ask_page(self, start: int) -> None:
        self.lookups.ask("graph", start, lambda: self.debugger.graph_page(start, PAGE))

    def _next_page(self) -> None:
        if self.debugger.stop is None:
            return
        if self._refreshing:
            own = (max(self.selected, 1) - 1) // PAGE
            page = min(self._refreshing, key=lambda p: abs(p - own))
            self._ask_page(page * PAGE + 1)
            return
        missing = self.graph.model.missing(self.selected)
        if missing is not None:
            self._ask_page(missing)

    def _read_frames(self) -> None:
        def question() -> Any:
            frames = self.debugger.frames()
            process = self.debugger.current
            return frames, process.frames_note if process else "", process.frame if process else 0

        self.lookups.ask("frames", 0, question)

    def _read_shown(self) -> None:
        self.lookups.ask("shown", 0, self.debugger.shown_values)

    def read_node(self) -> None:
        index = self.selected
        stop = self.debugger.stop
        if not index or stop is None or (stop.phase is Phase.PYTHON and not self.graph.model.total):
            self._show_node(None)
            return
        self.lookups.ask("node", index, lambda: self.debugger.node(index))

    def read_value(self) -> None:
        """The chosen value of the selected node: statistics and a picture of the panel's size."""
        panel = self.value
        model = panel.model
        target, slot, stop = model.target, model.slot, self.debugger.stop
        panel.changed()
        self.retitle()
        if not target or stop is None or (slot is not None and slot.meta is None):
            return
        if slot is not None and slot.meta is not None and slot.meta.shape is None:
            return
        index = 0 if self.selected == stop.index or model.expression else self.selected
        rows, cols = panel.picture_room()
        asked = model.slice
        model.loading = True
        self.lookups.ask(
            "value",
            (self.selected, target, asked),
            lambda: self.debugger.tensor(
                target, node=index, stats=True, bins=BINS, window=True, slice=asked, rows=rows, cols=cols
            ),
        )

    def select_node(self, index: int) -> None:
        """Called when the cursor moved: the cheap part now, the reading once it rests."""
        stop = self.debugger.stop
        self.selected = index
        self._at_stop = stop is not None and stop.index == index
        self._neighbours(None)
        row = self.graph.model.rows.get(index)
        if row is not None and row.forward is not None and not self._at_stop:
            self.code.show(row.forward)
        self.retitle()
        if self._rest is not None:
            self._rest.stop()
        self._rest = self.set_timer(DEBOUNCE, self._rested)

    def at_stop(self) -> None:
        self._at_stop = True

    def _rested(self) -> None:
        if self.debugger.selected != self.selected:
            self._told = self.selected
            self.debugger.select_node(self.selected)
        if self.debugger.stop is not None:
            self.read_node()

    # ---- answers

    def on_read(self, event: Read) -> None:
        """A lookup was answered."""
        event.stop()
        if self.leaving:
            return
        if event.kind == "grid":
            answered = getattr(self.screen, "answered", None)
            if answered is not None:
                answered(event)
            return
        handler: Callable[[Read], None] = getattr(self, "_read_" + event.kind + "_done")
        handler(event)

    def _read_graph_done(self, event: Read) -> None:
        if event.error is not None:
            if self.debugger.stop is not None and not self.graph.model.total:
                self.graph.waiting = event.error.message
                self.graph.refresh()
            return
        body: GraphBody = event.result
        model = self.graph.model
        first = not model.rows
        page = (event.key - 1) // PAGE
        near = first or page in self._refreshing or page == (max(body.here, 1) - 1) // PAGE
        other = model.load(body, later=not near)
        self._refreshing.discard(page)
        if near or other or model.missing(1) is None or time.monotonic() > self._settle_at:
            self._show_graph(first or other)
        self._next_page()

    def _show_graph(self, anew: bool) -> None:
        """The rows that came so far, in the panel. ``anew``: another graph than before."""
        started = time.monotonic()
        model = self.graph.model
        model.settle()
        under = self.graph.selected  # the cursor may be ahead of ``selected``: its message is on the way
        stop = self.debugger.stop
        if stop is not None and stop.reason in (StopReason.NAN, StopReason.INF) and stop.backward == model.backward:
            model.alarm(stop.index)
        status = self.bar.status
        status.here, status.total = model.here, model.total
        status.nonfinite = sum(row.nonfinite for row in model.rows.values())
        status.sum_us = sum(row.us for row in model.rows.values() if row.us is not None) or None
        keep = under.index if under is not None and not anew else self.selected
        if not keep and model.total and stop is not None and stop.phase is not Phase.PYTHON:
            self.selected = keep = 1  # at the begin: the first node to come
            self.read_node()
        self.graph.lines_changed()
        if keep:
            self.graph.select_index(keep, notify=False, margin=max(self.graph.size.height // 3, 2) if anew else 4)
        self._head()
        self._neighbours(self.shown_node)
        self.retitle()
        now = time.monotonic()
        self._settle_at = now + max(SETTLE_EVERY, 10 * (now - started))

    def _head(self) -> None:
        head = self.panel(GraphHead)
        spans = self.graph.heading(self.graph.size.width or 40)
        head.update(Text.assemble(*((text, theme.STYLES[style]) for text, style in spans), no_wrap=True))

    def _read_frames_done(self, event: Read) -> None:
        if event.error is not None:
            self.lists.show_frames([], 0, event.error.message)
            return
        frames, note, selected = event.result
        self._frames = frame_rows(frames)
        self._frames_note = note
        if self._at_stop:
            self.lists.show_frames(self._frames, selected, note)
            self._show_frame(selected)
        self.relist()

    def _show_frame(self, index: int) -> None:
        """The source line of a frame of the stop; of the node itself, its forward line, else the line that called
        backward."""
        stop = self.debugger.stop
        place: SourceLine | None = None
        if index and index < len(self._frames):
            place = self._frames[index].place
        elif stop is not None:
            place = (stop.node.forward if stop.node else None) or stop.location
            if place is None:
                place = next((row.place for row in self._frames if row.place), None)
        note = self._frames_note or "no Python line is known here"
        self.code.show(place, note)
        if self.lists.frames is self._frames or index:
            self.lists.show_frames(self._frames, index, self._frames_note)
        self.retitle()

    def _read_node_done(self, event: Read) -> None:
        if event.key != self.selected:
            return
        if event.error is not None:
            self.value.model.show_node(None)
            self.value.waiting = event.error.message
            self.value.changed()
            return
        self._show_node(event.result)

    def _show_node(self, body: NodeBody | None) -> None:
        self.shown_node = body
        self.value.waiting = "no node is at hand: p EXPR prints any value" if body is None else ""
        self.value.model.show_node(body)
        self._neighbours(body)
        if body is not None:
            if self._at_stop:
                if self.lists.frames is not self._frames:
                    self.lists.show_frames(self._frames, 0, self._frames_note)
                    self._show_frame(0)
            else:
                rows = forward_rows(body.node.unique_name, body.forward)
                self.lists.show_frames(rows, 0, body.forward_note)
                place = body.node.forward or (body.forward[0] if body.forward else None)
                self.code.show(place, body.forward_note or "no forward line is known for this node")
        self.read_value()

    def _neighbours(self, body: NodeBody | None) -> None:
        """The boxes below the graph."""
        model = self.graph.model
        node = model.rows.get(self.selected)
        boxes = self.panel(Neighbourhood)
        if node is None:
            boxes.show(None, [], [], None)
            return
        feeders = [
            model.rows[i]
            for i in (body.consumers if body is not None else model.feeders(node.index))
            if i in model.rows
        ]
        fed = [model.rows[i] for i in node.edges if i in model.rows]
        boxes.show(node, feeders, fed, len(body.saved) if body is not None else None)

    def _read_value_done(self, event: Read) -> None:
        model = self.value.model
        if event.key != (self.selected, model.target, model.slice):
            return
        model.loading = False
        model.view = event.result
        model.problem = event.error.message if event.error is not None else ""
        self.value.changed()

    def _read_shown_done(self, event: Read) -> None:
        if event.error is None:
            self.lists.show_values(event.result)
            self.relist()

    def _read_memory_done(self, event: Read) -> None:
        if event.error is None and event.result:
            self.bar.status.memory = figures.size(event.result)

    def relist(self) -> None:
        """The bar above the lists."""
        self.panel(ListsBar).update(lists_title(self.lists))

    def ask_memory(self) -> None:
        """Resident memory of the current process, once a second (read from /proc, the program is not touched)."""
        process = self.debugger.current
        if process is None or not process.alive or not self.debugger.alive:
            return
        pid = process.info.pid

        def question() -> int:
            import psutil

            try:
                return int(psutil.Process(pid).memory_info().rss)
            except psutil.Error:
                return 0

        self.lookups.ask("memory", pid, question)

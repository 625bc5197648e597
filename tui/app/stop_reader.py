"""Questions to the program and their answers as contents of the panels. UI thread; the waiting is done by ``Lookups``.

What is read at a stop: the page of the graph around it (then the others), the stack, the selected node, its value, the
watches. The node under the cursor is read once the cursor rests.
"""

from __future__ import annotations

import time
from typing import Any

from adbg.engine.protocol.messages import GraphBody, NodeBody
from adbg.engine.types import NodeStop, Origin, Phase, Role, SourceLine, StopReason
from adbg.tui.app.lookups import Lookups
from adbg.tui.app.messages import Read
from adbg.tui.app.panels.graph_model import PAGE, GraphModel
from adbg.tui.app.panels.lists import FrameRow, forward_rows, frame_rows
from adbg.tui.app.panels.value import BINS
from adbg.tui.app.screens.main import MainScreen
from adbg.tui.debugger.debugger import Debugger

SETTLE_EVERY = 0.5  # seconds; further pages of a large graph are shown together
DEBOUNCE = 0.08  # seconds the cursor must rest before the node under it is read


def _bad_rows(stop: NodeStop) -> set[int]:
    """Nodes whose gradients are not finite, by what the stop tells: its own, and what made that which it was given."""
    made = {found.index for found in stop.evidence if found.origin is Origin.PASSED_ON and found.index}
    own = any(found.role is Role.GRAD_INPUTS for found in stop.evidence)
    return made | ({stop.index} if own or stop.reason in (StopReason.NAN, StopReason.INF) else set())


class StopReader:
    """Fills the panels of ``main``.

    Attributes:
        selected: index of the node that panels show, 0 for none.
        shown_node: what is known of it, once it was read.
    """

    def __init__(self, debugger: Debugger, main: MainScreen, lookups: Lookups) -> None:
        self.debugger = debugger
        self.main = main
        self.lookups = lookups
        self.selected = 0
        self.shown_node: NodeBody | None = None
        self._at_stop = True  # stack and source are the stop's: the user has not moved to another node
        self._refreshing: set[int] = set()  # pages of the graph to read again
        self._told = 0  # selection that the debugger was told: its echo may come when the cursor is elsewhere
        self._rest: Any = None  # timer: the cursor rests
        self.instead: tuple[int, SourceLine] | None = None  # a node, and the line that is shown in place of its own
        self._settle_at = 0.0
        self._frames: list[FrameRow] = []  # of the stop
        self._frames_note = ""

    # ---- questions

    def stopped(self, stop: NodeStop) -> None:
        """All of another stop."""
        self.instead = None
        self.selected = stop.nearest
        self._at_stop = True
        self._know(None)
        value = self.main.value
        if stop.evidence:
            value.model.prefer(stop.evidence[0].name)
        elif stop.phase is Phase.AFTER:
            value.model.expect("out")
        self.main.graph.waiting = "no graph at this stop"
        self._read_graph(stop)
        self._read_frames()
        self.read_node()
        self.read_shown()

    def forget(self) -> None:
        """Show nothing of what was read: it is of another run or process."""
        main = self.main
        self.lookups.drop()
        self.selected, self._told, self._frames, self._refreshing = 0, 0, [], set()
        main.graph.model = GraphModel()
        main.graph.marks.clear()
        main.graph.cursor = 0
        main.graph.lines_changed()
        self._show_node(None)
        main.lists.show_frames([], 0)
        main.lists.show_values(())
        main.code.show(None, "the forward line of the selected node is shown here")
        main.retitle()
        main.show_heading()

    def reread_graph(self) -> None:
        """The rows changed: marks, breakpoints."""
        self._refreshing = set(range(-(-self.main.graph.model.total // PAGE)))
        self._next_page()

    def reread_lines(self) -> None:
        """Other frames are shown now."""
        if self.debugger.stop is not None:
            self.reread_graph()
            self._read_frames()
            self.read_node()

    def home(self, stop: NodeStop) -> None:
        """The node and the stack of the stop again."""
        self.main.graph.select_index(stop.nearest or 1, notify=False)
        self.select_node(stop.nearest or 1)
        self._at_stop = True

    def selection_changed(self, index: int) -> None:
        """The debugger has node ``index`` selected, 0 for that of the stop: a command did that, or it is our echo."""
        index = index or (self.debugger.stop.nearest if self.debugger.stop else 0)
        if index and index not in (self.selected, self._told):
            self.main.graph.select_index(index, notify=False)
            self.select_node(index)

    def _read_graph(self, stop: NodeStop) -> None:
        """The page with the current node first; the pages between the last stop and this one again."""
        model = self.main.graph.model
        same = stop.backward == model.backward and stop.total == model.total
        low, high = sorted((max(model.here, 1), max(stop.index, 1)))
        self._refreshing = set(range((low - 1) // PAGE, (high - 1) // PAGE + 1)) if same else set()
        if same:
            model.place(stop.index)
            self.main.graph.lines_changed()
            self.main.graph.select_index(stop.nearest or 1, notify=False)
        self._ask_page((max(stop.index, 1) - 1) // PAGE * PAGE + 1)

    def _ask_page(self, start: int) -> None:
        self.lookups.ask("graph", start, lambda: self.debugger.view.graph_page(start, PAGE), self._graph_read)

    def _next_page(self) -> None:
        if self.debugger.stop is None:
            return
        if self._refreshing:
            own = (max(self.selected, 1) - 1) // PAGE
            page = min(self._refreshing, key=lambda p: abs(p - own))
            self._ask_page(page * PAGE + 1)
            return
        missing = self.main.graph.model.missing(self.selected)
        if missing is not None:
            self._ask_page(missing)

    def _read_frames(self) -> None:
        def question() -> Any:
            frames = self.debugger.view.frames()
            process = self.debugger.current
            return frames, process.view.frames_note if process else "", process.view.frame if process else 0

        self.lookups.ask("frames", 0, question, self._frames_read)

    def read_shown(self) -> None:
        """The watches and displays."""
        self.lookups.ask("shown", 0, self.debugger.displays.values, self._shown_read)

    def read_node(self) -> None:
        """The selected node."""
        index = self.selected
        stop = self.debugger.stop
        if not index or stop is None or (stop.phase is Phase.PYTHON and not self.main.graph.model.total):
            self._show_node(None)
            return
        self.lookups.ask("node", index, lambda: self.debugger.view.node(index), self._node_read)

    def read_value(self) -> None:
        """The chosen value of the selected node: statistics and a picture of the panel's size."""
        panel = self.main.value
        model = panel.model
        target, slot, stop = model.target, model.slot, self.debugger.stop
        panel.changed()
        self.main.retitle()
        if not target or stop is None or (slot is not None and slot.meta is None):
            return
        if slot is not None and slot.meta is not None and slot.meta.shape is None:
            return
        index = 0 if self.selected == stop.index else self.selected
        rows, cols = panel.picture_room()
        asked = model.slice
        model.loading = True
        self.lookups.ask(
            "value",
            (self.selected, target, asked),
            lambda: self.debugger.view.tensor(
                target, node=index, stats=True, bins=BINS, window=True, slice=asked, rows=rows, cols=cols
            ),
            self._value_read,
        )

    def select_node(self, index: int) -> None:
        """Called when the cursor moved: the cheap part now, the reading once it rests."""
        stop = self.debugger.stop
        self.selected = index
        self._at_stop = stop is not None and stop.index == index
        self._neighbours(None)
        row = self.main.graph.model.rows.get(index)
        if self.instead is not None and self.instead[0] != index:
            self.instead = None
        if self.instead is None and row is not None and row.forward is not None and not self._at_stop:
            self.main.code.show(row.forward)
        self.main.retitle()
        if self._rest is not None:
            self._rest.stop()
        self._rest = self.main.app.set_timer(DEBOUNCE, self._rested)

    def _rested(self) -> None:
        if self.debugger.selected != self.selected:
            self._told = self.selected
            self.debugger.select_node(self.selected)
        if self.debugger.stop is not None:
            self.read_node()
        elif self.shown_node is None or self.shown_node.index != self.selected:
            self._show_unread()

    def _show_unread(self) -> None:
        """A node that was not looked at while the program stood: nothing of another one beside it."""
        main, row = self.main, self.main.graph.model.rows.get(self.selected)
        instead = self.instead
        self._show_node(None)
        if row is not None:
            main.value.waiting = f"not read while the program stood: `b {row.unique_name}` stops there in another run"
            main.lists.show_frames(forward_rows(row.unique_name, [row.forward] if row.forward is not None else []), 0)
        main.value.changed()
        if instead is None and row is not None and row.forward is not None:
            main.code.show(row.forward)

    def choose_frame(self, row: int) -> None:
        """A line of the stack: a frame of the stop, or a forward line of another node."""
        lists, code = self.main.lists, self.main.code
        frame = lists.frames[row] if row < len(lists.frames) else None
        if frame is None:
            return
        if frame.frame >= 0:
            self.lookups.ask("frame", row, lambda: self.debugger.view.select_frame(row), self.report)
        elif frame.place is not None:
            lists.frame = row
            code.show(frame.place)
            self.main.retitle()

    # ---- answers

    def report(self, event: Read) -> None:
        """Of an answer, only what went wrong."""
        if event.error is not None:
            self.main.say_error(event.error)

    def _graph_read(self, event: Read) -> None:
        if event.error is not None:
            if self.debugger.stop is not None and not self.main.graph.model.total:
                self.main.graph.waiting = event.error.message
                self.main.graph.refresh()
            return
        body: GraphBody = event.result
        model = self.main.graph.model
        first = not model.rows
        page = (event.key - 1) // PAGE
        near = first or page in self._refreshing or page == (max(body.here, 1) - 1) // PAGE
        other = model.load(body, later=not near)
        self._refreshing.discard(page)
        if near or other or model.missing(1) is None or time.monotonic() > self._settle_at:
            self._show_graph(first or other)
        self._next_page()

    def _show_graph(self, another: bool) -> None:
        """The rows that came so far, in the panel. ``another``: a graph other than before."""
        started = time.monotonic()
        model = self.main.graph.model
        model.settle()
        under = self.main.graph.selected  # the cursor may be ahead of ``selected``: its message is on the way
        stop = self.debugger.stop
        if stop is not None and stop.backward == model.backward:
            for index in _bad_rows(stop):
                model.alarm(index)
        status = self.main.bar.status
        status.here, status.total = model.here, model.total
        status.nonfinite = sum(row.nonfinite for row in model.rows.values())
        status.sum_us = sum(row.us for row in model.rows.values() if row.us is not None) or None
        keep = under.index if under is not None and not another else self.selected
        if not keep and model.total and stop is not None and stop.phase is not Phase.PYTHON:
            self.selected = keep = 1  # at the begin: the first node to come
            self.read_node()
        self.main.graph.lines_changed()
        if keep:
            margin = max(self.main.graph.size.height // 3, 2) if another else 4
            self.main.graph.select_index(keep, notify=False, margin=margin)
        self.main.show_heading()
        self._neighbours(self.shown_node)
        self.main.retitle()
        now = time.monotonic()
        self._settle_at = now + max(SETTLE_EVERY, 10 * (now - started))

    def _frames_read(self, event: Read) -> None:
        if event.error is not None:
            self.main.lists.show_frames([], 0, event.error.message)
            return
        frames, note, selected = event.result
        self._frames = frame_rows(frames)
        self._frames_note = note
        if self._at_stop:
            self.main.lists.show_frames(self._frames, selected, note)
            self.show_frame(selected)
        self.main.relist()

    def show_frame(self, index: int) -> None:
        """The source line of a frame of the stop; of the node itself, its forward line, else the line that called
        backward."""
        stop = self.debugger.stop
        place: SourceLine | None = None
        if index < len(self._frames):
            place = self._frames[index].place
        if place is None and not index and stop is not None:
            place = (stop.node.forward if stop.node else None) or stop.location
            if place is None:
                place = next((row.place for row in self._frames if row.place), None)
        note = self._frames_note or "no Python line is known here"
        self.main.code.show(place, note)
        if self.main.lists.frames is self._frames or index:
            self.main.lists.show_frames(self._frames, index, self._frames_note)
        self.main.retitle()

    def _node_read(self, event: Read) -> None:
        if event.key != self.selected:
            return
        if event.error is not None:
            self.main.value.model.show_node(None)
            self.main.value.waiting = event.error.message
            self.main.value.changed()
            return
        self._show_node(event.result)

    def _show_node(self, body: NodeBody | None) -> None:
        self._know(body)
        self.main.value.waiting = "no current node: p EXPR prints any value" if body is None else ""
        self.main.value.model.show_node(body)
        self._neighbours(body)
        if body is not None:
            if self._at_stop:
                if self.main.lists.frames is not self._frames:
                    self.main.lists.show_frames(self._frames, 0, self._frames_note)
                    self.show_frame(0)
            else:
                rows = forward_rows(body.node.unique_name, body.forward)
                self.main.lists.show_frames(rows, 0, body.forward_note)
                place = body.node.forward or (body.forward[0] if body.forward else None)
                self.main.code.show(place, body.forward_note or "no forward line is known for this node")
            if self.instead is not None:
                self.main.code.show(self.instead[1])
        self.read_value()

    def _know(self, body: NodeBody | None) -> None:
        self.shown_node = body
        self.main.value.node = body.index if body is not None else 0

    def _neighbours(self, body: NodeBody | None) -> None:
        """The boxes below the graph."""
        model = self.main.graph.model
        node = model.rows.get(self.selected)
        boxes = self.main.neighbourhood
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

    def _value_read(self, event: Read) -> None:
        model = self.main.value.model
        if event.key != (self.selected, model.target, model.slice):
            return
        model.loading = False
        if event.error is not None and model.slice != model.good_slice:  # the value stays as it was shown
            self.main.say_error(event.error)
            model.slice = model.good_slice
            self.read_value()
            return
        model.good_slice = model.slice
        model.view = event.result
        model.problem = event.error.message if event.error is not None else ""
        self.main.value.changed()

    def _shown_read(self, event: Read) -> None:
        if event.error is None:
            self.main.lists.show_values(event.result)
            self.main.relist()

"""Panel 1: the graph in execution order, with lanes, and the neighbourhood of the selected node. UI thread."""

from __future__ import annotations

from typing import Any

from adbg.engine.names import short_op
from adbg.engine.types import GraphRow
from adbg.tui.app import theme
from adbg.tui.app.keymap import bindings
from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.app.panels.graph_model import GraphModel
from adbg.tui.app.panels.lanes import EMPTY, LaneRow
from adbg.tui.text import cells as figures
from adbg.tui.text.cells import Spans, elide, elide_parameter, width_of
from adbg.tui.text.quantities import duration, jump

_GLYPH = {"done": "●", "here": "▶", "todo": "○"}
MAX_LANES = 14  # columns; 3 of 160 cells would be left for the op of a graph of 80
_NORM = 7
_TIME = 5


def leaf_text(leaves: list[GraphRow]) -> str:
    """What stands for folded leaves: the parameter of one, the number of several."""
    if not leaves:
        return ""
    if len(leaves) > 1:
        return f"+{len(leaves)}ac"
    return "→" + leaves[0].parameter if leaves[0].parameter else "+1ac"


def lane_spans(lanes: LaneRow, row: GraphRow, width: int) -> Spans:
    """The lanes of one line in exactly ``width`` cells. Where they do not fit "»" stands for the rest, and the node,
    if it is among them, behind it: a row is never without its own dot."""
    dot = (_GLYPH.get(row.state, "○"), node_style(row))
    spans: Spans = []
    for column in range(min(lanes.width, (width + 1) // 2)):
        if column == lanes.node:
            spans.append(dot)
        else:
            spans.append((lanes.glyph(column), theme.lane_style(lanes.tints[column])))
        bar = lanes.bars[column]
        spans.append(("─", theme.lane_style(bar)) if bar != EMPTY else (" ", ""))
    spans = spans[:width]
    if lanes.width * 2 > width + 1:
        hidden = lanes.node * 2 >= width - 1
        tail: Spans = [("»", "faint"), dot] if hidden else [("»", "faint")]
        return [*spans[: width - len(tail)], *tail]
    return [*spans, (" " * (width - len(spans)), "")]


def node_style(row: GraphRow) -> str:
    """Style of a row's glyph: the state, over it the kind, over all the alarm."""
    if row.nonfinite:
        return "bad"
    if row.state == "here":
        return "here"
    if row.accumulate:
        return "leaf"
    if row.compiled:
        return "compiled"
    if row.custom:
        return "custom"
    return "todo" if row.state == "todo" else "opdone"


def op_style(row: GraphRow) -> str:
    """Of the op's name: that of the row, or the colour that Paddle gives a captured region."""
    style = node_style(row)
    if row.region and style not in ("bad", "here"):
        return f"region-{row.region}"
    return style


class GraphPanel(LinePanel):
    """The cursor is the selected node; ``model`` holds the rows.

    Columns: breakpoint and position marks, index, lanes, op with folded leaves, time (us), norm of grad_outputs[0], its
    shape, and the forward line where there is room.
    """

    BINDINGS = [*bindings("foldable"), *bindings("graph")]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.model = GraphModel()
        self.marks: set[int] = set()
        self.waiting = "the program has not started"
        self._widths: dict[tuple[int, int], int] = {}
        self._columns: dict[str, int] = {}  # where it was scrolled to last
        self._walk = (0, 0)  # of the last h or l: its direction, the node it began at

    # ---- lines

    def line_count(self) -> int:
        return len(self.model.visible)

    def empty_text(self) -> str:
        return self.waiting

    def lines_changed(self) -> None:
        self._widths.clear()
        super().lines_changed()
        self.tell_frame(self.subtitle_text())

    def subtitle_text(self) -> str:
        """Below the panel."""
        model = self.model
        if not model.total:
            return ""
        lanes = model.lane_width(self.scroll_offset.y, self.scroll_offset.y + max(self.size.height - 1, 0))
        loaded = "" if len(model.rows) >= model.total else f"{figures.count(len(model.rows))} of "
        more = "+" if model.truncated else ""
        text = f"{loaded}{figures.count(model.total)}{more} nodes · {lanes} lane{'s' * (lanes != 1)}"
        return f"{text} · {model.note}" if model.note else text

    def columns(self, width: int) -> dict[str, int]:
        """Widths of the columns in a panel of ``width`` cells; 0 leaves a column out."""
        index = max(len(str(self.model.total)), 4)
        timed = self.model.timed
        lanes = min(self._lane_width(), MAX_LANES) * 2
        fixed = 2 + index + 2 + lanes + 1
        room = max(width - fixed, 8)
        figures_room = _TIME + 1 + _NORM + 1
        figures_room -= 0 if timed else _TIME + 1
        shape = min(max(room - figures_room - 16, 0), 14)
        shape = shape if shape >= 8 else 0
        time = _TIME if timed and room >= 12 + figures_room else 0
        norm = _NORM if room >= 12 + _NORM + 1 else 0
        rest = room - (time + (time > 0)) - (norm + (norm > 0)) - (shape + (shape > 0))
        forward = min(max(rest - 24, 0), 26) if rest >= 24 + 12 else 0
        return {
            "index": index, "lanes": lanes, "op": rest - forward - (forward > 0), "us": time, "norm": norm,
            "shape": shape,
            "forward": forward,
        }  # fmt: skip

    def _lane_width(self) -> int:
        """Lanes of the rows around the window, in steps, so that columns do not jitter while scrolling."""
        top = self.scroll_offset.y // 32 * 32
        key = (top, self.size.height)
        if key not in self._widths:
            self._widths[key] = max(self.model.lane_width(top - 32, top + max(self.size.height, 1) + 32), 3)
        return self._widths[key]

    def heading(self, width: int) -> Spans:
        """Column titles, for the line above the rows."""
        if not self.model.total:
            return []
        columns = self.columns(width)
        text = f"bp{'#':>{columns['index']}}  {'lanes':<{columns['lanes']}} {'op':<{columns['op']}}"
        for name, title in (("us", "us"), ("norm", "‖g‖")):
            text += f" {title:>{columns[name]}}" if columns[name] else ""
        text += " shape".ljust(columns["shape"] + 1) if columns["shape"] else ""
        text += " forward" if columns["forward"] else ""
        return [(elide(text, width), "faint")]

    def line(self, row: int, width: int) -> Spans:
        model = self.model
        node = model.at(row)
        columns = self.columns(width)
        style = op_style(node)
        spans: Spans = [
            ("◆", "breakpoint") if node.breakpoints else ("'", "key") if node.index in self.marks else (" ", ""),
            ("▶", "here") if node.state == "here" else (" ", ""),
            (f"{node.index:>{columns['index']}}  ", "here" if node.state == "here" else "dim"),
            *lane_spans(model.lanes(row), node, columns["lanes"]),
            (" ", ""),
            *self._op(node, row, columns["op"], style),
        ]
        value = (
            "bad" if node.nonfinite else "opdone" if node.state == "done" else "op" if node.state == "here" else "faint"
        )
        if columns["us"]:
            spans.append((f" {duration(node.us, bare=True):>{columns['us']}}", value))
        if columns["norm"]:
            norm = "non-fin" if node.nonfinite and node.norm is None else figures.number(node.norm)
            mark = jump(model.change(node))
            spans.append((f"{mark + norm:>{columns['norm'] + 1}}", "warn" if mark else value))
        if columns["shape"]:
            shape = figures.shape(node.shape)
            spans.append((" " + elide(shape, columns["shape"]).ljust(columns["shape"]), value if shape else "faint"))
        if columns["forward"] and node.forward:
            where = figures.place_in(node.forward.file, node.forward.line, columns["forward"])
            spans.append((" " + where, "dim"))
        return spans

    def _op(self, node: GraphRow, row: int, width: int, style: str) -> Spans:
        """Op, folded leaves and stubs of cut edges, in exactly ``width`` cells."""
        lanes = self.model.lanes(row)
        visible = self.model.visible
        notes: list[tuple[str, str]] = []
        name = "leaf" if node.accumulate else short_op(node.name)
        room = width - len(name) - 2
        if node.accumulate and node.parameter:
            notes.append((elide_parameter("→" + node.parameter, room), "leaf"))
        leaves = leaf_text(self.model.leaves(node))
        if leaves:
            notes.append((elide_parameter(leaves, room), "leaf"))
        notes += [(f"⤓#{visible[target]}", "faint") for target in lanes.cut]
        notes += [(f"⤒#{visible[source]}", "faint") for source in lanes.arrives[:2]]
        if len(lanes.arrives) > 2:
            notes.append((f"+{len(lanes.arrives) - 2}", "faint"))
        spans: Spans = [(elide(name, width), style)]
        for text, note_style in notes:
            room = width - width_of(spans) - 2
            if room >= min(len(text), 5):
                spans.append(("  " + elide(text, room), note_style))
        spans.append((" " * (width - width_of(spans)), ""))
        return spans

    # ---- moving

    @property
    def selected(self) -> GraphRow | None:
        """The row under the cursor (of another graph, until ``lines_changed``, it may lie behind the last)."""
        lines = self.line_count()
        return self.model.at(min(self.cursor, lines - 1)) if lines else None

    def select_index(self, index: int, notify: bool = True, margin: int = 4) -> None:
        """Put the cursor on node ``index``."""
        if self.line_count():
            self.select(self.model.position(index), notify)
            self.reveal(self.cursor, margin)

    def go_to(self, index: int) -> None:
        """Put the cursor on node ``index``, unfolded if it is a folded leaf."""
        if index not in self.model.visible:
            self.model.toggle_leaves(index)
            self.lines_changed()
        self.select_index(index)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.tell_frame(self.subtitle_text())
        columns = self.columns(self.size.width)
        if columns != self._columns:  # there are more lanes here, or fewer
            self._columns = columns
            self.post_message(self.Resized(self))

    def action_neighbour(self, direction: int) -> None:
        """Go to a node that feeds this one (-1) or that it feeds (1): the nearest one, or back where the last such key
        came from."""
        row = self.selected
        choices = self._neighbours(row.index, direction) if row is not None else []
        if row is None or not choices:
            self.app.bell()
            return
        came, origin = self._walk
        self.select_index(origin if came == -direction and origin in choices else choices[0])
        self._walk = (direction, row.index)

    def action_sibling(self) -> None:
        """Go to the next of the nodes that the last ``h`` or ``l`` could have gone to."""
        direction, origin = self._walk
        choices = self._neighbours(origin, direction) if origin else []
        if len(choices) < 2 or self.index not in choices:
            self.app.bell()
            return
        self.select_index(choices[(choices.index(self.index) + 1) % len(choices)])
        self._walk = (direction, origin)

    def _neighbours(self, index: int, direction: int) -> list[int]:
        model = self.model
        if direction < 0:
            return model.feeders(index)
        row = model.rows.get(index)
        shown = set(model.visible)
        return [to for to in row.edges if to in shown] if row else []

    def select(self, row: int, notify: bool = True) -> None:
        self._walk = (0, 0)
        super().select(row, notify)

    def action_fold(self) -> None:
        """Show or fold the leaves of the selected node."""
        row = self.selected
        if row is not None and self.model.toggle_leaves(row.index):
            self.lines_changed()
            self.select_index(row.index, notify=False)
        else:
            self.app.bell()

    # ---- what keys ask of the panel with the focus

    def not_ahead(self) -> str:
        """Why the program cannot run to the node under the cursor; "" where it can."""
        row = self.selected
        if row is None:
            return "no node under the cursor: this stop has no graph"
        if row.state == "here":
            return f"#{row.index} is the current node: move the cursor to a later one, or s steps"
        return f"#{row.index} has run already: c continues to the next backward" if row.state == "done" else ""

    @property
    def index(self) -> int:
        """Of the node under the cursor; 0 for none."""
        row = self.selected
        return row.index if row is not None else 0

    def search(self, text: str, step: int) -> bool:
        """To the next node whose name, module, parameter or place has ``text``."""
        index = self.model.find(text, self.index, step)
        if index is not None:
            self.go_to(index)
        return index is not None

    def next_bad(self, step: int) -> bool:
        """To the next node with a non-finite gradient."""
        index = self.model.next_bad(self.index, step)
        if index is not None:
            self.select_index(index)
        return index is not None

    def toggle_mark(self) -> None:
        if self.index:
            self.marks ^= {self.index}
            self.refresh()

    def to_mark(self) -> bool:
        marks = sorted(self.marks)
        if marks:
            self.select_index(next((mark for mark in marks if mark > self.index), marks[0]))
        return bool(marks)

    def copied(self) -> str:
        return self.breakpoint_spec()

    def breakpoint_spec(self) -> str:
        return self.selected.unique_name if self.selected is not None else ""

    def delete_command(self) -> str:
        row = self.selected
        return f"delete {row.breakpoints[0]}" if row is not None and row.breakpoints else ""

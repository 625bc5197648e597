"""Lanes of the graph panel: which cell of which row holds which piece of which edge. Pure, no Textual; any thread.

As in ``git log --graph``: rows are nodes in execution order, an edge runs downward from a node to the producer it
feeds, in a lane (column) of its own, and edges to the same producer share a lane. An edge longer than ``LONG`` rows is
cut into two stubs, which keeps a graph with shared weights narrow (an RNN with 9,600 nodes: 16 lanes in place of 605,
0.2 ms a window in place of 12 ms). Rows are computed in chunks from checkpoints, so that a window costs its own rows
and not the graph's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

UP, DOWN, LEFT, RIGHT = 1, 2, 4, 8
LONG = 200  # rows
CHUNK = 64  # rows between checkpoints
_CACHED_CHUNKS = 64

GLYPHS = {
    0: " ",
    UP: "╵",
    DOWN: "╷",
    LEFT: "╴",
    RIGHT: "╶",
    UP | DOWN: "│",
    LEFT | RIGHT: "─",
    UP | LEFT: "╯",
    UP | RIGHT: "╰",
    DOWN | LEFT: "╮",
    DOWN | RIGHT: "╭",
    UP | DOWN | LEFT: "┤",
    UP | DOWN | RIGHT: "├",
    UP | LEFT | RIGHT: "┴",
    DOWN | LEFT | RIGHT: "┬",
    UP | DOWN | LEFT | RIGHT: "┼",
}
JOINT = "╪"  # a lane that is met in passing; a mere crossing is ┼

EMPTY = -1


@dataclass(frozen=True, slots=True)
class Lane:
    """An open edge: the row it goes to, and the number its colour is taken from."""

    target: int
    tint: int


Lanes = tuple["Lane | None", ...]


@dataclass(frozen=True, slots=True)
class LaneRow:
    """One row. ``cells`` are direction masks by column; ``tints`` colour the cell, ``bars`` what lies right of it
    (EMPTY: nothing)."""

    node: int
    cells: tuple[int, ...]
    tints: tuple[int, ...]
    bars: tuple[int, ...]
    joints: frozenset[int]
    cut: tuple[int, ...] = ()  # rows whose edge from here was cut
    arrives: tuple[int, ...] = ()  # rows whose edge to here was cut

    @property
    def width(self) -> int:
        return len(self.cells)

    def glyph(self, column: int) -> str:
        """What stands in ``column`` where no node does."""
        return JOINT if column in self.joints else GLYPHS[self.cells[column]]


class LaneLayout:
    """Lane rows of a graph of ``count`` rows; ``edges(row)`` gives the rows that ``row`` feeds (only later rows are
    drawn)."""

    def __init__(self, count: int, edges: Callable[[int], Sequence[int]], long: int = LONG) -> None:
        self._count = count
        self._edges = edges
        self._long = long
        self._checkpoints: list[tuple[Lanes, int]] = [((), 0)]  # lanes before row k*CHUNK, tints used so far
        self._chunks: dict[int, list[LaneRow]] = {}
        self._arrivals: dict[int, list[int]] = {}

    def row(self, row: int) -> LaneRow:
        """The cells of ``row`` (0 <= row < count)."""
        chunk = row // CHUNK
        if chunk not in self._chunks:
            for known in range(min(len(self._checkpoints) - 1, chunk), chunk + 1):
                rows = self._compute(known)
            if len(self._chunks) >= _CACHED_CHUNKS:
                del self._chunks[next(iter(self._chunks))]
            self._chunks[chunk] = rows
        return self._chunks[chunk][row - chunk * CHUNK]

    def width(self, first: int, last: int) -> int:
        """Most columns of any row in first..last (inclusive)."""
        rows = range(max(first, 0), min(last, self._count - 1) + 1)
        return max((self.row(row).width for row in rows), default=0)

    def _compute(self, chunk: int) -> list[LaneRow]:
        lanes, tints = self._checkpoints[chunk]
        rows = []
        for row in range(chunk * CHUNK, min((chunk + 1) * CHUNK, self._count)):
            drawn, lanes, tints = self._advance(row, lanes, tints)
            rows.append(drawn)
        if len(self._checkpoints) == chunk + 1:
            self._checkpoints.append((lanes, tints))
        return rows

    def _advance(self, row: int, before: Lanes, tints: int) -> tuple[LaneRow, Lanes, int]:
        """The cells of ``row``, the lanes below it, and the tints used."""
        incoming = [c for c, lane in enumerate(before) if lane is not None and lane.target == row]
        node = incoming[0] if incoming else _free_column(before, 0)
        after: list[Lane | None] = [None if lane is not None and lane.target == row else lane for lane in before]
        touched = set(incoming)
        cut = []
        for target in sorted(set(self._edges(row))):
            if not row < target < self._count:
                continue
            if target - row > self._long:
                cut.append(target)
                sources = self._arrivals.setdefault(target, [])
                if row not in sources:
                    sources.append(row)
                continue
            column = next((c for c, lane in enumerate(after) if lane is not None and lane.target == target), None)
            if column is None:
                column = _free_column(after, node)
                after.extend([None] * (column + 1 - len(after)))
                first = column == node and node < len(before) and before[node] is not None
                after[column] = Lane(target, before[node].tint if first else tints)  # type: ignore[union-attr]
                tints += not first
            touched.add(column)
        while after and after[-1] is None:
            after.pop()
        drawn = _draw(node, before, tuple(after), touched, tuple(cut), tuple(self._arrivals.get(row, ())), tints)
        return drawn, tuple(after), tints


def _free_column(lanes: Sequence[Lane | None], near: int) -> int:
    """The free column closest to ``near``; of two as close, the right one (so that lanes fan out the same way)."""
    for distance in range(len(lanes) + near + 1):
        for column in (near + distance, near - distance):
            if column >= 0 and (column >= len(lanes) or lanes[column] is None):
                return min(column, len(lanes)) if column > near else column
    return len(lanes)


def _draw(
    node: int,
    before: Lanes,
    after: Lanes,
    touched: set[int],
    cut: tuple[int, ...],
    arrives: tuple[int, ...],
    tints: int,
) -> LaneRow:
    width = max(len(before), len(after), node + 1)
    cells = [0] * width
    colours = [EMPTY] * width
    bars = [EMPTY] * width
    for column in range(width):
        above = before[column] if column < len(before) else None
        below = after[column] if column < len(after) else None
        cells[column] = (UP if above else 0) | (DOWN if below else 0)
        lane = below or above
        colours[column] = lane.tint if lane else EMPTY
    if colours[node] == EMPTY:
        colours[node] = tints
    first, last = min(touched | {node}), max(touched | {node})
    for column in range(first, last + 1):
        cells[column] |= (LEFT if column > first else 0) | (RIGHT if column < last else 0)
    # A bar takes the colour of the lane it leads to: the nearest touched column away from the node.
    for column in range(first, last):
        ends = [c for c in touched if c <= column] if column < node else [c for c in touched if c > column]
        end = max(ends) if column < node else min(ends)
        bars[column] = colours[end]
        if column not in touched and column != node and colours[column] == EMPTY:
            colours[column] = colours[end]
    every = UP | DOWN | LEFT | RIGHT
    joints = frozenset(c for c in touched if c != node and cells[c] == every)
    return LaneRow(node, tuple(cells), tuple(colours), tuple(bars), joints, cut, arrives)

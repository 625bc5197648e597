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
from typing import NamedTuple

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


class Lane(NamedTuple):
    """An open edge: the row it goes to, the number its colour is taken from. (A frozen dataclass costs 1 us more.)"""

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
            for known in range(len(self._checkpoints) - 1, chunk):
                self._compute(known, drawn=False)
            rows = self._compute(chunk, drawn=True)
            if len(self._chunks) >= _CACHED_CHUNKS:
                del self._chunks[next(iter(self._chunks))]
            self._chunks[chunk] = rows
        return self._chunks[chunk][row - chunk * CHUNK]

    def width(self, first: int, last: int) -> int:
        """Most columns of any row in first..last (inclusive)."""
        rows = range(max(first, 0), min(last, self._count - 1) + 1)
        return max((self.row(row).width for row in rows), default=0)

    def _compute(self, chunk: int, drawn: bool) -> list[LaneRow]:
        """The rows of a chunk ([] unless ``drawn``: 2 us a row in place of 13), and the checkpoint behind it."""
        lanes, tints = self._checkpoints[chunk]
        rows = []
        for row in range(chunk * CHUNK, min((chunk + 1) * CHUNK, self._count)):
            before = lanes
            lanes, tints, node, touched, cut = self._advance(row, before, tints)
            if drawn:
                arrives = tuple(self._arrivals.get(row, ()))
                rows.append(_draw(node, before, lanes, touched, tuple(cut), arrives, tints))
        if len(self._checkpoints) == chunk + 1:
            self._checkpoints.append((lanes, tints))
        return rows

    def _advance(self, row: int, before: Lanes, tints: int) -> tuple[Lanes, int, int, set[int], list[int]]:
        """From the lanes above ``row`` to those below it: (lanes, tints used, the node's column, columns that its edges
        touch, rows whose edge was cut)."""
        incoming = [c for c, lane in enumerate(before) if lane is not None and lane.target == row]
        node = incoming[0] if incoming else _free_column(before, 0)
        after: list[Lane | None] = [None if lane is not None and lane.target == row else lane for lane in before]
        touched = set(incoming)
        cut: list[int] = []
        targets = self._edges(row)
        for target in sorted(set(targets)) if len(targets) > 1 else targets:
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
                straight = before[node] if column == node and node < len(before) else None
                after[column] = Lane(target, tints if straight is None else straight.tint)
                tints += straight is None
            touched.add(column)
        while after and after[-1] is None:
            after.pop()
        return tuple(after), tints, node, touched, cut


def _free_column(lanes: Sequence[Lane | None], own: int) -> int:
    """The node's ``own`` column where it is free, so that chains run straight; else the leftmost that is free.

    That keeps a graph as narrow as the edges that are open at once: of 200 residual blocks 2 lanes, of a transformer of
    any depth 4. (With the free column closest to the node, each block moved one to the right: 201 and 402.)
    """
    if own >= len(lanes) or lanes[own] is None:
        return min(own, len(lanes))
    return next((column for column, lane in enumerate(lanes) if lane is None), len(lanes))


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

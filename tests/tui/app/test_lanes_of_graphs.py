"""Lanes of the graphs that people train: as narrow as the edges that are open at once, nothing drawn that is no edge,
and a dot in every row."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import pytest
from support.frameworks import case
from support.worlds import WORLDS

from adbg.engine.types import GraphRow
from adbg.tui.app.panels.graph import lane_spans
from adbg.tui.app.panels.lanes import DOWN, EMPTY, RIGHT, UP, LaneLayout, LaneRow
from adbg.tui.text.cells import plain, width_of

Edges = dict[int, list[int]]
LONG = 200


class Forward:
    """A forward pass as operators and what they read; ``edges`` are those of its backward, in the engines' order: of
    the nodes whose consumers have all run, the one made last."""

    def __init__(self) -> None:
        self.inputs: list[list[int]] = []

    def op(self, *inputs: int) -> int:
        self.inputs.append(list(inputs))
        return len(self.inputs) - 1

    def chain(self, start: int, length: int) -> int:
        for _ in range(length):
            start = self.op(start)
        return start

    def edges(self) -> Edges:
        waits = [0] * len(self.inputs)
        for inputs in self.inputs:
            for made in set(inputs):
                waits[made] += 1
        ready = [-made for made, count in enumerate(waits) if not count]
        order: list[int] = []
        while ready:
            order.append(-heapq.heappop(ready))
            for made in set(self.inputs[order[-1]]):
                waits[made] -= 1
                if not waits[made]:
                    heapq.heappush(ready, -made)
        row = {made: number for number, made in enumerate(order)}
        return {row[made]: sorted({row[source] for source in self.inputs[made]}) for made in order}


def residual(blocks: int) -> Edges:
    net = Forward()
    x = net.op()
    for _ in range(blocks):
        x = net.op(x, net.chain(x, 5))
    return net.edges()


def transformer(layers: int) -> Edges:
    net = Forward()
    x = net.op()
    for _ in range(layers):
        split = net.chain(x, 2)
        query, key, value = (net.chain(split, 3) for _ in range(3))
        scores = net.chain(net.op(query, net.op(key)), 3)
        x = net.op(x, net.chain(net.op(scores, value), 3))
        hidden = net.chain(x, 3)
        x = net.op(x, net.op(net.op(hidden, net.op(hidden))))
    return net.edges()


def unet(depth: int) -> Edges:
    net = Forward()
    x = net.op()
    skips = []
    for _ in range(depth):
        x = net.op(x, net.chain(x, 3))
        skips.append(x)
        x = net.op(x)
    for skip in reversed(skips):
        x = net.op(net.op(x), skip)
        x = net.op(x, net.chain(x, 2))
    return net.edges()


def experts(layers: int, count: int) -> Edges:
    net = Forward()
    x = net.op()
    for _ in range(layers):
        gate = net.chain(x, 2)
        outs = [net.op(net.chain(x, 3), gate) for _ in range(count)]
        joined = outs[0]
        for out in outs[1:]:
            joined = net.op(joined, out)
        x = net.op(x, joined)
    return net.edges()


def rows_of(edges: Edges) -> list[LaneRow]:
    layout = LaneLayout(len(edges), lambda row: edges[row], LONG)
    return [layout.row(row) for row in range(len(edges))]


def drawn(rows: list[LaneRow]) -> set[tuple[int, int]]:
    """The edges that a reader sees: from a dot along the bar to a joint or a corner, down the column to where a dot or
    a corner ends it, along the bar to that row's dot."""
    found = set()
    for number, row in enumerate(rows):
        for column in range(row.width):
            passed = row.glyph(column) in "│┼"  # by the bar, or not even by that
            if row.cells[column] & DOWN and (column == row.node or not passed) and joined(row, column):
                found.add((number, end_of(rows, number, column)))
        found |= {(number, target) for target in row.cut if number in rows[target].arrives}
    return found


def joined(row: LaneRow, column: int) -> bool:
    low, high = sorted((row.node, column))
    return all(row.cells[c] & RIGHT and row.bars[c] != EMPTY for c in range(low, high))


def end_of(rows: list[LaneRow], start: int, column: int) -> int:
    for number in range(start + 1, len(rows)):
        row = rows[number]
        assert row.cells[column] & UP, f"the lane from row {start} ends in nothing above row {number}"
        if column == row.node or not row.cells[column] & DOWN:
            assert joined(row, column)
            return number
    raise AssertionError(f"the lane from row {start} never ends")


def true_edges(edges: Edges) -> set[tuple[int, int]]:
    return {(row, target) for row, targets in edges.items() for target in targets}


def most_open(edges: Edges) -> int:
    """The most nodes that wait for a drawn edge between any two rows: no drawing with a lane each is narrower."""
    first: dict[int, int] = {}
    for row, target in sorted(true_edges(edges)):
        if target - row <= LONG:
            first.setdefault(target, row)
    return max(sum(start <= gap < target for target, start in first.items()) for gap in range(len(edges)))


GRAPHS: dict[str, Callable[[], Edges]] = {
    **{f"residual {n}": lambda n=n: residual(n) for n in (4, 12, 48, 200)},  # type: ignore[misc]
    **{f"transformer {n}": lambda n=n: transformer(n) for n in (4, 12, 48, 200)},  # type: ignore[misc]
    **{f"unet {n}": lambda n=n: unet(n) for n in (3, 6)},  # type: ignore[misc]
    "experts": lambda: experts(3, 20),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_drawn_is_what_the_graph_has_and_as_narrow_as_can_be(name: str) -> None:
    edges = GRAPHS[name]()
    rows = rows_of(edges)
    assert drawn(rows) == true_edges(edges)
    assert max(row.width for row in rows) == most_open(edges)


@pytest.mark.parametrize("make", [residual, transformer])
def test_depth_costs_no_lane(make: Callable[[int], Edges]) -> None:
    """Each residual connection moved the lanes one to the right: 48 layers of a transformer took 98."""
    widths = [max(row.width for row in rows_of(make(depth))) for depth in (4, 12, 48, 200)]
    assert widths == [widths[0]] * 4 and widths[0] <= 4


@pytest.mark.parametrize("width", [2, 3, 8, 9, 28])
def test_every_row_shows_its_own_dot(width: int) -> None:
    """Also of a graph that is wider than there is room: 20 branches."""
    rows = rows_of(experts(2, 20))
    assert max(row.node for row in rows) * 2 > width
    for state, glyph in (("todo", "○"), ("here", "▶"), ("done", "●")):
        for lanes in rows:
            spans = lane_spans(lanes, GraphRow(1, 1, "Op", "Op#1", state), width)
            assert width_of(spans) == width
            assert plain(spans).count(glyph) == 1


@pytest.fixture(params=["fake", case("torch", "torch"), case("paddle", "paddle")])
def world(request: pytest.FixtureRequest) -> Any:
    made = WORLDS[request.param]()
    yield made
    made.backend.uninstall()


@pytest.mark.parametrize("blocks", [4, 24])
def test_graphs_of_the_frameworks(world: Any, blocks: int) -> None:
    """Residual blocks as a framework builds them; its own word for what feeds what."""
    x = world.tanh(world.leaf([0.1, 0.2, 0.3, 0.4]))
    for _ in range(blocks):
        x = world.add(x, world.mul(world.tanh(world.scale(x, 0.5)), world.tanh(x)))
    graph = world.backend.graph_of([world.total(x)])
    order = list(graph.order())
    rows = {key: number for number, key in enumerate(order)}
    layout = LaneLayout(
        len(order), lambda row: [rows[edge.to] for edge in graph.edges(order[row]) if edge.to is not None], LONG
    )
    laid = [layout.row(row) for row in range(len(order))]
    addresses = [world.address(graph.node(key)) for key in order]
    own = {
        (addresses[rows[key]], address)
        for key in order
        for address in world.below(graph.node(key))
        if address is not None
    }
    assert {(addresses[source], addresses[target]) for source, target in drawn(laid)} == own
    assert max(row.width for row in laid) <= 4

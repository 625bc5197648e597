"""Lanes of the graph panel: every edge that is drawn connects its two nodes, on graphs nobody thought of."""

from __future__ import annotations

import dataclasses
import random

import pytest
from support.replay_agent import recorded

from adbg.engine.protocol import codec as wire
from adbg.engine.protocol import messages as protocol
from adbg.tui.app.panels.graph_model import GraphModel
from adbg.tui.app.panels.lanes import CHUNK, DOWN, EMPTY, LEFT, RIGHT, UP, LaneLayout, LaneRow


def random_graph(seed: int, rows: int, reach: int, most: int) -> dict[int, list[int]]:
    """Edges to later rows; every row but the last feeds at least one."""
    rng = random.Random(seed)
    edges: dict[int, list[int]] = {rows - 1: []}
    for row in range(rows - 1):
        targets = range(row + 1, min(rows, row + 1 + reach))
        edges[row] = sorted(rng.sample(targets, min(rng.randint(1, most), len(targets))))
    return edges


def laid_out(edges: dict[int, list[int]], long: int = 200) -> list[LaneRow]:
    layout = LaneLayout(len(edges), lambda row: edges[row], long)
    return [layout.row(row) for row in range(len(edges))]


def bar_joins(row: LaneRow, column: int) -> bool:
    """Whether an unbroken bar leads from the row's node to ``column``."""
    low, high = sorted((row.node, column))
    return all(row.cells[c] & RIGHT and row.cells[c + 1] & LEFT for c in range(low, high))


def connected(rows: list[LaneRow], source: int, target: int) -> bool:
    """Whether one lane leads straight from node to node: along the bar, down one column through no other node, along
    the bar."""
    for column in range(rows[source].width):
        if not (rows[source].cells[column] & DOWN and bar_joins(rows[source], column)):
            continue
        between = rows[source + 1 : target]
        straight = all(
            column < row.width and row.cells[column] & UP and row.cells[column] & DOWN and row.node != column
            for row in between
        )
        end = rows[target]
        if straight and column < end.width and end.cells[column] & UP and bar_joins(end, column):
            return True
    return False


@pytest.mark.parametrize(
    ("seed", "rows", "reach", "most"), [(1, 40, 4, 2), (2, 60, 9, 4), (3, 200, 30, 3), (4, 90, 60, 5), (5, 2, 1, 1)]
)
def test_every_edge_connects(seed: int, rows: int, reach: int, most: int) -> None:
    edges = random_graph(seed, rows, reach, most)
    drawn = laid_out(edges)
    for row, targets in edges.items():
        for target in targets:
            assert connected(drawn, row, target), f"{row} -> {target} is not drawn"


@pytest.mark.parametrize("seed", range(4))
def test_no_line_ends_in_nothing(seed: int) -> None:
    """A cell that points at a neighbour is answered by that neighbour, and nothing goes up from the first row or down
    from the last."""
    rows = laid_out(random_graph(seed, 120, 20, 3))
    for number, row in enumerate(rows):
        for column, cell in enumerate(row.cells):
            above = rows[number - 1].cells if number else ()
            below = rows[number + 1].cells if number + 1 < len(rows) else ()
            assert bool(cell & UP) == (column < len(above) and bool(above[column] & DOWN))
            assert bool(cell & DOWN) == (column < len(below) and bool(below[column] & UP))
            right = row.cells[column + 1] if column + 1 < len(row.cells) else 0
            assert bool(cell & RIGHT) == bool(right & LEFT)
            assert bool(cell & RIGHT) == (row.bars[column] != EMPTY)


def test_a_lane_belongs_to_one_target() -> None:
    """Two edges share a lane only when they go to the same node: lanes side by side lead to distinct nodes."""
    edges = random_graph(7, 80, 12, 3)
    rows = laid_out(edges)
    ends: dict[int, int] = {}  # column -> row where its lane ends
    for number in range(len(rows) - 1, -1, -1):
        row = rows[number]
        for column, cell in enumerate(row.cells):
            passes = bool(cell & UP) and bool(cell & DOWN) and column != row.node
            if cell & UP and not passes:
                ends[column] = number
        open_lanes = [ends[c] for c, cell in enumerate(row.cells) if cell & UP and c in ends]
        merging = sum(1 for end in open_lanes if end == number)
        assert len(set(open_lanes)) == len(open_lanes) - max(merging - 1, 0)


def test_a_long_edge_is_cut_into_two_stubs() -> None:
    edges = {row: [row + 1] for row in range(49)} | {49: []}
    edges[3] = [4, 45]
    rows = laid_out(edges, long=20)
    assert rows[3].cut == (45,)
    assert rows[45].arrives == (3,)
    assert max(row.width for row in rows) == 1
    assert max(row.width for row in laid_out(edges, long=100)) == 2


def test_any_row_first_is_the_same() -> None:
    """Random access through checkpoints gives what going from the top gives."""
    edges = random_graph(11, 5 * CHUNK, 40, 3)
    straight = laid_out(edges, long=30)
    order = list(range(len(edges)))
    random.Random(1).shuffle(order)
    layout = LaneLayout(len(edges), lambda row: edges[row], 30)
    for row in order:
        assert layout.row(row) == straight[row]


def test_a_wide_fan_stays_as_wide_as_its_open_edges() -> None:
    edges = {0: list(range(1, 9)), **{row: [9] for row in range(1, 9)}, 9: []}
    rows = laid_out(edges)
    assert rows[0].width == 8
    assert rows[-1].width == 1


def real_model() -> GraphModel:
    model = GraphModel()
    model.load(wire.from_json(protocol.GraphBody, recorded()["graph"]))
    return model


def test_a_real_transformer_is_narrow_and_its_leaves_fold() -> None:
    model = real_model()
    assert model.total == len(model.rows) == 204
    leaves = [row.index for row in model.rows.values() if row.accumulate]
    assert len(leaves) > 10
    assert not set(leaves) & set(model.visible)
    assert model.lane_width(0, len(model.visible)) <= 7
    feeder = next(row for row in model.rows.values() if leaves[0] in row.edges)
    assert [leaf.index for leaf in model.leaves(feeder)] == [leaves[0]]
    assert model.position(leaves[0]) == model.position(feeder.index)
    assert model.toggle_leaves(feeder.index)
    assert leaves[0] in model.visible
    assert model.at(model.position(leaves[0])).index == leaves[0]


def test_a_leaf_of_interest_is_not_folded() -> None:
    model = real_model()
    leaf = next(row.index for row in model.rows.values() if row.accumulate)
    model.place(leaf)
    assert leaf in model.visible
    assert model.rows[leaf].state == "here"
    assert model.rows[leaf - 1].state == "done"
    assert model.rows[leaf + 1].state == "todo"
    model.place(leaf + 2)
    assert leaf not in model.visible
    model.ran([protocol.NodeRan(leaf, 4.0, 1.5, True)])
    assert leaf in model.visible
    assert model.next_bad(1, 1) == leaf


def test_what_was_measured_of_a_node_stays_when_its_page_is_read_again() -> None:
    body = wire.from_json(protocol.GraphBody, recorded()["graph"])
    bare = dataclasses.replace(body, rows=[dataclasses.replace(row, norm=None, us=None) for row in body.rows])
    model = GraphModel()
    model.load(bare)
    model.ran([protocol.NodeRan(3, 4.0, 1.5, False), protocol.NodeRan(4, 5.0, None, True)])
    model.load(bare)
    assert (model.rows[3].norm, model.rows[3].us) == (1.5, 4.0) and model.rows[5].norm is None
    model.load(dataclasses.replace(bare, rows=[dataclasses.replace(row, norm=2.5) for row in bare.rows]))
    assert model.rows[3].norm == 2.5, "the newer figure"
    model.load(dataclasses.replace(bare, backward=bare.backward + 1))
    assert model.rows[3].norm is None and model.rows[3].us is None, "another graph"


def test_pages_that_are_missing_are_asked_for_from_the_selection_outwards() -> None:
    model = GraphModel()
    body = wire.from_json(protocol.GraphBody, recorded()["graph"])
    model.load(protocol.GraphBody(5, 1, 4200, 2100, [row for row in body.rows if row.index == 1]))
    assert model.pages == {0}
    assert model.missing(2100) == 2001
    assert model.missing(500) == 1001 or model.missing(500) == 2001
    model.pages.add(2)
    assert model.missing(2100) == 1001


def test_search_wraps_and_finds_modules_and_parameters() -> None:
    model = real_model()
    first = model.find("mm", 0, 1)
    assert first is not None
    assert "mm" in model.rows[first].unique_name.lower()
    assert model.find("head.weight", 1, 1) == next(r.index for r in model.rows.values() if r.parameter == "head.weight")
    assert model.find("no such thing", 1, 1) is None
    last = max(index for index, row in model.rows.items() if "mm" in row.unique_name.lower())
    assert model.find("mm", last, 1) == first

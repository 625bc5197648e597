"""The icicle: what each frame's width is, that rows fit into each other, and how long 100,000 frames take."""

from __future__ import annotations

import random
import re
import time

import pytest
from support.patience import patience

from adbg.profiles.report.flame import ROOT, Tree, at, layout
from adbg.profiles.report.model import SECONDS, Frame, Profile, Sample


def profile(stacks: dict[str, float]) -> Profile:
    """Of "a b c": weight, the outermost first."""
    names = sorted({name for stack in stacks for name in stack.split()})
    samples = tuple(
        Sample(tuple(map(names.index, stack.split())), weight, f"t{number % 2}")
        for number, (stack, weight) in enumerate(stacks.items())
    )
    return Profile(tuple(map(Frame, names)), samples, SECONDS)


def named(tree: Tree, rows: list[list]) -> list[list[tuple[str, int, int]]]:
    return [[(f.name if (f := tree.frame_of(n)) else "all", column, width) for n, column, width in row] for row in rows]


STACKS = {"a b": 30.0, "a c": 50.0, "d": 20.0, "a b e": 5.0, "a": 15.0, "d a": 0.5}


def test_widths_are_shares() -> None:
    tree = Tree(profile(STACKS))
    assert tree.weight[ROOT] == sum(STACKS.values()) == 120.5
    assert named(tree, layout(tree, 1205)) == [
        [("all", 0, 1205)],
        [("a", 0, 1000), ("d", 1000, 205)],
        [("c", 0, 500), ("b", 500, 350), ("a", 1000, 5)],
        [("e", 500, 50)],
    ]


def test_zoom_and_depth() -> None:
    tree = Tree(profile(STACKS))
    zoom = next(node for node in range(len(tree)) if (f := tree.frame_of(node)) and f.name == "b")
    rows = named(tree, layout(tree, 70, zoom))
    assert rows == [[("all", 0, 70)], [("a", 0, 70)], [("b", 0, 70)], [("e", 0, 10)]]
    assert named(tree, layout(tree, 70, zoom, depth=2, first=1)) == rows[1:3]
    found = layout(tree, 70, zoom)
    assert at(found, 3, 5) == found[3][0].node and at(found, 3, 20) is None and at(found, 9, 0) is None


def test_callers_below_and_one_thread() -> None:
    tree = Tree(profile(STACKS), inverted=True)
    first = {name: width for name, _, width in named(tree, layout(tree, 1205))[1]}
    assert first == {"c": 500, "b": 300, "d": 200, "a": 155, "e": 50}, "by self time"
    one = Tree(profile(STACKS), threads=["t0"])
    assert one.weight[ROOT] == 30 + 20 + 15


def test_what_a_search_finds_is_counted_once() -> None:
    tree = Tree(profile({"f g f": 10.0, "f": 5.0, "h": 5.0, "h f": 3.0}))
    found = tree.find(re.compile("^f$"))
    assert len(found) == 3 and tree.share(found) == 18.0


def random_tree(frames: int) -> Tree:
    """Stacks as recursive code has them; the tree has ``frames`` nodes or a few more."""
    chance = random.Random(7)
    samples = []
    seen = set()
    while len(seen) < frames:
        stack: tuple[int, ...] = ()
        for _ in range(chance.randint(3, 60)):
            stack = (*stack, chance.randint(0, 5) if chance.random() < 0.9 else chance.randint(0, 4999))
            seen.add(stack)
        samples.append(Sample(stack, chance.expovariate(1.0)))
    return Tree(Profile(tuple(Frame(f"f{i}") for i in range(5000)), tuple(samples), SECONDS))


@pytest.fixture(scope="module")
def large() -> Tree:
    return random_tree(100_000)


def test_rows_lie_within_the_rows_above(large: Tree) -> None:
    for width in (150, 1000):
        above: dict[int, tuple[int, int]] = {}
        for row in layout(large, width):
            taken = 0
            for node, column, across in row:
                assert across >= 1 and column >= taken
                taken = column + across
                left, right = above.get(large.parent[node], (0, width))
                assert left <= column and column + across <= right
            above = {node: (column, column + across) for node, column, across in row}


def test_nothing_of_a_cell_or_more_is_left_out(large: Tree) -> None:
    """Against a layout without shortcuts."""
    shown = {span.node for row in layout(large, 150) for span in row}
    wide = {node for node in range(len(large)) if large.weight[node] * 150 / large.weight[ROOT] >= 1.0 + 1e-6}
    assert wide <= shown and len(shown - wide) <= 2, "within rounding"


def full() -> Tree:
    """The most that 150x40 cells can hold: each is a frame, and more below."""
    samples = tuple(Sample(tuple(range(first * 700, first * 700 + 700)), 1.0) for first in range(150))
    return Tree(Profile(tuple(Frame(f"f{i}") for i in range(105_000)), samples, SECONDS))


def test_a_hundred_thousand_frames_are_laid_out_within_10_ms(large: Tree) -> None:
    for tree, spans in ((large, 10), (full(), 39 * 150 + 1)):
        assert len(tree) >= 100_000
        times = []
        for _ in range(15):
            begin = time.thread_time()  # a busy machine changes nothing
            rows = layout(tree, 150, depth=40)
            times.append(time.thread_time() - begin)
        assert sum(map(len, rows)) >= spans
        assert min(times) < patience(0.010), times


def test_a_profile_of_nothing() -> None:
    tree = Tree(Profile())
    assert named(tree, layout(tree, 80)) == [[("all", 0, 80)]]

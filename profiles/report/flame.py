"""The flame graph as an icicle: a tree of stacks, and where its frames lie in so many cells.

The tree is made once a profile; the layout, which every key of a screen asks for, visits only what is at least one
cell wide, since children are sorted by their weight.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from adbg.profiles.report.model import Frame, Profile
from adbg.profiles.report.tables import matches

ROOT = 0


class Tree:
    """Nodes are numbers: ``ROOT`` is everything. ``frame`` −1 at the root."""

    def __init__(self, profile: Profile, *, inverted: bool = False, threads: Iterable[str] | None = None) -> None:
        """``inverted``: callers below their functions; ``threads``: only these."""
        self.frames = profile.frames
        self.frame = [-1]
        self.parent = [-1]
        self.weight = [0.0]
        self.own = [0.0]
        self.children: list[list[int]] = [[]]
        wanted = None if threads is None else set(threads)
        index: dict[tuple[int, int], int] = {}
        frame, parent, weight, own = self.frame, self.parent, self.weight, self.own
        for stack, amount, thread in profile.samples:
            if wanted is not None and thread not in wanted:
                continue
            node = ROOT
            weight[ROOT] += amount
            for number in reversed(stack) if inverted else stack:
                key = (node, number)
                child = index.get(key)
                if child is None:
                    child = index[key] = len(frame)
                    frame.append(number)
                    parent.append(node)
                    weight.append(0.0)
                    own.append(0.0)
                    self.children.append([])
                    self.children[node].append(child)
                weight[child] += amount
                node = child
            own[node] += amount
        for children in self.children:
            if len(children) > 1:
                children.sort(key=weight.__getitem__, reverse=True)

    def __len__(self) -> int:
        return len(self.frame)

    def frame_of(self, node: int) -> Frame | None:
        """None for the root."""
        number = self.frame[node]
        return None if number < 0 else self.frames[number]

    def path(self, node: int) -> list[int]:
        """From the root to the node."""
        path = []
        while node >= 0:
            path.append(node)
            node = self.parent[node]
        return path[::-1]

    def find(self, pattern: re.Pattern[str]) -> set[int]:
        """Nodes whose function or place the pattern is found in."""
        numbers = {number for number, frame in enumerate(self.frames) if matches(frame, pattern)}
        return {node for node, number in enumerate(self.frame) if number in numbers}

    def share(self, nodes: set[int]) -> float:
        """The weight of these together, nothing counted twice: a node within another of them is part of it."""
        counted = 0.0
        inside = [False] * len(self.frame)
        for node in range(1, len(self.frame)):  # a parent's number is below its children's
            above = inside[self.parent[node]]
            if node in nodes and not above:
                counted += self.weight[node]
            inside[node] = above or node in nodes
        return counted


class Span(NamedTuple):
    """A node in a row of cells."""

    node: int
    column: int
    width: int


def layout(tree: Tree, width: int, zoom: int = ROOT, depth: int = 0, first: int = 0) -> list[list[Span]]:
    """Rows from the top: the nodes that lead to ``zoom`` in full width, ``zoom``, then what it calls.

    Frames narrower than one cell are left out, and with them what they call. ``depth``: so many rows at most, 0: all;
    ``first`` rows are left out above.
    """
    path = tree.path(zoom)
    rows = [[Span(node, 0, width)] for node in path]
    scale = width / tree.weight[zoom] if tree.weight[zoom] > 0 else 0.0
    weight, children = tree.weight, tree.children
    last = first + depth if depth else 1 << 30
    row = [(zoom, 0.0)]
    while row and len(rows) < last:
        below: list[tuple[int, float]] = []
        spans: list[Span] = []
        for node, left in row:
            for child in children[node]:
                size = weight[child] * scale
                if size < 1.0 - 1e-9:
                    break  # sorted: the others are narrower still
                # Ends are rounded, not widths: neighbours never overlap and a row never grows out of its parent.
                begin, end = int(left + 1e-9), int(left + size + 1e-9)
                spans.append(Span(child, begin, end - begin))
                below.append((child, left))
                left += size
        if not spans:
            break
        rows.append(spans)
        row = below
    return rows[first:last] if depth else rows[first:]


def at(rows: list[list[Span]], row: int, column: int) -> int | None:
    """The node in a cell."""
    if 0 <= row < len(rows):
        for span in rows[row]:
            if span.column <= column < span.column + span.width:
                return span.node
    return None

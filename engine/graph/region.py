"""A region of the forward pass and what a graph has of it: the nodes made there, their boundary, their leaves.

Runs on the parked thread or on the one that calls backward. Keys and texts only: no framework node is held. The marks
of a graph are kept beside it and die with it.
"""

from __future__ import annotations

import ast
import linecache
import os
import types
from collections.abc import Sequence
from dataclasses import dataclass, field

from adbg.engine.backends.base import CreationWatch, Graph
from adbg.engine.names import file_matches
from adbg.engine.places import Lines, parse_lines, parsed
from adbg.engine.types import SourceLine

INSIDE, BOUNDARY, LEAF = "inside", "boundary", "leaf"


@dataclass(frozen=True, slots=True)
class Region:
    """Lines ``first`` to ``last`` of ``file``, or (``made``) what one thread made while a ``with`` block ran."""

    file: str
    first: int
    last: int
    made: CreationWatch | None = field(default=None, compare=False)

    @property
    def text(self) -> str:
        return str(Lines(self.file, self.first, self.last))

    def has_line(self, line: SourceLine) -> bool:
        return self.first <= line.line <= self.last and file_matches(self.file, line.file)

    def holds(self, graph: Graph, key: int) -> bool:
        if self.made is not None:
            return self.made.holds(graph, key)
        return any(map(self.has_line, graph.forward_stack(key)[0]))


def parse_region(text: str) -> Region:
    """FILE:FIRST-LAST or FILE:LINE. Raises CommandError for anything else."""
    lines = parse_lines(text, "capture model.py:10-25")
    return Region(lines.file, lines.first, lines.last)


def block_region(frame: types.FrameType, made: CreationWatch | None) -> Region:
    """The ``with`` block that ``frame`` is entering. Its lines are the statement's own, read from the source; where the
    source cannot be read, its first line alone."""
    name, line = frame.f_code.co_filename, frame.f_lineno
    file = name if name.startswith("<") else os.path.abspath(name)
    try:
        tree = parsed("".join(linecache.getlines(name, frame.f_globals)))
    except (SyntaxError, ValueError):
        return Region(file, line, line, made)
    blocks = [node for node in ast.walk(tree) if isinstance(node, (ast.With, ast.AsyncWith))]
    around = [b for b in blocks if b.lineno <= line <= (b.body[0].lineno - 1 if b.body else b.lineno)]
    around = around or [b for b in blocks if b.lineno == line]
    if not around:
        return Region(file, line, line, made)
    block = max(around, key=lambda b: b.lineno)
    return Region(file, block.lineno, block.end_lineno or line, made)


@dataclass(frozen=True, slots=True)
class RegionEdge:
    """From slot ``slot`` of a consumer's outgoing gradients into slot ``to_slot`` of a producer."""

    consumer: int
    slot: int
    producer: int
    to_slot: int


@dataclass(frozen=True, slots=True)
class Selection:
    """``inside`` in execution order; ``edges`` are those with a node of ``inside`` at either end, in execution order.

    ``marks``: every node of the picture by key: inside, boundary (a neighbour) or leaf (a neighbour that accumulates).
    """

    inside: tuple[int, ...]
    edges: tuple[RegionEdge, ...]
    marks: dict[int, str]

    def count(self, mark: str) -> int:
        return sum(1 for found in self.marks.values() if found == mark)

    @property
    def writers(self) -> tuple[int, ...]:
        """Keys of the nodes whose outgoing gradients are those of ``edges``."""
        return tuple(dict.fromkeys(edge.consumer for edge in self.edges))


def select(graph: Graph, region: Region | None) -> Selection:
    """What ``graph`` has of ``region``; all of it for None. Costs the stacks of all nodes (torch: 1.2 us each)."""
    order = graph.order()
    if region is not None and region.made is None:
        graph.read_all_stacks()
    leaves = {key for key in order if graph.is_accumulate(key)}
    inside = tuple(key for key in order if key not in leaves and (region is None or region.holds(graph, key)))
    edges = _edges(graph, order, frozenset(inside))
    marks = dict.fromkeys(inside, INSIDE)
    for edge in edges:
        for key in (edge.consumer, edge.producer):
            marks.setdefault(key, LEAF if key in leaves else BOUNDARY)
    return Selection(inside, edges, marks)


def _edges(graph: Graph, order: Sequence[int], inside: frozenset[int]) -> tuple[RegionEdge, ...]:
    if not inside:
        return ()
    runs = frozenset(order)
    return tuple(
        RegionEdge(key, edge.slot, edge.to, edge.to_slot)
        for key in order
        for edge in graph.edges(key)
        if edge.to is not None and edge.to in runs and (key in inside or edge.to in inside)
    )


def mark(graph: Graph, selection: Selection) -> None:
    """Remember the marks for pages of the graph; another capture of the same graph replaces them."""
    graph.marks_kept = selection.marks


def marks_of(graph: Graph) -> dict[int, str]:
    """Mark by key of the last capture of that graph; {} without one."""
    return graph.marks_kept

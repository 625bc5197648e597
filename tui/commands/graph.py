"""Commands about the graph: neighbourhood, paths, and how a gradient came to be. networkx is imported on first use
only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from adbg.engine.errors import CommandError
from adbg.engine.types import GraphRow
from adbg.tui.commands.table import CommandResult, command, words_of
from adbg.tui.text.formatting import number_text, pad, place_text, source_text

if TYPE_CHECKING:
    from adbg.tui.debugger.debugger import Debugger

SHOWN_NEIGHBOURS = 8
LONG_PATH = 60  # nodes of a path shown in full; the middle of a longer one is left out


# ------------------------------------------------------------------ graph


@command("graph", group="graph", args="[NODE]", completes="node")
def graph(debugger: Debugger, argument: str) -> CommandResult:
    """Draw the neighbourhood of a node: who feeds it, and whom it feeds. Default: the node at hand, else the first.

    NODE is `#112`, a unique name, or a name that only one node has.
    """
    rows = debugger.view.graph_structure()
    if not rows:
        raise CommandError("there is no graph here", "stop in a backward first")
    begun = argument or debugger.view.need_stop().nearest
    index = debugger.view.find_node(argument) if begun else rows[0].index  # at no node: where a backward would begin
    body = debugger.view.node(index)
    by_index = {row.index: row for row in rows}
    left = [by_index[i] for i in body.consumers if i in by_index]
    right = [by_index[i] for i in body.producers if i in by_index]
    middle = by_index[index]
    value = {"node": index, "name": middle.unique_name, "fed_by": body.consumers, "feeds": body.producers}
    return CommandResult(neighbourhood_text(left, middle, right), value)


def neighbourhood_text(left: Sequence[GraphRow], middle: GraphRow, right: Sequence[GraphRow]) -> str:
    """Three columns of boxes: the nodes that feed ``middle``, itself in a double frame, the nodes it feeds."""
    boxes_left = _column(left, "─")
    boxes_right = _column(right, "─")
    centre = _box(middle, "═")
    height = max(len(boxes_left), len(centre), len(boxes_right))
    columns = [_centred(lines, height) for lines in (boxes_left, centre, boxes_right)]
    spot = (height - len(centre)) // 2 + 1  # the line of the centre's name
    out = []
    for number in range(height):
        arrow_in = "──▶" if number == spot and left else "   "
        arrow_out = "──▶" if number == spot and right else "   "
        out.append((columns[0][number] + arrow_in + columns[1][number] + arrow_out + columns[2][number]).rstrip())
    return "\n".join(out)


def _label(row: GraphRow) -> list[str]:
    mark = {"done": "●", "here": "▶", "todo": "○"}.get(row.state, " ")
    lines = [f"{mark} #{row.index} {row.unique_name}"]
    if row.shape is not None:
        lines.append(f"  {row.dtype}[{', '.join(map(str, row.shape))}]")
    if row.norm is not None:
        lines[-1] += f"  norm {number_text(row.norm)}"
    if row.parameter:
        lines.append(f"  → {row.parameter}")
    if row.nonfinite:
        lines.append("  NOT FINITE")
    return lines


def _box(row: GraphRow, stroke: str) -> list[str]:
    lines = _label(row)
    width = max(len(line) for line in lines)
    corners = "┌┐└┘│" if stroke == "─" else "╔╗╚╝║"
    top = corners[0] + stroke * (width + 2) + corners[1]
    bottom = corners[2] + stroke * (width + 2) + corners[3]
    return [top, *(f"{corners[4]} {line:<{width}} {corners[4]}" for line in lines), bottom]


def _column(rows: Sequence[GraphRow], stroke: str) -> list[str]:
    lines: list[str] = []
    for row in rows[:SHOWN_NEIGHBOURS]:
        lines += _box(row, stroke)
    if len(rows) > SHOWN_NEIGHBOURS:
        lines.append(f"… and {len(rows) - SHOWN_NEIGHBOURS} more")
    return lines


def _centred(lines: list[str], height: int) -> list[str]:
    width = max((len(line) for line in lines), default=0)
    top = (height - len(lines)) // 2
    blank = " " * width
    return [blank] * top + [pad(line, width) for line in lines] + [blank] * (height - top - len(lines))


# ------------------------------------------------------------------ path and why


def digraph(rows: Sequence[GraphRow]) -> Any:
    """The graph as a networkx DiGraph over indices; an edge points the way the gradient flows."""
    import networkx

    made = networkx.DiGraph()
    made.add_nodes_from(row.index for row in rows)
    made.add_edges_from((row.index, to) for row in rows for to in row.edges)
    return made


def path_lines(rows: dict[int, GraphRow], path: Sequence[int]) -> list[str]:
    """One line a node: index, name, module or parameter, shape, norm, forward line."""
    shown = list(path)
    if len(shown) > LONG_PATH:
        half = LONG_PATH // 2
        shown = [*shown[:half], 0, *shown[-half:]]
    cells = []
    for index in shown:
        if not index:
            cells.append(["", f"… {len(path) - LONG_PATH} more …", "", "", "", ""])
            continue
        row = rows[index]
        shape = "" if row.shape is None else f"{row.dtype}[{', '.join(map(str, row.shape))}]"
        norm = "" if row.norm is None else f"norm {number_text(row.norm)}{'  NOT FINITE' if row.nonfinite else ''}"
        cells.append(
            [f"#{index}", row.unique_name, row.parameter or row.module or "", shape, norm, place_text(row.forward)]
        )
    widths = [max(len(line[i]) for line in cells) for i in range(6)]
    return ["  " + "  ".join(pad(text, widths[i]) for i, text in enumerate(line)).rstrip() for line in cells]


@command("path", group="graph", args="A B", completes="node")
def path(debugger: Debugger, argument: str) -> CommandResult:
    """Print the shortest way by which the gradient flows from node A to node B."""
    import networkx

    words = words_of(argument)
    if len(words) != 2:
        raise CommandError("expected two nodes", "for example: path #1 #112")
    first, last = (debugger.view.find_node(word) for word in words)
    rows = {row.index: row for row in debugger.view.graph_rows()}
    flow = digraph(list(rows.values()))
    names = f"#{first} {rows[first].unique_name}", f"#{last} {rows[last].unique_name}"
    try:
        found: list[int] = networkx.shortest_path(flow, first, last)
    except networkx.NetworkXNoPath:
        if networkx.has_path(flow, last, first):
            raise CommandError(
                f"no gradient flows from {names[0]} to {names[1]}: it is the other way round", f"path #{last} #{first}"
            ) from None
        raise CommandError(f"no gradient flows from {names[0]} to {names[1]}, nor back") from None
    head = f"{names[0]} to {names[1]}: {len(found) - 1} steps"
    return CommandResult("\n".join([head, *path_lines(rows, found)]), found)


@command("why", group="graph", args="[NODE]", completes="node")
def why(debugger: Debugger, argument: str) -> CommandResult:
    """Tell how the gradient of a node came to be: the way from the root down to it, and what else flows in.

    Shows module, forward line and the norms seen so far of every node on the way: the shortest one, through the first
    non-finite gradient where there is one. The other ways are counted.
    """
    import networkx

    index = debugger.view.find_node(argument)
    rows = {row.index: row for row in debugger.view.graph_rows()}
    flow = digraph(list(rows.values()))
    before = networkx.ancestors(flow, index)
    roots = [i for i in sorted(before | {index}) if flow.in_degree(i) == 0]
    bad = [i for i in sorted(before | {index}) if rows[i].nonfinite]
    way = _telling_path(flow, roots, index, bad)
    node = rows[index]
    lines = [f"the gradient that flows into #{index} {node.unique_name}, from {rows[way[0]].unique_name} on:"]
    lines += path_lines(rows, way)
    feeders = sorted(flow.predecessors(index))
    if len(feeders) > 1:
        names = ", ".join(f"#{i} {rows[i].unique_name}" for i in feeders)
        lines.append(f"it is the sum of {len(feeders)} contributions: {names}")
    lines.append(f"{len(before)} of {len(rows)} nodes take part in it; {_ways(flow, before | {index}, roots, index)}")
    if bad:
        lines.append(
            f"first not finite on the way: #{bad[0]} {rows[bad[0]].unique_name} {place_text(rows[bad[0]].forward)}"
        )
    if node.forward is not None:
        lines.append(f"forward {place_text(node.forward)}")
        source = source_text(node.forward.file, node.forward.line, mark=False).strip()
        lines += [f"    {source}"] if source else []
    return CommandResult(
        "\n".join(lines), {"node": index, "path": way, "ancestors": len(before), "contributions": feeders}
    )


def _telling_path(flow: Any, roots: Sequence[int], index: int, bad: Sequence[int]) -> list[int]:
    """The shortest way from a root; through the first non-finite gradient where there is one."""
    import networkx

    through = bad[0] if bad else index
    first: list[int] = networkx.multi_source_dijkstra(flow, set(roots), through, weight=None)[1]
    rest: list[int] = networkx.shortest_path(flow, through, index)
    return first + rest[1:]


def _ways(flow: Any, nodes: set[int], roots: Sequence[int], index: int) -> str:
    """How many different ways lead from the roots to ``index``."""
    import networkx

    part = flow.subgraph(nodes)
    counts = dict.fromkeys(nodes, 0)
    for root in roots:
        counts[root] = 1
    for node in networkx.topological_sort(part):
        for to in part.successors(node):
            counts[to] += counts[node]
    ways = counts[index]
    if ways == 1:
        return "there is one way"
    return f"there are {ways:,} ways" if ways < 10**6 else f"there are about 10^{len(str(ways)) - 1} ways"

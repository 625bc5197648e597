"""Commands about the graph: the neighbours of a node, paths, and where a gradient comes from. The program finds them;
only the rows that are shown travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from adbg.engine.errors import CommandError
from adbg.engine.protocol import messages as protocol
from adbg.engine.types import GraphRow, NodeStop, Phase
from adbg.tui.commands.table import CommandResult, command, words_of
from adbg.tui.text.evidence import verdict_text
from adbg.tui.text.formatting import number_text, pad, place_text, source_text

if TYPE_CHECKING:
    from adbg.tui.debugger.debugger import Debugger

SHOWN_NEIGHBOURS = 8
LONG_PATH = 60  # nodes of a path shown in full; the middle of a longer one is left out


# ------------------------------------------------------------------ graph


def rows_of(debugger: Debugger, indices: Sequence[int]) -> dict[int, GraphRow]:
    """These rows of the graph, with their state now."""
    body: protocol.GraphBody = debugger.view.request(protocol.Graph(indices=list(dict.fromkeys(indices))))
    return {row.index: row for row in body.rows}


@command("graph", group="graph", args="[NODE]", completes="node")
def graph(debugger: Debugger, argument: str) -> CommandResult:
    """Draw a node with the nodes that feed it and the nodes that it feeds.

    NODE is `#112`, a unique name, a parameter, or a name that only one node has. Default: the current node; at the
    beginning of a backward, the first one to run.
    """
    index = debugger.view.find_node(argument) if argument else debugger.view.need_stop().nearest or 1
    body = debugger.view.node(index)
    left, right = body.consumers[:SHOWN_NEIGHBOURS], body.producers[:SHOWN_NEIGHBOURS]
    rows = rows_of(debugger, [*left, index, *right])
    text = neighbourhood_text(
        _column([rows[i] for i in left], len(body.consumers)),
        _box(rows[index], "═"),
        _column([rows[i] for i in right], len(body.producers)),
    )
    value = {"node": index, "name": rows[index].unique_name, "fed_by": body.consumers, "feeds": body.producers}
    return CommandResult(text, value)


def neighbourhood_text(left: list[str], centre: list[str], right: list[str]) -> str:
    """Three columns of boxes: the nodes that feed the middle one, itself in a double frame, the nodes it feeds."""
    height = max(len(left), len(centre), len(right))
    columns = [_centred(lines, height) for lines in (left, centre, right)]
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


def _column(rows: Sequence[GraphRow], total: int) -> list[str]:
    lines = [line for row in rows for line in _box(row, "─")]
    return lines if total <= len(rows) else [*lines, f"… and {total - len(rows)} more"]


def _centred(lines: list[str], height: int) -> list[str]:
    width = max((len(line) for line in lines), default=0)
    top = (height - len(lines)) // 2
    blank = " " * width
    return [blank] * top + [pad(line, width) for line in lines] + [blank] * (height - top - len(lines))


# ------------------------------------------------------------------ path and why


def shown_path(path: Sequence[int]) -> list[int]:
    """``path``, the middle of a long one replaced by one 0."""
    half = LONG_PATH // 2
    return [*path[:half], 0, *path[-half:]] if len(path) > LONG_PATH else list(path)


def path_lines(rows: dict[int, GraphRow], path: Sequence[int]) -> list[str]:
    """One line a node: index, name, module or parameter, shape, norm, forward line."""
    cells = []
    for index in shown_path(path):
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
    """Print the shortest path of the gradient from node A to node B."""
    words = words_of(argument)
    if len(words) != 2:
        raise CommandError("expected two nodes", "for example: path #1 #112")
    first, last = (debugger.view.find_node(word) for word in words)
    found = debugger.view.request(protocol.Path(last, first)).path
    rows = rows_of(debugger, [index for index in shown_path(found) if index])
    head = f"#{first} {rows[first].unique_name} to #{last} {rows[last].unique_name}: {len(found) - 1} steps"
    return CommandResult("\n".join([head, *path_lines(rows, found)]), found)


@command("why", group="graph", args="[NODE | alive [EXPR] | hang [SECONDS]]", completes="node")
def why(debugger: Debugger, argument: str) -> CommandResult:
    """Show where the gradient of a node comes from: the shortest path from the root, and what else contributes.

    `why hang` compares the ranks of the job instead, stopped or not, and says why they wait: it looks at each twice,
    SECONDS apart (1).

    `why alive EXPR` names the variables that keep a tensor, an object or a node (`#12`) alive, with the lines that put
    it there; `why alive` alone those that keep graphs of earlier iterations, as `losses.append(loss)` does.

    Each node on the path is shown with its module, its forward line and its gradient's norm, if known. The path leads
    through the node that made the first non-finite gradient, if there is one; the other paths are counted.
    """
    word, _, rest = argument.partition(" ")
    if word == "hang":
        from adbg.tui.commands.hang import why_hang

        return why_hang(debugger, rest.strip())
    if word == "alive":
        from adbg.tui.commands.memory.alive import why_alive

        return why_alive(debugger, rest)
    index = debugger.view.find_node(argument) or 1
    body: protocol.PathBody = debugger.view.request(protocol.Path(index))
    feeders = body.contributions
    wanted = [*shown_path(body.path), *feeders[:SHOWN_NEIGHBOURS], body.nonfinite, body.maker]
    rows = rows_of(debugger, [each for each in wanted if each])
    node = rows[index]
    lines = [f"the gradient that flows into #{index} {node.unique_name}, from {rows[body.path[0]].unique_name}:"]
    lines += path_lines(rows, body.path)
    lines += _parts_lines(rows, body)
    lines.append(f"{body.ancestors} of {body.total} nodes contribute to it; {_paths_text(body)}")
    lines += _origin_lines(debugger.view.need_stop(), rows, body)
    if node.forward is not None:
        lines.append(f"forward {place_text(node.forward)}")
        source = source_text(node.forward.file, node.forward.line, mark=False).strip()
        lines += [f"    {source}"] if source else []
    value = {"node": index, "path": body.path, "ancestors": body.ancestors, "contributions": feeders}
    value.update({"nonfinite": body.nonfinite or None, "maker": body.maker or None})
    return CommandResult("\n".join(lines), value)


def _parts_lines(rows: dict[int, GraphRow], body: protocol.PathBody) -> list[str]:
    """What each gradient that flows into the node is the sum of; nothing where there is one, of one part."""
    fed = [(slot, feeders) for slot, feeders in enumerate(body.slots) if feeders]
    if len(fed) == 1 and len(fed[0][1]) == 1:
        return []
    lines = []
    for slot, feeders in fed:
        shown = [i for i in feeders if i in rows][:SHOWN_NEIGHBOURS]
        names = ", ".join(f"#{i} {rows[i].unique_name}" for i in shown)
        more = f", … {len(feeders) - len(shown)} more" if len(feeders) > len(shown) else ""
        what = "it" if len(fed) == 1 else f"grad_outputs[{slot}]"
        many = f"is the sum of {len(feeders)} contributions:" if len(feeders) > 1 else "comes from"
        lines.append(f"{what} {many} {names}{more}")
    return lines


def _origin_lines(stop: NodeStop, rows: dict[int, GraphRow], body: protocol.PathBody) -> list[str]:
    """Who made the first numbers that are not finite, as the stop there tells it; who was given them first."""
    if not body.maker:
        if not body.nonfinite:
            return []
        return [f"the first non-finite gradient flows into {_row_text(rows[body.nonfinite])}: its maker is not known"]
    verdict = verdict_text(stop) if stop.index == body.maker and stop.phase is Phase.AFTER else ""
    if verdict:
        lines = [f"at #{body.maker}: {verdict}"]
    else:
        lines = [f"{_row_text(rows[body.maker])} is the first node that gave on a gradient that is not finite"]
    if body.nonfinite and body.nonfinite != body.maker:
        lines.append(f"it flows into {_row_text(rows[body.nonfinite])}")
    return lines


def _row_text(row: GraphRow) -> str:
    return f"#{row.index} {row.unique_name} {place_text(row.forward)}".rstrip()


def _paths_text(body: protocol.PathBody) -> str:
    if body.paths == 1:
        return "there is one path"
    return f"there are {body.paths:,} paths" if body.paths else f"there are about 10^{int(body.paths_log10)} paths"

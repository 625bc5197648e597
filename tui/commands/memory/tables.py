"""``info memory``: the process and its devices, what the graph retains, and the course over iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adbg.engine.errors import CommandError
from adbg.engine.protocol import messages as protocol
from adbg.engine.protocol.codec import to_json
from adbg.tui.commands.table import CommandResult, choice_of, count_of, table_result
from adbg.tui.text import memory as words
from adbg.tui.text.formatting import table_text

if TYPE_CHECKING:
    from adbg.tui.debugger.debugger import Debugger

PARTS = ("graph", "iterations", "nodes")
FEW, MANY = 5, 20  # holders that are shown


def memory_result(debugger: Debugger, argument: str) -> CommandResult:
    """``info memory [graph [N] | iterations [on|off] | nodes [on|off]]``."""
    word, _, rest = argument.strip().partition(" ")
    if not word:
        return _all(debugger)
    part = choice_of(word, PARTS, "info memory")
    if part == "graph":
        return _graph(debugger, count_of(rest.strip(), MANY))
    return _nodes(debugger, rest.strip()) if part == "nodes" else _iterations(debugger, rest.strip())


def _ask(debugger: Debugger, rows: int, watch: bool | None = None, by_node: bool | None = None) -> protocol.MemoryBody:
    body: protocol.MemoryBody = debugger.view.request(protocol.Memory(rows, watch, by_node))
    return body


def _switched(argument: str, what: str) -> bool | None:
    return choice_of(argument, ("on", "off"), f"info memory {what}") == "on" if argument else None


def _all(debugger: Debugger) -> CommandResult:
    body = _ask(debugger, FEW)
    rows = [(name, nbytes, round(nbytes / 2**20, 1)) for name, nbytes in words.figures(body) if nbytes is not None]
    columns = ("what", "bytes", "MiB")
    lines = [table_text(columns, rows), *words.notes(body)]
    if body.retained is not None:
        lines += _graph_lines(body.retained)
    if body.course.on or body.course.samples:
        lines += words.course_lines(body.course)
    value = [dict(zip(columns, row)) for row in rows]
    return CommandResult("\n".join(lines), value, columns, tuple(rows))


def _graph_lines(found: protocol.Retained) -> list[str]:
    cells = [words.retained_cells(found, row) for row in found.rows]
    table = [table_text(words.RETAINED_COLUMNS, cells)] if cells else []
    return [words.retained_head(found), *table, *words.retained_notes(found)]


def _graph(debugger: Debugger, count: int) -> CommandResult:
    debugger.view.need_stop()
    body = _ask(debugger, count)
    if body.retained is None:
        raise CommandError(body.why_none or "there is no graph here", "stop in a backward: `break SPEC`, `pause`")
    found = body.retained
    cells = [words.retained_cells(found, row) for row in found.rows]
    head = "\n".join([words.retained_head(found), *words.retained_notes(found)])
    return table_result(words.RETAINED_COLUMNS, cells, head, to_json(found))


def _nodes(debugger: Debugger, argument: str) -> CommandResult:
    found = _ask(debugger, 0, None, _switched(argument, "nodes")).nodes
    rows = [words.node_cells(each) for each in found.takers]
    return table_result(words.NODE_COLUMNS, rows, "\n".join(words.nodes_head(found)), to_json(found))


def _iterations(debugger: Debugger, argument: str) -> CommandResult:
    course = _ask(debugger, 0, _switched(argument, "iterations")).course
    return CommandResult("\n".join(words.course_lines(course)), to_json(course))

"""``info`` and its subjects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adbg.engine.errors import CommandError
from adbg.engine.protocol.codec import to_json
from adbg.tui.commands.table import CommandResult, choice_of, command, table_result
from adbg.tui.debugger.reports import stop_report
from adbg.tui.text.formatting import (
    compiled_text,
    contribution_lines,
    place_text,
    slots_text,
    source_text,
    stop_title,
)
from adbg.tui.text.quantities import change, duration, jump
from adbg.tui.text.starting_frames import fold_text, folded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adbg.engine.protocol.messages import NodeBody
    from adbg.engine.types import GraphRow
    from adbg.tui.debugger.debugger import Debugger

# As in gdb, although ambiguous; and as it is said in full.
_ALSO = {"b": "breakpoints", "t": "threads", "parameters": "params", "parameter": "params"}
# subject -> what it shows; those not handled here are answered by the agent (``adbg/info``)
SUBJECTS = {
    "node": "one node: gradients, saved tensors, attributes, where it was made (`info node #12`)",
    "graph": "the nodes of the current graph in execution order (`info graph 100`: from #100)",
    "why": "where the gradient of a node comes from (`info why #12`, the same as `why #12`)",
    "backward": "the backward calls that are running",
    "breakpoints": "breakpoints with their hits and matches",
    "threads": "the threads of the program, and where each is",
    "locals": "the variables of the selected frame, of a thread that runs too (`thread 2`)",
    "params": "the parameters, and at a stop their gradients; `info params fc*`, `by grad`, `per module` say more",
    "memory": "memory of the program and devices; `info memory graph`, `iterations [on]`, `nodes [on]` say more",
    "capabilities": "what adbg can do with the framework of the program",
    "names": "names that a breakpoint can use: nodes, modules, parameters, lines",
    "processes": "the processes of the program that adbg is connected to",
    "ranks": "the ranks of the job: state, backward, node, last collective, memory, and when a waiting one gives up",
    "findings": "what diagnosis has found so far (`diagnose`)",
    "display": "displays and watches",
    "stop": "this stop, as it was reported",
    "program": "the program, its state and its run directory",
}
GRAPH_ROWS = 40
UNMEASURED = "the gradients of these nodes were not measured: `record on` has those of the next backward measured"
REACH = 1000  # rows that one request may ask for


@command("info", "i", group="information", args="SUBJECT", completes="info")
def info(debugger: Debugger, argument: str) -> CommandResult:
    """Show information about SUBJECT; without SUBJECT, list the subjects.

    A subject may be abbreviated to a unique prefix: `i mem` is `info memory`. `info graph` gives the norm of the
    gradient into each node, and how many times that of the nodes that feed it this is (`factor`).
    `info params [PATTERN] [by [-]COLUMN] [per module [DEPTH]]` lists some parameters, the largest of a column first
    (`by grad`, `by ratio`; with `-` the smallest), or the totals of modules.
    """
    word, _, rest = argument.strip().partition(" ")
    if not word:
        return table_result(("subject", "shows"), [(f"info {name}", text) for name, text in SUBJECTS.items()])
    if word in ("profile", "profiles", "profilers"):
        raise CommandError(f"unknown subject {word!r}", "`profile` says how far one is, `profile list` which there are")
    subject = _ALSO.get(word) or choice_of(word, tuple(SUBJECTS), "subject")
    if subject == "node":
        return node_result(debugger, rest)
    if subject == "graph":
        return graph_result(debugger, rest)
    if subject == "why":
        from adbg.tui.commands.graph import why

        return why(debugger, rest)
    if subject == "memory":
        from adbg.tui.commands.memory.tables import memory_result

        return memory_result(debugger, rest)
    if subject == "params":
        from adbg.tui.commands.parameters.listing import params_result

        return params_result(debugger, rest)
    if rest:
        raise CommandError(f"`info {subject}` takes no argument")
    if subject == "breakpoints":
        from adbg.tui.commands.breakpoints import breakpoint_table

        return breakpoint_table(debugger)
    if subject == "locals":
        from adbg.tui.commands.threads import locals_result

        return locals_result(debugger)
    if subject == "display":
        from adbg.tui.commands.data import shown_table

        return shown_table(debugger)
    if subject == "processes":
        return process_table(debugger)
    if subject == "findings":
        from adbg.tui.commands.diagnosis.diagnose import known_result

        return known_result(debugger)
    if subject == "ranks":
        from adbg.tui.commands.ranks import rank_table

        return rank_table(debugger)
    if subject == "stop":
        stop = debugger.view.need_stop()
        return CommandResult(stop_report(debugger.view), to_json(stop))
    if subject == "program":
        return program_result(debugger)
    body = debugger.view.info(subject)
    value = [dict(zip(body.columns, row)) for row in body.rows] if body.columns else body.text
    return table_result(body.columns, body.rows, body.text, value)


def node_result(debugger: Debugger, argument: str) -> CommandResult:
    """``info node [NODE]``."""
    index = debugger.view.find_node(argument) if argument.strip() else 0
    if not index:
        debugger.view.need_stop()
    body = debugger.view.node(index)
    return CommandResult("\n".join(node_lines(body)), to_json(body))


def node_lines(body: NodeBody) -> list[str]:
    """One node in full."""
    node = body.node
    state = {"done": "ran", "here": "current", "todo": "not run yet"}.get(body.state, body.state)
    took = "" if body.us is None else f"  {duration(body.us, spaced=True)}"
    lines = [f"{node.unique_name}  #{body.index}  {state}{took}"]
    facts = {"module": node.module, "parameter": node.parameter, "sequence number": node.seq}
    lines += [f"  {name}: {value}" for name, value in facts.items() if value not in (None, "")]
    lines += [f"  {name}: {value}" for name, value in body.attributes.items() if value != facts.get(name)]
    if node.compiled:
        lines.append(f"  {compiled_text(node)}")
    lines += slots_text([*body.grad_outputs, *body.grad_inputs])
    lines += contribution_lines(body)
    if body.saved:
        lines.append("  saved: (in expressions: saved['NAME'], or saved[0], saved[1], ...)")
        lines += slots_text(body.saved, "    ")
    feeds = ", ".join(f"#{i}" for i in body.producers) or "nothing"
    fed = ", ".join(f"#{i}" for i in body.consumers) or "the root"
    lines.append(f"  fed by {fed}; feeds {feeds}")
    if body.forward:
        lines.append("  made by:")
        for number, count in folded([(line.file, line.function) for line in body.forward]):
            line = body.forward[number]
            lines.append(f"    {place_text(line) if count == 1 else f'… {fold_text(count)}'}")
            source = source_text(line.file, line.line, mark=False).strip() if number == 0 else ""
            lines += [f"        {source}"] if source else []
    elif body.forward_note:
        lines.append(f"  no forward stack: {body.forward_note}")
    return lines


def graph_result(debugger: Debugger, argument: str) -> CommandResult:
    """``info graph [FROM]``: a page around the current node."""
    here = debugger.view.graph_page(1, 1).here
    start = max(1, here - GRAPH_ROWS // 2)
    if argument:
        start = debugger.view.find_node(argument)
    whole = start + GRAPH_ROWS <= REACH  # only with all rows before are all known that feed one
    page = debugger.view.graph_page(1 if whole else start, start + GRAPH_ROWS - 1 if whole else GRAPH_ROWS)
    factors = _factors(page.rows) if whole else {}
    rows = []
    listed = [row for row in page.rows if row.index >= start]
    for row in listed:
        mark = {"done": "●", "here": "▶", "todo": "○"}.get(row.state, "")
        shape = "" if row.shape is None else f"{row.dtype}[{', '.join(map(str, row.shape))}]"
        norm = "nan/inf" if row.nonfinite else row.norm
        feeds = " ".join(f"#{i}" for i in row.edges)
        where = row.parameter or place_text(row.forward)
        stops = ",".join(map(str, row.breakpoints))
        rows.append(
            (
                mark,
                f"#{row.index}",
                row.unique_name,
                shape,
                norm,
                feeds,
                row.module,
                where,
                stops,
                factors.get(row.index, ""),
            )
        )
    last = listed[-1].index if listed else 0
    more = "more than " if page.truncated else ""
    head = f"backward {page.backward}: nodes #{start} to #{last} of {more}{page.total}"
    if last < page.total:
        head += f"; `info graph #{last + 1}` lists those after"
    elif start > 1:
        head += f"; `info graph #{max(1, start - GRAPH_ROWS)}` lists those before"
    head += f"\n{page.note}" if page.note else ""
    ran = [row for row in listed if row.state == "done"]
    if ran and all(row.norm is None for row in ran):
        head += f"\n{UNMEASURED}"
    columns = ("", "#", "node", "gradient", "norm", "feeds", "module", "made at", "breakpoints", "factor")
    value = {"total": page.total, "here": page.here, "backward": page.backward, "rows": to_json(listed)}
    return table_result(columns, rows, head, value)


def _factors(rows: Sequence[GraphRow]) -> dict[int, str]:
    """ "↓×0.02" of the nodes, by index: how many times the norm of what feeds them their own is."""
    fed: dict[int, list[float | None]] = {}
    for row in rows:
        for to in row.edges:
            fed.setdefault(to, []).append(row.norm)
    known = {row.index: None if row.nonfinite else change(row.norm, fed.get(row.index, [])) for row in rows}
    leaves = {row.index for row in rows if row.accumulate}  # a parameter's gradient is a sum over the batch: no jump
    ends = leaves | {row.index for row in rows if row.edges and leaves.issuperset(row.edges)}
    return {
        index: f"{'' if index in ends else jump(factor)}×{factor:.2g}"
        for index, factor in known.items() if factor is not None
    }  # fmt: skip


def process_table(debugger: Debugger) -> CommandResult:
    """``info processes``."""
    rows = []
    for process in debugger.processes:
        mark = "▸" if process is debugger.current else ""
        where = stop_title(process.stop) if process.stop is not None else _state_word(debugger)
        names = ", ".join(f"{f.name} {f.version}" for f in process.frameworks)
        rows.append((mark, process.number, process.info.pid, process.info.rank, names, where, process.info.host))
    if not rows:
        return CommandResult("no process of the program is connected", [])
    value = [{"number": r[1], "pid": r[2], "rank": r[3], "frameworks": r[4], "state": r[5], "host": r[6]} for r in rows]
    columns: tuple[str, ...] = ("", "num", "pid", "rank", "frameworks", "state", "host")
    shown = 7 if len({row[6] for row in rows}) > 1 else 6  # where all are on one host nobody asks for its name
    return table_result(columns[:shown], [row[:shown] for row in rows], "", value)


def _state_word(debugger: Debugger) -> str:
    """Of a process that does not stand still; one that was found has been running all the time."""
    return "running" if debugger.run.begun or not debugger.program.launched else "not started"


def program_result(debugger: Debugger) -> CommandResult:
    """``info program``."""
    facts = {
        "program": debugger.title,
        "state": debugger.state.value,
        "recorded in": debugger.program.run_dir or "nothing is recorded",
    }
    if debugger.program.joining:
        facts["other hosts"] = debugger.program.joining
    process = debugger.current
    if process is not None:
        facts["pid"] = str(process.info.pid)
        facts["python"] = process.info.python
        facts["working directory"] = process.info.cwd
        if process.info.host:
            facts["host"] = process.info.host
        if process.info.run_dir not in ("", debugger.program.run_dir):
            facts["records in"] = f"{process.info.run_dir} on {process.info.host}"
        facts["frameworks"] = ", ".join(f"{f.name} {f.version}" for f in process.frameworks) or "none imported yet"
    if debugger.run.exit_code is not None:
        facts["exit status"] = str(debugger.run.exit_code)
    width = max(len(name) for name in facts)
    return CommandResult("\n".join(f"{name:<{width}}  {value}" for name, value in facts.items()), facts)

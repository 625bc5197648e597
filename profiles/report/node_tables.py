"""The node timer's rows by line, phase, file or module. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from adbg.engine.errors import CommandError
from adbg.profiles.report.model import NODE, SECONDS, Builder, Frame, NodeTime, Profile
from adbg.profiles.report.node_groups import GAP, with_stacks
from adbg.profiles.report.tables import Grouping, Order, Table, table


def node_table(profile: Profile, grouping: Grouping, order: Order = Order.SELF) -> Table:
    """Self is the time in nodes, cumulative with the gaps before them, which are a row of their own; ``forward`` of the
    operators that made them. By phase these are a row.

    Raises:
        CommandError: nodes know nothing of that grouping.
    """
    forward: dict[Frame, float] = defaultdict(float)
    for node in profile.nodes:
        if (made := node.in_forward) is not None:
            forward[_group(node, grouping)] += made
    if grouping is Grouping.FUNCTION:
        return _with_forward(table(with_stacks(profile, kinds=True, forward=False), grouping, order), forward)
    builder = Builder()
    gap = builder.frame(Frame(GAP, side=NODE))
    for node in profile.nodes:
        frame = _group(node, grouping)
        builder.add([builder.frame(frame)], node.total)
        if node.gap > 0:
            builder.add([builder.frame(frame), gap], node.gap)
    if grouping is Grouping.PHASE and forward:
        builder.add([builder.frame(Frame("forward", side=NODE))], sum(forward.values()))
        forward.clear()
    found = table(Profile(builder.frames, builder.samples, SECONDS, lines="first"), Grouping.FUNCTION, order)
    return _with_forward(found, forward)


def _with_forward(found: Table, forward: dict[Frame, float]) -> Table:
    return replace(found, rows=tuple(replace(row, forward=forward.get(row.frame)) for row in found.rows))


def _group(node: NodeTime, grouping: Grouping) -> Frame:
    if grouping is Grouping.FUNCTION:
        return Frame(node.name, node.file, node.line, NODE)
    if grouping is Grouping.LINE:
        return Frame(
            f"{node.file.rpartition('/')[2]}:{node.line}" if node.file else "(no line)", node.file, node.line, NODE
        )
    if grouping is Grouping.FILE:
        return Frame(node.file.rpartition("/")[2] or "(no file)", node.file, 0, NODE)
    if grouping is Grouping.MODULE:
        return Frame(node.module or "(no module)", "", 0, NODE, node.module)
    if grouping is Grouping.PHASE:
        return Frame(node.phase, side=NODE)
    if grouping in (Grouping.SIDE, Grouping.ORIGIN):
        return Frame(NODE, side=NODE)
    raise CommandError(
        f"nodes cannot be shown by {grouping.value}", "the node timer knows them by function, line, file, module, phase"
    )

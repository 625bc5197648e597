"""The node timer's rows by line, phase, file or module. Pure."""

from __future__ import annotations

from adbg.engine.errors import CommandError
from adbg.profiles.report.model import NODE, SECONDS, Builder, Frame, NodeTime, Profile
from adbg.profiles.report.node_groups import GAP, with_stacks
from adbg.profiles.report.tables import Grouping, Order, Table, table


def node_table(profile: Profile, grouping: Grouping, order: Order = Order.SELF) -> Table:
    """Self is the time in nodes, cumulative with the gaps before them, which are a row of their own.

    Raises:
        CommandError: nodes know nothing of that grouping.
    """
    if grouping is Grouping.FUNCTION:
        return table(with_stacks(profile, kinds=True), grouping, order)
    builder = Builder()
    gap = builder.frame(Frame(GAP, side=NODE))
    for node in profile.nodes:
        frame = builder.frame(_group(node, grouping))
        builder.add([frame], node.total)
        if node.gap > 0:
            builder.add([frame, gap], node.gap)
    return table(Profile(builder.frames, builder.samples, SECONDS, lines="first"), Grouping.FUNCTION, order)


def _group(node: NodeTime, grouping: Grouping) -> Frame:
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

"""Rows of the node timer: each node, or those of one kind and line together; and as stacks. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from adbg.profiles.report.model import NODE, SECONDS, Builder, Frame, NodeTime, Profile
from adbg.profiles.report.verdict import split

GAP = "gap before it"  # a frame of a node: the time since the one before it ended
FORWARD = " forward"  # behind the name of a node: the operator that made it


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """``heaviest`` stands for all. ``kernel`` and ``launch``: None where they are not told apart."""

    heaviest: NodeTime
    count: int
    calls: int
    total: float
    usual: float  # of all calls, without the odd ones
    gap: float
    kernel: float | None
    launch: float | None
    forward: float | None = None  # of the operators that made them, as many calls; None: not measured
    untimed: int = 0  # nodes without

    @property
    def name(self) -> str:
        node = self.heaviest
        return node.name if self.count > 1 else node.unique_name or node.name

    @property
    def module(self) -> str:
        """The node's; of several the number of nodes says more."""
        return self.heaviest.module if self.count == 1 else ""


def node_groups(profile: Profile, single: bool = False) -> list[NodeGroup]:
    """Those that take most first. ``single``: each node by itself."""
    parts: dict[tuple[object, ...], list[NodeTime]] = defaultdict(list)
    for number, node in enumerate(profile.nodes):
        parts[(number,) if single else (node.name, node.phase, node.file, node.line)].append(node)
    rows = [_group(part, profile.launch_cost) for part in parts.values()]
    return sorted(rows, key=lambda row: -(row.usual + row.gap))


def _group(nodes: Sequence[NodeTime], launch_cost: float | None) -> NodeGroup:
    both = [split(node, launch_cost) for node in nodes]
    known = [each for each in both if each is not None]
    gap = sum(node.gap for node in nodes)
    forward = [each for node in nodes if (each := node.in_forward) is not None]
    whole = len(known) == len(nodes)
    return NodeGroup(
        max(nodes, key=lambda node: node.usual + node.gap),
        len(nodes),
        sum(node.calls for node in nodes),
        _sum(node.total for node in nodes),
        _sum(node.usual for node in nodes),
        gap,
        _sum(each[1] for each in known) if whole else None,
        _sum(each[0] for each in known) - gap if whole else None,
        _sum(forward) if forward else None,
        len(nodes) - len(forward),
    )


def _sum(numbers: Iterable[float]) -> float:
    return sum(numbers, 0.0)


def with_stacks(profile: Profile, kinds: bool = False, forward: bool = True) -> Profile:
    """The node timer's rows as stacks, where there are none: the parts of the module's path, then the node; a gap is a
    leaf of its own, and the operators of the ``forward`` have a root of theirs. Anything else as it is. ``kinds``:
    nodes of one kind and line as one function, for a comparison."""
    if profile.samples or not profile.nodes:
        return profile
    builder = Builder()
    for node in profile.nodes:
        name = node.name if kinds else node.unique_name or node.name
        module = "" if kinds else node.module
        parts = [part for part in node.module.split(".") if part]
        path = [builder.frame(Frame(part, side=NODE, module=".".join(parts[: n + 1]))) for n, part in enumerate(parts)]
        made = node.in_forward if forward else None
        if made is not None:
            root, leaf = Frame("forward", side=NODE), Frame(name + FORWARD, node.file, node.line, NODE, module)
            builder.add([builder.frame(root), *path, builder.frame(leaf)], made)
        stack = [builder.frame(Frame(node.phase, side=NODE)), *path]
        stack.append(builder.frame(Frame(name, node.file, node.line, NODE, module)))
        builder.add(stack, node.usual)
        if node.gap > 0:
            builder.add([*stack, builder.frame(Frame(GAP, node.file, node.line, NODE, module))], node.gap)
    return replace(profile, frames=builder.frames, samples=builder.samples, unit=SECONDS, calls=(), lines="first")

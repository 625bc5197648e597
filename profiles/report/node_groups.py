"""Rows of the node timer: each node by itself, or those of one kind that one line made, together. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from adbg.profiles.report.model import NodeTime, Profile
from adbg.profiles.report.verdict import split


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
    )


def _sum(numbers: Iterable[float]) -> float:
    return sum(numbers, 0.0)

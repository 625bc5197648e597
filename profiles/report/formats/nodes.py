"""The node timer's ``nodes.json``: time per node of the graph, and the iterations that it saw."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from adbg.profiles.report.formats.problem import damaged
from adbg.profiles.report.model import SECONDS, Iteration, NodeTime, Profile, Wait

_KIND = "profile of nodes"
VERSION = 1
_MICRO = 1e-6
# A node that computes launches several operators. On tensors of 2x2 numbers, whose kernels take next to nothing, 36 of
# 40 kinds of torch's took up to 12 times what a view takes (gelu 32, convolution 15, attention 13), all but two of
# Paddle's up to 6 times (concat 10).
_SEVERAL = {"torch": 12.0, "paddle": 6.0}
# These change how a tensor is seen: one operator, and no kernel.
_VIEWS = frozenset(
    {"TBackward0", "ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "TransposeBackward0"}
    | {"PermuteBackward0", "UnsqueezeBackward0", "SqueezeBackward0", "SqueezeBackward1", "AliasBackward0"}
    | {"Reshape2GradNode", "ReshapeGradNode", "FlattenGradNode", "SqueezeGradNode", "UnsqueezeGradNode"}
)
# One operator that does one thing to each number. On at most 1,024 these took 0.9 to 1.5 times what a view takes.
_FEW = 1024
_ELEMENTWISE = frozenset(
    {"ScaleGradNode", "AddGradNode", "SubtractGradNode", "MultiplyGradNode", "ReluGradNode", "TanhGradNode"}
    | {"SigmoidGradNode", "SquareGradNode", "ExpGradNode", "ReluBackward0", "TanhBackward0", "SigmoidBackward0"}
    | {"NegBackward0", "MulBackward0", "ExpBackward0"}
)


def is_kind(text: str) -> bool:
    return '"adbg_nodes"' in text[:200]


def read(path: Path) -> Profile:
    try:
        body = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise damaged(path, _KIND, str(error)) from None
    try:
        version = body["adbg_nodes"]
        if version != VERSION:
            raise damaged(path, _KIND, f"it is of version {version}", f"this adbg knows version {VERSION}")
        return _profile(body)
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
        raise damaged(path, _KIND, f"its fields are not the node timer's ({error!r})") from None


def _profile(body: Mapping[str, Any]) -> Profile:
    cost = body.get("cost") or {}
    nodes = tuple(map(_node, body["nodes"]))
    launch = cost.get("launch_us")
    framework = str(body.get("framework") or "")
    numbers = [row.get("numel") for row in body["nodes"]]
    launch_cost, by = (float(launch) * _MICRO, "") if launch is not None else launch_cost_of(nodes, framework, numbers)
    iterations = tuple(_iteration(number, row) for number, row in enumerate(body.get("iterations", ()), 1))
    waits = tuple(
        Wait(str(row["file"]), int(row["line"]), float(row["us"]) * _MICRO, int(row["calls"]))
        for row in body.get("data") or ()
    )
    unseen = tuple(str(name) for name in body.get("unseen") or ())
    meta: dict[str, object] = {"profiler": "node timer", "framework": framework, "cost": cost.get("how", "")}
    meta["unseen"] = unseen
    meta["launch"] = by
    forward = body.get("forward") or {}
    meta["forwards"] = int(forward.get("timed") or 0)
    if not meta["forwards"] and forward.get("why"):
        meta["forward"] = f"not measured: {forward['why']}"
    if body.get("part"):
        meta["part"] = True
    if lines := cost.get("by_line"):
        meta["measured"] = sum(int(line["hooked"]) for line in lines.values())
        meta["backwards"] = len(iterations)
    return Profile(unit=SECONDS, nodes=nodes, iterations=iterations, waits=waits, launch_cost=launch_cost, meta=meta)


def launch_cost_of(
    nodes: Sequence[NodeTime], framework: str, numbers: Sequence[int | None]
) -> tuple[float | None, str]:
    """What launching a node takes at most, and by what: "views", which compute nothing; where the graph has none, the
    "small" ones, which compute next to nothing: ``numbers`` says how many flow into each node. None without either."""
    views, small = [], []
    for node, count in zip(nodes, numbers):
        if node.phase == "backward" and node.calls:
            if node.name in _VIEWS:
                views.append(node.usual / node.calls)
            elif node.name in _ELEMENTWISE and isinstance(count, int) and 0 < count <= _FEW:
                small.append(node.usual / node.calls)
    if framework not in _SEVERAL or not (views or small):
        return None, ""
    return median(views or small) * _SEVERAL[framework], "views" if views else "small"


def _node(row: Mapping[str, Any]) -> NodeTime:
    calls = int(row["calls"])

    def part(name: str) -> float | None:
        value = row.get(name)
        return float(value) * _MICRO if value is not None else None

    return NodeTime(
        str(row["name"]),
        str(row.get("unique_name") or row["name"]),
        "backward",
        calls,
        float(row["total_us"]) * _MICRO,
        float(row.get("gap_us") or 0.0) * calls * _MICRO,
        part("kernel_us"),
        str(row.get("file") or ""),
        int(row.get("line") or 0),
        str(row.get("module") or ""),
        part("us"),
        part("forward_us"),
    )


def _iteration(number: int, row: Mapping[str, Any]) -> Iteration:
    def part(name: str) -> float | None:
        value = row.get(name)
        return float(value) * _MICRO if value is not None else None

    outside, disturbed = part("outside_us"), bool(row.get("disturbed", row.get("hooked")))
    if outside is None:  # of the first one only the backward call was seen
        return Iteration(number, part("backward_us") or 0.0, backward=part("backward_us"), disturbed=disturbed)
    total = (part("backward_us") or 0.0) + outside
    forward, backward, optimizer, data = (part(name + "_us") for name in ("forward", "backward", "optimizer", "data"))
    return Iteration(number, total, forward, backward, optimizer, data, disturbed)

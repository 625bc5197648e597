"""Scheduling-bound, kernel-bound or data-bound: which part of an iteration is the largest, by what was measured.

``data``: the iteration's time in the data loader. It bounds the step where it is more than either of the two others
would be if the rest of the iteration were as its nodes are. ``scheduling``: the time between nodes (Python, dispatch,
the engine's queue) and, within nodes, what launching them takes. ``kernel``: the rest of the nodes' time. Within a
node the two are told apart by the kernel's own time where the profiler knows it, else by what launching a node takes at
most, by nodes of the same run that compute nothing: what goes beyond it is the kernel's for certain. Where neither is
known, nothing is judged. A node's usual time counts, so that one call that was interrupted decides nothing.

A loader that reads ahead, in threads or processes of its own, uses the time in which adbg works at nodes: the batches
behind it are there at once. Such iterations do not count; where there are no others and the loader might be what the
step waits for, nothing is judged.

A sampled profile with native frames says the same by its innermost frames (``sampled.py``): in a kernel's loop, or on
the way there. What they do not tell is a part of its own, and nothing is judged where it could turn the verdict.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from adbg.profiles.report.model import NATIVE, SECONDS, Iteration, NodeTime, Profile
from adbg.profiles.report.sampled import Doing, Stacks

ITERATION_PARTS = ("forward", "backward", "optimizer", "data", "other")
_FEWEST = 50  # samples: with fewer a share is off by more than 14 % of the whole, two standard deviations
FEWEST_BACKWARDS = 4
# Batches that a loader may have read while adbg worked: Paddle's reads 2 ahead without workers, both 2 a worker.
_AHEAD = 3
_LESS = 0.7  # of the usual wait
_CLOSE = 0.1  # of all: two parts that differ by less may change places in another run
# Python that is counted with launching, as a part of the dispatcher's time: of small modules it is 0.6 (torch) and 1.2.
_PYTHON_OF_OPERATORS = 1.5


class Bound(str, enum.Enum):
    SCHEDULING = "scheduling-bound"
    KERNEL = "kernel-bound"
    DATA = "data-bound"


@dataclass(frozen=True, slots=True)
class LineTime:
    """A forward line and what its nodes take, of the part that the verdict names; ``calls`` as in ``Verdict.per``."""

    file: str
    line: int
    seconds: float
    calls: int
    forward: float | None = None  # of the operators that made them; None: not measured


@dataclass(frozen=True, slots=True)
class Verdict:
    bound: Bound
    parts: tuple[tuple[str, float], ...]  # (name, seconds), the largest first
    total: float
    lines: tuple[LineTime, ...]  # where most would be won
    basis: str  # "kernel": measured; "launch": by the launch cost; "samples"; "iterations": parts of these
    per: str = ""  # what all times are of: "backward", "iteration", or all that was measured

    @property
    def share(self) -> float:
        return self.parts[0][1] / self.total if self.total else 0.0


def judge(profile: Profile, lines: int = 3) -> Verdict | None:
    """None where the profile cannot say."""
    if profile.nodes:
        of_nodes = None if too_few(profile) else _of_nodes(profile.nodes, profile.launch_cost, lines)
        measured = profile.meta.get("measured")
        if of_nodes is not None and isinstance(measured, int):
            of_nodes = _of_one(of_nodes, measured)
        share = of_nodes.share if of_nodes else 1.0
        return _of_data(profile, share, lines) or (None if data_uncertain(profile, share) else of_nodes)
    return _of_samples(profile, lines)


def too_few(profile: Profile) -> bool:
    """Whether so few backwards were measured that another run might say another thing: of six iterations, which are
    two without the first, five runs said kernel-bound twice and scheduling-bound three times, by 58 to 100 %."""
    measured = profile.meta.get("measured")
    return bool(profile.meta.get("part")) or (isinstance(measured, int) and measured < FEWEST_BACKWARDS)


def _of_one(verdict: Verdict, backwards: int) -> Verdict:
    """Of one backward, where all is of so many."""
    lines = tuple(
        replace(
            line,
            seconds=line.seconds / backwards,
            calls=round(line.calls / backwards),
            forward=line.forward / backwards if line.forward is not None else None,
        )
        for line in verdict.lines
    )
    parts = tuple((name, seconds / backwards) for name, seconds in verdict.parts)
    return replace(verdict, parts=parts, total=verdict.total / backwards, lines=lines, per="backward")


def split(node: NodeTime, launch_cost: float | None) -> tuple[float, float] | None:
    """(scheduling, kernel) seconds of a node, its gap with the scheduling; None where they cannot be told apart."""
    if node.kernel is not None:
        kernel = min(node.kernel, node.usual)
    elif launch_cost is not None:
        kernel = max(node.usual - node.calls * launch_cost, 0.0)
    else:
        return None
    return node.gap + node.usual - kernel, kernel


def whole(iterations: Sequence[Iteration]) -> list[Iteration]:
    """Those that were seen from end to end; without adbg's own work, and what a loader won by it, where there are
    such."""
    rows = [row for row in iterations if row.total > (row.backward or 0.0)]
    plain = [row for row in rows if not row.disturbed]
    behind = _behind(iterations)
    settled = [row for row in plain if row.index not in behind]
    if len(settled) >= FEWEST_BACKWARDS and reads_ahead(iterations):
        return settled
    return plain or rows


def _behind(iterations: Sequence[Iteration], batches: int = _AHEAD) -> set[int]:
    """The numbers of those in front of which adbg worked, so many iterations back."""
    return {row.index + later for row in iterations if row.disturbed for later in range(1, batches + 1)}


def reads_ahead(iterations: Sequence[Iteration]) -> bool:
    """Whether there is less to wait for right behind adbg's own work."""
    disturbed = _behind(iterations, 1)
    behind = [row.data for row in iterations if row.data is not None and row.index in disturbed]
    others = [row.data for row in iterations if row.data is not None and row.index not in disturbed]
    return bool(behind) and bool(others) and sum(behind) / len(behind) < _LESS * sum(others) / len(others)


def data_uncertain(profile: Profile, share: float) -> bool:
    """Whether the step may wait for its data most, though the iterations seen do not show it. At most, the loader has
    used all of adbg's time."""
    rows = [row for row in profile.iterations if row.total > (row.backward or 0.0)]
    if not rows or not reads_ahead(rows) or _behind(rows).isdisjoint(row.index for row in whole(rows)):
        return False
    rest = median(row.total - (row.data or 0.0) for row in whole(rows))
    return sum(row.total for row in rows) / len(rows) - rest > rest * share


def medians(iterations: Sequence[Iteration]) -> tuple[float, dict[str, float]]:
    """Of whole iterations, and of each part of them that was measured: a first call, or another program, made some
    longer. They do not add up to the whole one's."""
    rows = whole(iterations)
    parts = {}
    for name in ITERATION_PARTS:
        known = [value for row in rows if (value := getattr(row, name)) is not None]
        if known:
            parts[name] = median(known)
    return median(row.total for row in rows) if rows else 0.0, parts


def _of_data(profile: Profile, share: float, lines: int) -> Verdict | None:
    """None unless the step waits for its data most. ``share``: of the rest, what takes most of it."""
    total, parts = medians(profile.iterations)
    data = parts.get("data")
    if not data or data <= (total - data) * share:
        return None
    rest = sorted(((name, seconds) for name, seconds in parts.items() if name != "data"), key=lambda part: -part[1])
    times = sum(row.total > (row.backward or 0.0) for row in profile.iterations)  # waits are of these
    waits = sorted(profile.waits, key=lambda wait: -wait.seconds)[:lines]
    found = tuple(LineTime(wait.file, wait.line, wait.seconds / times, round(wait.calls / times)) for wait in waits)
    return Verdict(Bound.DATA, (("data", data), *rest), total, found, "iterations", "iteration")


def _of_nodes(nodes: Sequence[NodeTime], launch_cost: float | None, lines: int) -> Verdict | None:
    scheduling = kernel = 0.0
    by_line: dict[str, dict[tuple[str, int], list[float]]] = {
        "scheduling": defaultdict(lambda: [0.0, 0]),
        "kernel": defaultdict(lambda: [0.0, 0]),
    }
    for node in nodes:
        both = split(node, launch_cost)
        if both is None:
            return None
        scheduling += both[0]
        kernel += both[1]
        if node.file:
            for name, seconds in zip(("scheduling", "kernel"), both):
                row = by_line[name][node.file, node.line]
                row[0] += seconds
                row[1] += node.calls
    basis = "kernel" if all(node.kernel is not None for node in nodes) else "launch"
    if abs(scheduling - kernel) < _CLOSE * (scheduling + kernel):
        return None
    found = _verdict({"scheduling": scheduling, "kernel": kernel}, by_line, lines, basis)
    forward: dict[tuple[str, int], float] = defaultdict(float)
    for node in nodes:
        if (made := node.in_forward) is not None:
            forward[node.file, node.line] += made
    if found is None or not forward:
        return found
    return replace(found, lines=tuple(replace(row, forward=forward.get((row.file, row.line))) for row in found.lines))


def _verdict(
    parts: dict[str, float], by_line: dict[str, dict[tuple[str, int], list[float]]], lines: int, basis: str
) -> Verdict | None:
    ordered = tuple(sorted(parts.items(), key=lambda item: -item[1]))
    total = sum(parts.values())
    if total <= 0:
        return None
    bound = Bound(f"{ordered[0][0]}-bound")
    found = [
        LineTime(file, line, seconds, int(calls))
        for (file, line), (seconds, calls) in by_line.get(ordered[0][0], {}).items()
        if seconds > 0
    ]
    found.sort(key=lambda line: -line.seconds)
    return Verdict(bound, ordered, total, tuple(found[:lines]), basis)


def _of_samples(profile: Profile, lines: int) -> Verdict | None:
    """By where samples are innermost. Needs native frames of most stacks, and enough samples. What is unknown may be of
    any part, and decides nothing: where it could, nothing is judged. Python between operators may be theirs or work of
    the program's own: it is counted with the launching as far as it is of its size, and makes nothing kernel-bound."""
    total = profile.total
    if profile.unit != SECONDS or not profile.period:
        return None
    known = [frame.side == NATIVE and bool(frame.module) for frame in profile.frames]
    if sum(weight for stack, weight, _ in profile.samples if stack and known[stack[-1]]) < total / 2:
        return None
    stacks = Stacks(profile.frames)
    users = [frame.origin == "python" and bool(frame.file) for frame in profile.frames]
    parts = {each.value: 0.0 for each in Doing if each is not Doing.NONE}
    by_line: dict[str, dict[tuple[str, int], list[float]]] = {name: defaultdict(lambda: [0.0, 0]) for name in parts}
    for stack, weight, _ in profile.samples:
        doing = stacks.of(stack)
        if doing is Doing.NONE:
            continue
        parts[doing.value] += weight
        user = next((index for index in reversed(stack) if users[index]), None)
        if user is not None:
            row = by_line[doing.value][profile.frames[user].file, profile.frames[user].line]
            row[0] += weight
            row[1] += round(weight / profile.period)
    if sum(parts.values()) < _FEWEST * profile.period * 0.999 or not _certain(parts):
        return None
    if parts["python"] <= _PYTHON_OF_OPERATORS * parts["scheduling"]:
        parts["scheduling"] += parts.pop("python")
        for place, (seconds, samples) in by_line.pop("python").items():
            by_line["scheduling"][place][0] += seconds
            by_line["scheduling"][place][1] += samples
    return _verdict({name: seconds for name, seconds in parts.items() if seconds}, by_line, lines, "samples")


def _certain(parts: Mapping[str, float]) -> bool:
    """Whether one of the parts is the largest, wherever the unknown belongs."""
    kernel, scheduling, data, python = (parts[name] for name in ("kernel", "scheduling", "data", "python"))
    unknown = parts["unknown"]
    if kernel > max(scheduling + python, data) + unknown or data > max(scheduling + python, kernel) + unknown:
        return True
    return scheduling > max(kernel, data) + unknown and python <= _PYTHON_OF_OPERATORS * scheduling

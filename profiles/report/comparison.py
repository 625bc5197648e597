"""Two profiles made fit to be subtracted: of one iteration each where their numbers differ, and with one name for the
files of a copy in another folder. Pure."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, replace

from adbg.engine.errors import CommandError
from adbg.profiles.report.formats.amounts import fact
from adbg.profiles.report.model import Profile
from adbg.profiles.report.tables import comparable


@dataclass(frozen=True, slots=True)
class Pair:
    """``shares``: of each total, for two that have no common unit. ``rounds``: each was divided by as many iterations,
    () where it was not. ``notes``: what speaks against comparing them as they are."""

    before: Profile
    after: Profile
    shares: bool
    rounds: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def paired(before: Profile, after: Profile) -> Pair:
    """Raises CommandError for two that have no row in common."""
    if _of_nodes(before) != _of_nodes(after):
        raise CommandError(
            "one profile is of nodes, the other of functions: they have no row in common",
            "compare two of one profiler: adbg profile --with nodes …",
        )
    before = _same_files(before, after)
    notes = []
    tools = [fact(each.meta.get("profiler")) for each in (before, after)]
    if all(tools) and tools[0] != tools[1]:
        notes.append(f"made by {tools[0]} and by {tools[1]}: what they cost and what they see differs")
    shares = not comparable(before, after)
    rounds = rounds_of(before), rounds_of(after)
    if shares or rounds[0] == rounds[1]:
        return Pair(before, after, shares, (), tuple(notes))
    if all(rounds):
        return Pair(_divided(before, rounds[0]), _divided(after, rounds[1]), shares, rounds, tuple(notes))
    told = [f"of {count} iterations" if count else "of an unknown number" for count in rounds]
    notes.append(f"one is {told[0]}, the other {told[1]}: their whole times are compared")
    return Pair(before, after, shares, (), tuple(notes))


def rounds_of(profile: Profile) -> int:
    """Iterations that were measured, 0 where that is not known; of nodes those that were run with hooks."""
    if profile.nodes:
        return max((node.calls for node in profile.nodes), default=0)
    told = profile.meta.get("iterations")
    return told if isinstance(told, int) and told > 0 else 0


def _of_nodes(profile: Profile) -> bool:
    return bool(profile.nodes) and not profile.samples


def _divided(profile: Profile, count: int) -> Profile:
    return replace(
        profile,
        samples=tuple(sample._replace(weight=sample.weight / count) for sample in profile.samples),
        calls=tuple(
            replace(
                call,
                own=call.own / count,
                cumulative=call.cumulative / count,
                callers=tuple(
                    row._replace(own=row.own / count, cumulative=row.cumulative / count) for row in call.callers
                ),
            )
            for call in profile.calls
        ),
        nodes=tuple(replace(node, total=node.total / count, gap=node.gap / count) for node in profile.nodes),
    )


def _same_files(before: Profile, after: Profile) -> Profile:
    """``before`` with the names of ``after`` for files that only one of the two has, where a name without its folder
    stands for one on each side: a script and its mended copy."""
    files = [
        {frame.file for frame in each.frames} | {node.file for node in each.nodes} | {row.file for row in each.waits}
        for each in (before, after)
    ]
    old, new = (_by_name(files[side] - files[1 - side]) for side in (0, 1))
    moved = {
        paths[0]: new[name][0]
        for name, paths in old.items()
        if len(paths) == 1 and len(new.get(name, ())) == 1 and name != "__init__.py"
    }
    if not moved:
        return before
    return replace(
        before,
        frames=tuple(replace(frame, file=moved.get(frame.file, frame.file)) for frame in before.frames),
        nodes=tuple(replace(node, file=moved.get(node.file, node.file)) for node in before.nodes),
        waits=tuple(replace(wait, file=moved.get(wait.file, wait.file)) for wait in before.waits),
    )


def _by_name(files: set[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for file in files:
        if os.path.isabs(file):
            found[os.path.basename(file)].append(file)
    return found

"""What /proc says of a process: an attach that was undone must leave it as it was. No word of adbg's own is asked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Census:
    """``pages``: executable memory without a file, of which a program has none of its own (but the kernel's)."""

    threads: frozenset[int]
    descriptors: dict[int, str]
    pages: frozenset[str]
    mappings: int
    tracer: int
    resident: int  # bytes


def census(pid: int) -> Census:
    """Raises OSError when the process is gone."""
    root = Path(f"/proc/{pid}")
    descriptors = {}
    for name in os.listdir(root / "fd"):
        try:
            descriptors[int(name)] = os.readlink(root / "fd" / name)
        except OSError:
            continue  # closed meanwhile
    lines = (root / "maps").read_text().splitlines()
    parts = [line.split(None, 5) for line in lines]
    pages = frozenset(part[0] for part in parts if "x" in part[1] and not (part[5:] and part[5].startswith(("/", "["))))
    status = dict(line.split(":\t", 1) for line in (root / "status").read_text().splitlines() if ":\t" in line)
    return Census(
        threads=frozenset(int(name) for name in os.listdir(root / "task")),
        descriptors=descriptors,
        pages=pages,
        mappings=len(lines),
        tracer=int(status["TracerPid"]),
        resident=int(status["VmRSS"].split()[0]) * 1024,
    )


def left_behind(before: Census, after: Census) -> list[str]:
    """What is there after and was not before, or the other way round, in words; [] for nothing."""
    found = []
    if after.tracer:
        found.append(f"traced by process {after.tracer}")
    if before.threads != after.threads:
        found.append(f"threads: {len(before.threads)} before, {len(after.threads)} after")
    if before.descriptors != after.descriptors:
        was, now = before.descriptors, after.descriptors
        changed = sorted(n for n in {*was, *now} if was.get(n) != now.get(n))
        found.append("descriptors " + ", ".join(f"{n}: {was.get(n, '-')} → {now.get(n, '-')}" for n in changed[:5]))
    if more := after.pages - before.pages:
        found.append(f"executable pages {', '.join(sorted(more))}")
    return found

"""``python -m tests.stress.attach``: attach to every kind of target many times, and see what it costs and breaks.

    python -m tests.stress.attach [--attaches 50] [--target WORD]... [--python PATH]... [--only-here] [--write]

Each attach is: examine, enter, the agent's hello, detach, and a look at /proc at what is left. Ten attaches go to one
process; then it ends, and its result is compared with that of a process of its own that nobody attached to. The table
is printed as Markdown; ``--write`` puts it into README.md and docs/attach.md too. Exit status 1 when an attach failed
or left damage.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from . import catalog, table
from .attaching import Attached, attach_and_detach
from .catalog import Kind
from .running import Damage, Running, witness

PER_PROCESS = 10  # attaches


@dataclass(slots=True)
class Row:
    """What came of all attaches to one kind of target, under one Python."""

    target: str
    python: str
    asked: int
    holds_gil: bool = False
    hello: list[float] = field(default_factory=list)  # seconds
    first: list[float] = field(default_factory=list)  # of them, those of the first attach to each process
    gone: list[float] = field(default_factory=list)
    ways: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    processes: int = 0

    def take(self, attached: Attached, first: bool = False) -> None:
        if attached.error:
            self.failures.append(attached.error)
        else:
            self.first += [attached.hello] if first else []
            self.hello.append(attached.hello)
            self.gone.append(attached.gone)
            self.ways[attached.way] += 1
        self.damage += attached.left

    @property
    def median(self) -> float:
        return statistics.median(self.hello) if self.hello else 0.0


def measure(kind: Kind, python: str, attaches: int, per_process: int = PER_PROCESS) -> Row:
    """All attaches to one kind of target."""
    row = Row(kind.name, catalog.version(python), attaches, kind.holds_gil)
    left = attaches
    while left > 0:
        turn = min(left, per_process)
        left -= turn
        row.processes += 1
        try:
            with Running(kind, python) as target:
                for number in range(turn):
                    row.take(attach_and_detach(target.pid, kind.steady), first=number == 0)
                    target.poke()
                steps, digest = target.end()
            if witness(kind, python, steps) != digest:
                row.damage.append(f"another result after {steps} steps")
        except Damage as damage:
            row.damage.append(str(damage))
        except OSError as error:
            row.damage.append(f"the process is gone: {error}")
    return row


def choose(words: Sequence[str], pythons: Sequence[str], only_here: bool) -> list[tuple[Kind, str]]:
    """(kind, Python) of all that is to be measured; what cannot be is said."""
    wanted = [kind for kind in catalog.KINDS if not words or any(word in kind.name for word in words)]
    chosen = []
    for kind in wanted:
        python = catalog.python_of(kind.framework)
        if python:
            chosen.append((kind, python))
        else:
            print(f"{kind.name}: {kind.framework} is not installed here", file=sys.stderr)
    if not only_here:
        for python in catalog.other_pythons(pythons):
            chosen += [(kind, python) for kind in wanted if kind.name in catalog.VERSIONED]
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.attach", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--attaches", type=int, default=50, metavar="N", help="of each target (default: 50)")
    parser.add_argument("--target", action="append", default=[], metavar="WORD", help="only those with it in the name")
    parser.add_argument("--python", action="append", default=[], metavar="PATH", help="another Python to try")
    parser.add_argument("--only-here", action="store_true", help="no other Pythons")
    parser.add_argument("--write", action="store_true", help="put the tables into README.md and docs/attach.md")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all that was measured")
    options = parser.parse_args()
    rows = []
    started, load = time.monotonic(), os.getloadavg()[0]
    for kind, python in choose(options.target, options.python, options.only_here):
        row = measure(kind, python, options.attaches)
        rows.append(row)
        print(table.line(row), file=sys.stderr, flush=True)
    loads = (load, os.getloadavg()[0])
    if options.json:
        options.json.write_text(json.dumps([{**asdict(row), "ways": dict(row.ways)} for row in rows], indent=1) + "\n")
    print(table.whole(rows, loads))
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    if options.write:
        table.write(catalog.ROOT, rows, loads)
    return 1 if any(row.failures or row.damage for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

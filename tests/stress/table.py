"""What was measured, as Markdown, and into the pages that show it."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .attach import Row

WITHIN = 1.0  # seconds that the median hello may take, where the GIL is not held
BEGIN, END = "<!-- attach stress, made by python -m tests.stress.attach --write -->", "<!-- /attach stress -->"
HEAD = "| target | Python | got in | first | median | slowest | gone after | way | damage |"
RULE = "|---|---|---|---|---|---|---|---|---|"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"


def cells(row: Row) -> list[str]:
    late = row.median > WITHIN and not row.holds_gil
    median = f"**{_ms(row.median)}**" if late else _ms(row.median)
    got_in = f"{len(row.hello)} of {row.asked}"
    return [
        row.target,
        row.python,
        got_in if len(row.hello) == row.asked else f"**{got_in}**",
        _ms(statistics.median(row.first)) if row.first else "–",
        median if row.hello else "–",
        _ms(max(row.hello)) if row.hello else "–",
        _ms(statistics.median(row.gone)) if row.gone else "–",
        ", ".join(f"{way} {count}" for way, count in row.ways.most_common()),
        f"**{len(row.damage)}**" if row.damage else "0",
    ]


def line(row: Row) -> str:
    """One target for the terminal, with what went wrong."""
    wrong = [f"\n    not in: {why}" for why in sorted(set(row.failures))]
    wrong += [f"\n    damage: {what}" for what in sorted(set(row.damage))]
    return "  ".join(cells(row)) + "".join(wrong)


def whole(rows: Sequence[Row], loads: tuple[float, float]) -> str:
    lines = [conditions(rows, loads), "", HEAD, RULE]
    return "\n".join(lines + ["| " + " | ".join(cells(row)) + " |" for row in rows])


def conditions(rows: Sequence[Row], loads: tuple[float, float]) -> str:
    """One sentence on how it was measured."""
    processes = sum(row.processes for row in rows)
    system = f"Linux {platform.release().split('-')[0]} {platform.machine()}"
    return (
        f"{sum(row.asked for row in rows)} attaches to {processes} processes on {os.cpu_count()} cores (load average "
        f"{loads[0]:.1f} at the beginning, {loads[1]:.1f} at the end), {system}. "
        "Time from the first look at the process to the agent's hello; *first*: median of the first attaches to each "
        "process, where adbg's modules are not there yet; *gone after*: from the request to detach until "
        "/proc shows the threads, descriptors and pages of before (median). *Damage*: another result than a run of "
        "as many steps to which nobody attached, another exit status, or something left behind."
    )


def insert(page: str, text: str) -> str:
    """``page`` with ``text`` between the two marks. Raises ValueError where there are none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no {BEGIN} … {END} in the page")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def write(root: Path, rows: Sequence[Row], loads: tuple[float, float]) -> None:
    """All rows into docs/attach.md; those of the Python that adbg is tested with into the README."""
    own = [row for row in rows if row.python == platform.python_version()]
    for path, shown in ((root / "docs" / "attach.md", rows), (root / "README.md", own)):
        path.write_text(insert(path.read_text(), whole(shown, loads)))

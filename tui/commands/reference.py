"""The command reference as Markdown, generated from the table.

``python -m adbg.tui.commands.reference`` prints it; with file names, it is written between the two marker lines of
each file. The README holds it; a test compares them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from adbg.tui.commands.session import TITLES, usage
from adbg.tui.commands.table import GROUPS, TABLE

BEGIN = "<!-- command reference: python -m adbg.tui.commands.reference -->"
END = "<!-- /command reference -->"


def reference() -> str:
    """One table for each group, between the markers."""
    parts = [BEGIN]
    for group in GROUPS:
        rows = [row for row in TABLE.commands() if row.group == group]
        parts += ["", f"**{TITLES[group]}**", "", "| command | short | what it does |", "|---|---|---|"]
        for row in rows:
            aliases = " ".join(f"`{alias}`" for alias in row.aliases)
            parts.append(f"| `{_cell(usage(row))}` | {aliases} | {_cell(row.summary)} |")
    return "\n".join([*parts, "", END])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def renewed(text: str) -> str:
    """``text`` with the reference between its markers. Raises ValueError where they are missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no lines {BEGIN!r} and {END!r}")
    return before + reference() + after


def main(paths: list[str]) -> None:
    for path in map(Path, paths):
        path.write_text(renewed(path.read_text()))
    if not paths:
        print(reference())


if __name__ == "__main__":
    main(sys.argv[1:])

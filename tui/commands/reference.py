"""The command reference as Markdown, generated from the table: ``python -m adbg.tui.commands.reference``.

The README holds the output between two marker lines; a test compares them.
"""

from __future__ import annotations

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


if __name__ == "__main__":
    print(reference())

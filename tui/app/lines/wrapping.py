"""Text broken into lines of a width. Pure; any thread."""

from __future__ import annotations

from rich.cells import cell_len, chop_cells


def wrap(text: str, width: int) -> list[str]:
    """``text`` in pieces of at most ``width`` cells, broken between words where a word fits; continued lines keep the
    indent + 2."""
    margin = len(text) - len(text.lstrip(" "))
    indent = " " * min(margin + 2 if margin else 0, width // 3)
    pieces: list[str] = []
    rest = text
    while cell_len(rest) > width:
        head = chop_cells(rest, width)[0]
        if rest[len(head) : len(head) + 1] != " ":
            cut = head.rstrip().rfind(" ")
            if cut > len(indent) + width // 3:
                head = head[: cut + 1]
        pieces.append(head.rstrip())
        rest = indent + rest[len(head) :].lstrip(" ")
    return [*pieces, rest]

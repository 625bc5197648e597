"""The flame graph as one SVG file that needs nothing else: whole names and weights are told on hover."""

from __future__ import annotations

from html import escape
from pathlib import Path

from adbg.profiles.report.flame import ROOT, Tree, layout
from adbg.profiles.report.formats.amounts import amount, fact, share
from adbg.profiles.report.model import Frame, Profile
from adbg.profiles.report.tables import Grouping, grouped_stacks

_WIDTH, _ROW, _CHARACTER = 1200, 17, 6.6  # pixels
_FINEST = 4  # steps of a pixel in which frames are laid out
_COLOURS = {"python": "#e8a33d", "framework": "#d95f4c", "native": "#5b8fb9", "node": "#6aa84f", "": "#b8b8b8"}
_STYLE = """
text { font: 11px ui-monospace, Menlo, Consolas, monospace; pointer-events: none; fill: #1a1a1a }
rect { stroke: #fff; stroke-width: .5 } rect:hover { stroke: #000; stroke-width: 1.5 } .title { font-weight: bold }
"""


def write(profile: Profile, path: Path) -> None:
    path.write_text('<?xml version="1.0" encoding="utf-8"?>\n' + drawing(profile), "utf-8")


def drawing(profile: Profile) -> str:
    """The ``<svg>`` element."""
    tree = Tree(grouped_stacks(profile, Grouping.FUNCTION))
    rows = layout(tree, _WIDTH * _FINEST)
    height = (len(rows) + 2) * _ROW + 8
    title = ": ".join(filter(None, (fact(profile.meta.get(key)) for key in ("profiler", "region")))) or "profile"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}">'
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="4" y="13">{escape(title)}: {escape(amount(tree.weight[ROOT], profile.unit))}</text>',
        *_legend(),
    ]
    total = tree.weight[ROOT]
    for depth, row in enumerate(rows):
        y = (depth + 1.5) * _ROW
        for node, column, width in row:
            frame = tree.frame_of(node)
            name = frame.name if frame else "all"
            x, across = column / _FINEST, width / _FINEST
            weight = tree.weight[node]
            told = f"{name}{_place(frame)}\n{amount(weight, profile.unit)}, {share(weight, total)}"
            letters = int(across / _CHARACTER)
            label = name if len(name) <= letters else name[: letters - 1] + "…" if letters > 3 else ""
            parts.append(
                f'<g><title>{escape(told)}</title><rect x="{x:g}" y="{y:g}" width="{across:g}" height="{_ROW - 1}" '
                f'fill="{_COLOURS[frame.origin if frame else ""]}"/>'
                + (f'<text x="{x + 3:g}" y="{y + 12:g}">{escape(label)}</text>' if label else "")
                + "</g>"
            )
    return "\n".join([*parts, "</svg>\n"])


def _legend() -> list[str]:
    parts, x = [], _WIDTH - 330
    for name, colour in _COLOURS.items():
        if name:
            parts.append(f'<rect x="{x}" y="4" width="10" height="10" fill="{colour}"/>')
            parts.append(f'<text x="{x + 14}" y="13">{name}</text>')
            x += 82
    return parts


def _place(frame: Frame | None) -> str:
    if frame is None or not (frame.file or frame.module):
        return ""
    return f"\n{frame.file or frame.module}" + (f":{frame.line}" if frame.line else "")

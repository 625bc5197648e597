"""Whose a frame of a profile is, and the style that it is drawn in. Pure."""

from __future__ import annotations

import re

from adbg.profiles.report.model import NODE, PYTHON, Frame
from adbg.profiles.report.node_groups import GAP
from adbg.tui.app import theme

KINDS = {
    "own": "your Python", "library": "Python library", "framework": "framework", "native": "native", "node": "node",
    "gap": "gap",
}  # fmt: skip
_LIBRARY = re.compile(r"(^|[/\\])(site-packages|dist-packages|lib/python\d[\d.]*|lib[/\\]python)([/\\]|$)|^<|^~?$")
_SLIGHT = 0.02  # of the largest change: drawn as none


def kind_of(frame: Frame) -> str:
    """A key of ``KINDS``. Python that is neither of a framework nor installed is the user's own."""
    origin = frame.origin
    if origin == NODE and frame.name == GAP:
        return "gap"
    if origin == NODE or origin == "framework":
        return origin
    if frame.side != PYTHON:
        return "native"
    return "library" if _LIBRARY.search(frame.file) else "own"


def change_style(change: float, largest: float) -> str:
    """Of a frame that takes more (red) or less (green) than before."""
    share = abs(change) / largest if largest else 0.0
    if share < _SLIGHT:
        return "flame-same"
    shade = min(int(share * theme.SHADES) + 1, theme.SHADES)
    return f"flame-{'more' if change > 0 else 'less'}{shade}"

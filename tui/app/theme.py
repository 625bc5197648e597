"""Colours of the app: one dark theme, and the named styles that panels draw with. No state."""

from __future__ import annotations

from rich.style import Style
from rich.text import Text
from textual.theme import Theme

from adbg.tui.text.cells import Spans

BACKGROUND = "#14161b"
RAISED = "#1b1e25"
SELECTED = "#2b3344"
SELECTED_DIM = "#20242e"
BORDER = "#3b414d"
TEXT = "#c5cad3"
DIM = "#747c8b"
FAINT = "#4c5361"
BLUE = "#7aa2f7"
CYAN = "#73c7d8"
GREEN = "#8fbf7a"
YELLOW = "#e0b568"
ORANGE = "#e8935a"
RED = "#f0677d"
VIOLET = "#b294e6"

THEME = Theme(
    name="adbg",
    primary=BLUE,
    secondary=VIOLET,
    accent=YELLOW,
    warning=ORANGE,
    error=RED,
    success=GREEN,
    foreground=TEXT,
    background=BACKGROUND,
    surface=BACKGROUND,
    panel=RAISED,
    dark=True,
    variables={
        "border-idle": BORDER,
        "text-dim": DIM,
        "selected": SELECTED,
        "input-cursor-background": TEXT,
        "input-cursor-foreground": BACKGROUND,
        "block-cursor-background": SELECTED,
        "block-cursor-foreground": TEXT,
        "footer-background": RAISED,
    },
)

# Frames of a profile, by whose they are: text in BACKGROUND stays readable on each.
FLAME = {"own": "#d59a5b", "library": "#bfb06a", "framework": "#7398d4", "native": "#a58bc9", "node": "#79b092",
         "gap": "#d98a7a"}  # fmt: skip
SAME, MORE, LESS = "#8d94a2", "#ef5f73", "#63b37a"  # of the difference of two profiles
SHADES = 4

# Muted enough that text stays in front of the lanes.
LANE_COLOURS = ("#5f87c7", "#6fa287", "#b08bc9", "#b59a5e", "#5fa3ad", "#b5768a")

STYLES: dict[str, Style] = {
    "": Style(color=TEXT),
    "dim": Style(color=DIM),
    "faint": Style(color=FAINT),
    "bold": Style(color="#e6e9ef", bold=True),
    "title": Style(color=BLUE, bold=True),
    "key": Style(color=YELLOW),
    "number": Style(color=CYAN),
    "done": Style(color=DIM),
    "op": Style(color=TEXT),
    "opdone": Style(color="#9aa2b1"),
    "todo": Style(color=DIM),
    "here": Style(color=YELLOW, bold=True),
    "custom": Style(color=VIOLET),
    "leaf": Style(color=GREEN),
    "region-inside": Style(color=BACKGROUND, bgcolor="#999999"),  # Paddle's own colours of a captured region
    "region-boundary": Style(color=BACKGROUND, bgcolor="#FFE4B5"),
    "region-leaf": Style(color="#ffffff", bgcolor="#148b97"),
    "compiled": Style(color=ORANGE),
    "breakpoint": Style(color=RED),
    "breakpointoff": Style(color=DIM),
    "bad": Style(color=RED, bold=True),
    "warn": Style(color=ORANGE),
    "good": Style(color=GREEN),
    "input": Style(color=BLUE),
    "echo": Style(color="#e6e9ef"),
    "program": Style(color="#8d94a2"),
    "stop": Style(color=YELLOW),
    "match": Style(color=BACKGROUND, bgcolor=YELLOW),
    "alert": Style(color="#ffffff", bgcolor="#8c2f3d", bold=True),
    "stopped": Style(color=BACKGROUND, bgcolor=YELLOW, bold=True),
    "running": Style(color=BACKGROUND, bgcolor=GREEN, bold=True),
    "exited": Style(color=BACKGROUND, bgcolor=DIM, bold=True),
    "heading": Style(color=BLUE),
    "comment": Style(color="#6d7686", italic=True),
    "string": Style(color="#9fbf86"),
    "numeral": Style(color=CYAN),
    "keyword": Style(color=VIOLET),
    "builtin": Style(color="#6fb3c4"),
    "function": Style(color=BLUE),
    "current": Style(bgcolor="#3a3420"),
}
for _number, _colour in enumerate(LANE_COLOURS):
    STYLES[f"lane{_number}"] = Style(color=_colour)


def lane_style(tint: int) -> str:
    """Name of the style of a lane with this number."""
    return f"lane{tint % len(LANE_COLOURS)}" if tint >= 0 else "faint"


def blend(low: str, high: str, share: float) -> str:
    """The colour ``share`` (0..1) of the way from ``low`` to ``high``, both "#rrggbb"."""
    share = min(max(share, 0.0), 1.0)
    pairs = ((int(low[i : i + 2], 16), int(high[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


for _name, _colour in FLAME.items():
    STYLES[f"flame-{_name}"] = Style(color=BACKGROUND, bgcolor=_colour)
    STYLES[f"flame-{_name}-odd"] = Style(color=BACKGROUND, bgcolor=blend(_colour, BACKGROUND, 0.12))
    STYLES[f"ink-{_name}"] = Style(color=_colour)
STYLES["flame-here"] = Style(color=BACKGROUND, bgcolor="#f4f0e6", bold=True)
STYLES["flame-all"] = Style(color=TEXT, bgcolor=BORDER)
for _shade in range(1, SHADES + 1):
    for _name, _colour in (("more", MORE), ("less", LESS)):
        _tint = blend(SAME, _colour, _shade / SHADES)
        STYLES[f"flame-{_name}{_shade}"] = Style(color=BACKGROUND, bgcolor=_tint)
        STYLES[f"ink-{_name}{_shade}"] = Style(color=_tint)
STYLES["ink-same"] = Style(color=SAME)
STYLES["flame-same"] = Style(color=BACKGROUND, bgcolor=SAME)


def styled(*lines: Spans) -> Text:
    """Spans as Rich text, a line each."""
    text = Text(no_wrap=True)
    for number, spans in enumerate(lines):
        text.append("\n" if number else "")
        for piece, style in spans:
            text.append(piece, STYLES[style])
    return text

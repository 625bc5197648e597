"""Which panel stands where, for a terminal of a given size. Pure: sizes in cells, no Textual.

Wide (from 110x30): five panels. Narrow: graph, one panel below it chosen by its tab, two lines of console; with the
console focused it takes the lower panel's place. Below 60x15 nothing is shown but a request for room.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

PANELS = ("graph", "vlog", "source", "value", "console")
LOWER = ("vlog", "source", "value", "stack", "breakpoints", "watches")  # tabs of the narrow layout
WIDE = (110, 30)
SMALLEST = (60, 15)

_STEP = 0.05
_START = {"graph": 0.4, "vlog": 0.41, "source": 0.5, "console": 0.2}


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What the user chose. ``shares``: of the width for graph and source, of the height for vlog and console."""

    zoomed: str = ""
    lower: str = "value"
    shares: dict[str, float] = field(default_factory=lambda: dict(_START))

    def resized(self, panel: str, step: int) -> Arrangement:
        """``panel`` larger (1) or smaller (-1) by a twentieth of the screen."""
        if panel == "value":
            panel, step = "source", -step
        shares = dict(self.shares)
        shares[panel] = round(min(max(shares[panel] + step * _STEP, 0.1), 0.85), 3)
        return replace(self, shares=shares)

    def minimised(self, panel: str) -> Arrangement:
        """``panel`` as small as it gets."""
        if panel == "value":
            return replace(self, shares={**self.shares, "source": 0.85})
        return replace(self, shares={**self.shares, panel: 0.1})

    def even(self) -> Arrangement:
        """As at the start."""
        return replace(self, zoomed="", shares=dict(_START))


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes in cells, borders included; 0 hides. ``part`` is what the source panel shows: "both", "code" or "lists"."""

    narrow: bool
    small: bool = False
    graph: tuple[int, int] = (0, 0)
    vlog: tuple[int, int] = (0, 0)
    source: tuple[int, int] = (0, 0)
    value: tuple[int, int] = (0, 0)
    console: int = 0  # height
    part: str = "both"
    neighbourhood: bool = False


def plan(width: int, height: int, arrangement: Arrangement, focused: str, banner: int = 0, quiet: bool = False) -> Plan:
    """Where everything stands. ``banner``: lines taken below the status bar; ``quiet``: the log has nothing to say, and
    gets one line unless it has the focus or a size that the user chose."""
    if width < SMALLEST[0] or height < SMALLEST[1]:
        return Plan(narrow=True, small=True)
    narrow = width < WIDE[0] or height < WIDE[1]
    room = height - 2 - banner  # status bar and hints
    if arrangement.zoomed:
        return _zoomed(width, room, arrangement, narrow)
    if narrow:
        return _narrow(width, room, arrangement, focused)
    chosen = arrangement.shares["vlog"] != _START["vlog"]
    return _wide(width, room, arrangement, quiet and focused != "vlog" and not chosen)


def _zoomed(width: int, room: int, arrangement: Arrangement, narrow: bool) -> Plan:
    zoomed = arrangement.zoomed
    if zoomed == "console":
        return Plan(narrow, console=room)
    console = 2 if narrow else 0
    size = (width, room - console)
    part = "both"
    if narrow and zoomed == "source" and size[1] < 16:
        part = "lists" if arrangement.lower in ("stack", "breakpoints", "watches") else "code"
    sizes = {zoomed: size}
    return Plan(narrow, console=console, part=part, neighbourhood=size[1] >= 24, **sizes)  # type: ignore[arg-type]


def _wide(width: int, room: int, arrangement: Arrangement, quiet: bool) -> Plan:
    shares = arrangement.shares
    console = min(max(round(room * shares["console"]), 4), room - 14)
    main = room - console
    graph = min(max(round(width * shares["graph"]), 30), width - 50)
    right = width - graph
    vlog = 3 if quiet else min(max(round(main * shares["vlog"]), 4), main - 8)
    source = min(max(round(right * shares["source"]), 22), right - 22)
    return Plan(
        False,
        graph=(graph, main),
        vlog=(right, vlog),
        source=(source, main - vlog),
        value=(right - source, main - vlog),
        console=console,
        neighbourhood=main >= 28,
    )


def _narrow(width: int, room: int, arrangement: Arrangement, focused: str) -> Plan:
    talking = focused == "console"
    console = 2
    upper = min(max(round((room - console) * 0.58), 6), room - console - 6)
    lower = room - console - upper
    if talking:
        return Plan(True, graph=(width, upper), console=lower + console)
    panel = arrangement.lower if arrangement.lower in ("vlog", "value") else "source"
    part = "code" if arrangement.lower == "source" else "lists"
    sizes = {panel: (width, lower)}
    return Plan(True, graph=(width, upper), console=console, part=part, **sizes)  # type: ignore[arg-type]

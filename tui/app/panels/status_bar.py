"""The line at the top: where the program stands, in fields that were measured; what does not fit is left out. UI
thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from textual.widgets import Static

from adbg.engine.types import NodeStop, Phase, StopReason
from adbg.tui.app import theme
from adbg.tui.text import cells as figures
from adbg.tui.text.cells import Spans, fit, width_of
from adbg.tui.text.quantities import duration

SEPARATOR: tuple[str, str] = (" │ ", "faint")


@dataclass(slots=True)
class Status:
    """What the bar knows. A field that is not known stays at its default and is not shown."""

    state: str = "new"
    stop: NodeStop | None = None
    title: str = ""
    breakpoint: str = ""  # spec of the breakpoint that was hit
    here: int = 0
    total: int = 0
    partial: bool = False  # the graph has more nodes than ``total``
    us: float | None = None
    sum_us: float | None = None  # of the nodes of this backward that were timed
    memory: str = ""
    nonfinite: int | None = None  # rows of this graph known to be non-finite
    log_lines: int = 0
    framework: str = ""
    iteration: int = 0
    backwards: int = 0
    input_wait: str = ""  # the program waits for input
    elapsed: float | None = None  # seconds since the program was let go
    exit_code: int | None = None
    exit_text: str = ""
    processes: int = 1
    process: str = ""  # which one is shown
    waiting: int = 0
    edited: bool = False
    notes: dict[str, str] = field(default_factory=dict)  # what to keep in mind while reading the rest, by its kind

    def went_on(self) -> None:
        """The program runs again: what belongs to the stop is not true of the present."""
        self.stop, self.us, self.sum_us, self.nonfinite = None, None, None, None
        self.here = self.total = self.iteration = self.backwards = 0  # until an event tells of the next
        self.breakpoint, self.edited, self.partial = "", False, False


_STATE_STYLE = {"stopped": "stopped", "running": "running", "starting": "running", "attaching": "running"}
_BAD = (StopReason.NAN, StopReason.INF, StopReason.ERROR)


def state_field(status: Status) -> Spans:
    """The first field: state and place."""
    stop = status.stop
    if status.state == "stopped" and stop is not None:
        bad = stop.reason in _BAD
        return [(f" ■ {stop.reason.value.upper() if bad else 'STOPPED'} ", "alert" if bad else "stopped")]
    if status.state == "exited":
        code = status.exit_code
        return [(f" ● EXITED {'' if code is None else code} ".replace("  ", " "), "alert" if code else "exited")]
    if status.input_wait:
        return [(" ▶ WAITS FOR INPUT ", "stopped")]
    sign = {"running": "▶", "starting": "…", "attaching": "…"}.get(status.state, "○")
    return [(f" {sign} {status.state.upper()} ", _STATE_STYLE.get(status.state, "exited"))]


def place_field(stop: NodeStop) -> str:
    """ "bwd#1 BmmBackward0 #113 after"."""
    if stop.phase is Phase.PYTHON and stop.location is not None:
        return figures.place(stop.location.file, stop.location.line)
    words = [f"bwd#{stop.backward}"]
    if stop.depth:
        words.append(f"depth {stop.depth}")
    if stop.node is not None:
        words.append(f"{stop.node.name} #{stop.index}" if stop.index else stop.node.name)
        if stop.node.compiled:
            words.append("(compiled region)")
    if stop.phase is not Phase.BEFORE and stop.phase is not Phase.ERROR:
        words.append(stop.phase.value)
    return " ".join(words)


def progress_field(here: int, total: int, width: int, partial: bool = False) -> Spans:
    """ "113/1045 ▓▓░░ 11%"; of a graph that was not walked to its end "113/30000+ rest unseen"."""
    if partial:
        return [(f"{min(here, total)}/{total}+", "bold"), (" rest unseen", "warn")]
    share = min(here, total) / total
    full = round(share * width)
    bar: Spans = [(" " + "▓" * full, "title"), ("░" * (width - full), "faint")] if width else []
    return [(f"{min(here, total)}/{total}", "bold"), *bar, (f" {share:.0%}", "dim")]


def fields(status: Status, bar: int) -> list[tuple[int, Spans]]:
    """(importance, field), in the order of the line; 0 is never left out."""
    result: list[tuple[int, Spans]] = []
    stop = status.stop
    head = state_field(status)
    if status.state == "stopped" and stop is not None:
        head += [("  " + place_field(stop), "bold")]
        numbers = [str(number) for number in stop.breakpoints if number > 0]  # those of exception filters are negative
        why = f"bp {','.join(numbers)}" if numbers else stop.reason.value
        head.append(("  " + why, "dim"))
        if status.breakpoint:
            result.append((9, [(status.breakpoint, "dim")]))
    elif status.state == "exited" and status.exit_text:
        head.append(("  " + status.exit_text, "dim"))
    result.insert(0, (0, head))
    if status.edited:
        result.append((1, [("edited", "warn")]))
    result += [(1, [(text, "warn")]) for text in status.notes.values()]
    if status.total and (status.state == "stopped" or (status.state == "running" and status.here)):
        result.append((1, progress_field(status.here, status.total, bar, status.partial)))
    if status.iteration:
        result.append((4, [("iter ", "dim"), (figures.count(status.iteration), "number")]))
    if status.state == "running" and status.backwards:
        result.append((2, [("backward ", "dim"), (figures.count(status.backwards), "number")]))
    if status.us is not None or status.sum_us:
        timed: Spans = [(duration(status.us), "number")] if status.us is not None else []
        if status.sum_us:
            timed.append((f"{' ' if timed else ''}Σ{duration(status.sum_us)}", "number"))
        result.append((5, timed))
    if status.memory:
        result.append((6, [("mem ", "dim"), (status.memory, "number")]))
    if status.nonfinite is not None:
        result.append((3, [("non-finite ", "dim"), (str(status.nonfinite), "bad" if status.nonfinite else "number")]))
    if status.waiting:
        result.append((2, [(f"{status.waiting} more stopped", "warn")]))
    if status.processes > 1:
        result.append((1, [(status.process, "bold"), (f" of {status.processes}", "dim")]))
    if status.elapsed is not None and status.state == "running":
        result.append((4, [(f"{status.elapsed:.0f} s", "number")]))
    if status.log_lines:
        result.append((8, [("log ", "dim"), (figures.count(status.log_lines), "number")]))
    if status.framework:
        result.append((7, [(status.framework, "dim")]))
    if status.title and status.state != "stopped":
        result.append((6, [(status.title, "dim")]))
    return result


def line(status: Status, width: int) -> Spans:
    """The bar in at most ``width`` cells: the least important fields go first, then the bar of the progress."""
    for bar in (16, 8, 0):
        shown = fields(status, bar)
        limits = sorted({importance for importance, _ in shown}, reverse=True) if bar == 0 else [9, 8]
        for limit in [10, *limits]:
            kept = [spans for importance, spans in shown if importance < limit or importance == 0]
            joined: Spans = []
            for number, spans in enumerate(kept):
                joined += [SEPARATOR, *spans] if number else spans
            if width_of(joined) <= width:
                return joined
    return fit(fields(status, 0)[0][1], width)


class StatusBar(Static):
    """``status`` is changed by the app, which then calls ``show``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.status = Status()
        self._shown: Spans = []

    def show(self) -> None:
        """Draw what ``status`` says now; costs nothing when it looks the same."""
        spans = line(self.status, self.size.width or 80)
        if spans == self._shown:
            return
        self._shown = spans
        self.update(theme.styled(spans))

    def on_resize(self) -> None:
        self._shown = []
        self.show()

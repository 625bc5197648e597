"""Around the panels of the main screen: frames, the lines between them, sizes and titles. UI thread."""

from __future__ import annotations

from collections.abc import Iterable

from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Label, Static

from adbg.engine.types import NodeStop
from adbg.tui.app.banner import banner_text
from adbg.tui.app.layout import LOWER, Arrangement, Plan
from adbg.tui.app.panels.lists import ListsPanel

TAB_TITLES = {
    "vlog": "2 VLOG", "source": "3 Source", "value": "4 Value", "stack": "Stack", "breakpoints": "Bps",
    "watches": "Watch",
}  # fmt: skip


class Banner(Static):
    """Below the status bar: the evidence of a bad stop, or a tip."""

    _stop: NodeStop | None = None

    @property
    def lines(self) -> int:
        """Lines of the screen that it takes."""
        return 1 if self.has_class("-bad") or self.has_class("-tip") else 0

    def show_stop(self, stop: NodeStop, width: int) -> None:
        """What is wrong at ``stop``, in a terminal of ``width`` cells."""
        self._stop = stop
        self.set_classes("-bad")
        self.fit(width)

    def fit(self, width: int) -> None:
        """The terminal has ``width`` cells now."""
        if self._stop is not None:
            self.update(Content(banner_text(self._stop, width)))

    def show_tip(self, text: str) -> None:
        self._stop = None
        self.set_classes("-tip")
        self.update(Content(text))

    def clear(self, tip_only: bool = False) -> bool:
        """Take away what is shown; True when something was."""
        if not self.lines or (tip_only and self._stop is not None):
            return False
        self._stop = None
        self.set_classes("")
        return True


class GraphHead(Static):
    """Titles of the graph's columns."""


class ListsBar(Static):
    """Tabs between code and lists."""


def frames(
    graph: Iterable[Widget], vlog: Widget, source: Iterable[Widget], value: Widget, console: tuple[Widget, Widget]
) -> ComposeResult:
    """The panels' widgets in their frames, from the top to the bottom."""
    transcript, command = console
    with Container(id="main"):
        with Vertical(id="graph-frame", classes="frame"):
            yield from graph
        with Container(id="right"):
            with Vertical(id="vlog-frame", classes="frame"):
                yield vlog
            with Container(id="bottom"):
                with Vertical(id="source-frame", classes="frame"):
                    yield from source
                with Vertical(id="value-frame", classes="frame"):
                    yield value
    with Vertical(id="console-frame", classes="frame"):
        yield transcript
        with Horizontal(id="prompt-row"):
            yield Label("(adbg) ", id="prompt")
            yield command


def apply_plan(screen: Widget, plan: Plan) -> None:
    """Give every frame its size; a size of 0 hides it."""

    def size(name: str, wide_high: tuple[int, int]) -> None:
        widget = screen.query_one(name)
        widget.display = all(wide_high)
        if all(wide_high):
            widget.styles.width, widget.styles.height = wide_high

    screen.query_one("#main").set_class(plan.narrow, "-narrow")
    size("#graph-frame", plan.graph)
    size("#vlog-frame", plan.vlog)
    size("#source-frame", plan.source)
    size("#value-frame", plan.value)
    screen.query_one("#bottom").display = all(plan.source) or all(plan.value)
    screen.query_one("#right").display = any(all(s) for s in (plan.vlog, plan.source, plan.value))
    screen.query_one("#main").display = any(all(s) for s in (plan.graph, plan.vlog, plan.source, plan.value))
    console = screen.query_one("#console-frame")
    console.display = plan.console > 0
    console.styles.height = max(plan.console, 1)
    console.set_class(plan.console == 2, "-bare")
    high = plan.graph[1] - 2
    screen.query_one("#neighbourhood").display = plan.neighbourhood and high >= 20
    screen.query_one("#graph-head").display = high >= 14
    screen.query_one("#code").display = plan.part != "lists"
    screen.query_one("#lists").display = plan.part != "code"
    bar = screen.query_one("#lists-bar")
    bar.display = plan.part == "both"
    screen.query_one("#lists").styles.height = "1fr" if plan.part == "lists" else max(plan.source[1] * 2 // 5, 3)


def tabs_title(arrangement: Arrangement) -> Content:
    """Title of the lower panel in the narrow layout: all tabs, the one shown in brackets."""
    parts: list[Content | str] = []
    for tab in LOWER:
        shown = f"[{TAB_TITLES[tab]}]" if tab == arrangement.lower else f" {TAB_TITLES[tab]} "
        style = "bold $foreground" if tab == arrangement.lower else "$text-dim"
        parts.append(Content.from_markup(f"[{style}][@click=screen.show_lower('{tab}')]$shown[/][/]", shown=shown))
    return Content("│").join(parts)


def lists_title(lists: ListsPanel, past: str = "") -> Content:
    """The bar between code and lists: the three tabs with their counts. ``past``: behind what is not of the present."""
    counts = {"stack": "", "breakpoints": f" {len(lists.breakpoints)}", "watches": f" {len(lists.shown)}"}
    parts: list[Content | str] = []
    for tab, number in counts.items():
        name = tab.capitalize() if lists.size.width >= 38 else TAB_TITLES[tab]
        text = f"{name}{number}"
        style = "bold $foreground" if tab == lists.tab else "$text-dim"
        parts.append(Content.from_markup(f"[{style}][@click=screen.show_list('{tab}')]$text[/][/]", text=text))
    return Content.assemble("── ", Content(" · ").join(parts), " ", "" if lists.tab == "breakpoints" else past)

"""The main screen's widgets, put together: which frame holds what, and how large it is. UI thread."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Label, Static

from adbg.tui.app.layout import LOWER, Arrangement, Plan
from adbg.tui.app.log.vlog_panel import VlogPanel
from adbg.tui.app.panels.console import CommandInput
from adbg.tui.app.panels.graph import GraphPanel
from adbg.tui.app.panels.hints import Hints
from adbg.tui.app.panels.lists import ListsPanel
from adbg.tui.app.panels.neighbourhood import Neighbourhood
from adbg.tui.app.panels.source import CodePanel
from adbg.tui.app.panels.status_bar import StatusBar
from adbg.tui.app.panels.transcript import Transcript
from adbg.tui.app.panels.value import ValuePanel

TAB_TITLES = {
    "vlog": "2 VLOG", "source": "3 Source", "value": "4 Value", "stack": "Stack", "breakpoints": "Bps",
    "watches": "Watch",
}  # fmt: skip


class Banner(Static):
    """Below the status bar: the evidence of a bad stop, or a tip."""


class GraphHead(Static):
    """Titles of the graph's columns."""


class ListsBar(Static):
    """Tabs between code and lists."""


def compose_main(command: CommandInput) -> ComposeResult:
    """Top to bottom: status bar, banner, panels, console, hints."""
    yield StatusBar(id="status")
    yield Banner("", id="banner")
    with Container(id="main"):
        with Vertical(id="graph-frame", classes="frame"):
            yield GraphHead("", id="graph-head")
            yield GraphPanel(id="graph")
            yield Neighbourhood(id="neighbourhood")
        with Container(id="right"):
            with Vertical(id="vlog-frame", classes="frame"):
                yield VlogPanel(id="vlog")
            with Container(id="bottom"):
                with Vertical(id="source-frame", classes="frame"):
                    yield CodePanel(id="code")
                    yield ListsBar("", id="lists-bar")
                    yield ListsPanel(id="lists")
                with Vertical(id="value-frame", classes="frame"):
                    yield ValuePanel(id="value")
    with Vertical(id="console-frame", classes="frame"):
        yield Transcript(id="transcript")
        with Horizontal(id="prompt-row"):
            yield Label("(adbg) ", id="prompt")
            yield command
    yield Hints(id="hints")


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
        parts.append(Content.from_markup(f"[{style}][@click=app.show_lower('{tab}')]$shown[/][/]", shown=shown))
    return Content("│").join(parts)


def lists_title(lists: ListsPanel) -> Content:
    """The bar between code and lists: the three tabs with their counts."""
    counts = {"stack": "", "breakpoints": f" {len(lists.breakpoints)}", "watches": f" {len(lists.shown)}"}
    parts: list[Content | str] = []
    for tab, number in counts.items():
        name = tab.capitalize() if lists.size.width >= 38 else TAB_TITLES[tab]
        text = f"{name}{number}"
        style = "bold $foreground" if tab == lists.tab else "$text-dim"
        parts.append(Content.from_markup(f"[{style}][@click=app.show_list('{tab}')]$text[/][/]", text=text))
    return Content.assemble("── ", Content(" · ").join(parts), " ")

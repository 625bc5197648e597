"""The main screen: which panels there are, which has the focus, how large each is, and what their frames say. UI
thread.

Panels are attributes, known from the beginning: answers may come while the screen is taken down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from textual.app import ComposeResult
from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget
from textual.widgets import Label

from adbg.engine.errors import AdbgError
from adbg.tui.app import theme
from adbg.tui.app.keymap import bindings
from adbg.tui.app.layout import PANELS, SMALLEST, Arrangement, plan
from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.app.log.vlog_panel import VlogPanel
from adbg.tui.app.panels.console import CommandInput, Complete, History
from adbg.tui.app.panels.frames import Banner, GraphHead, ListsBar, apply_plan, frames, lists_title, tabs_title
from adbg.tui.app.panels.graph import GraphPanel
from adbg.tui.app.panels.hints import Hints
from adbg.tui.app.panels.lists import TABS, ListsPanel
from adbg.tui.app.panels.neighbourhood import Neighbourhood
from adbg.tui.app.panels.source import CodePanel
from adbg.tui.app.panels.status_bar import StatusBar
from adbg.tui.app.panels.transcript import Transcript
from adbg.tui.app.panels.value import ValuePanel
from adbg.tui.app.screens.dialogs import TooSmall
from adbg.tui.app.screens.panel_screen import PanelScreen

PANEL_OF = {
    "graph": "graph", "vlog": "vlog", "value": "value", "code": "source", "lists": "source", "command": "console",
    "transcript": "console",
}  # fmt: skip


class MainScreen(PanelScreen):
    """Five panels between a status bar and a line of hints.

    Attributes:
        arrangement: sizes that the user chose.
        focused_panel: one of ``PANELS``.
        terminal: its size, once it was changed: ``App.size`` follows later.
    """

    BINDINGS = bindings("main")

    def __init__(self, history: History, complete: Complete) -> None:
        super().__init__(id="_default")
        self.bar = StatusBar(id="status")
        self.banner = Banner("", id="banner")
        self.head = GraphHead("", id="graph-head")
        self.graph = GraphPanel(id="graph")
        self.neighbourhood = Neighbourhood(id="neighbourhood")
        self.vlog = VlogPanel(id="vlog")
        self.code = CodePanel(id="code")
        self.lists_bar = ListsBar("", id="lists-bar")
        self.lists = ListsPanel(id="lists")
        self.value = ValuePanel(id="value")
        self.transcript = Transcript(id="transcript")
        self.command = CommandInput(history, complete, id="command")
        self.hints = Hints(id="hints")
        self.arrangement = Arrangement()
        self.focused_panel = "graph"
        self.open_ranks: Callable[[], None] | None = None  # set by who knows the ranks
        self.terminal: Size | None = None
        self._last_panel = "graph"  # the one before the console
        self._quiet = True  # the log was, when the sizes were chosen
        self._for_program = False  # the program's wait for input brought the user into the console
        self._for_one_command = False  # `:` brought the user into the console
        self._reading = False  # the answer of that command: its lines have the keys, not the command line

    def panels(self) -> ComposeResult:
        """The widgets in their frames."""
        yield self.bar
        yield self.banner
        yield from frames(
            (self.head, self.graph, self.neighbourhood), self.vlog, (self.code, self.lists_bar, self.lists),
            self.value, (self.transcript, self.command),
        )  # fmt: skip
        yield self.hints

    @property
    def principal(self) -> GraphPanel:
        return self.graph

    @property
    def log_name(self) -> str:
        """What the framework calls its log: VLOG is Paddle's."""
        return "VLOG" if "paddle" in self.bar.status.framework.lower() else "Log"

    @property
    def narrow(self) -> bool:
        return self.has_class("-narrow")

    # ---- words to the user

    def say(self, text: str, style: str = "") -> None:
        """A line in the console."""
        self.transcript.write(text, style)

    def say_answer(self, text: str) -> None:
        """What a command answers: from its first line on, where its lines have the keys."""
        if self._reading:
            self.transcript.write_from_its_start(text)
        else:
            self.say(text)

    def say_error(self, error: AdbgError) -> None:
        """What went wrong, and what to do next."""
        self.say(error.message, "bad")
        if error.hint:
            self.say("  " + error.hint, "dim")
        if self.focused_panel != "console":
            super().say_error(error)

    def set_past(self, past: bool) -> None:
        """Whether the panels show the last stop while the program runs on or has ended: dimmed, and said in their
        titles."""
        if past != self.has_class("-past"):
            self.set_class(past, "-past")
            self.retitle()
            self.relist()

    @property
    def _past(self) -> str:
        return "  as at the last stop" if self.has_class("-past") else ""

    # ---- sizes and titles

    def relayout(self) -> None:
        """Give every panel its size for the terminal as it is."""
        width, height = self.terminal or self.app.size
        self._quiet = self.vlog.quiet
        chosen = plan(width, height, self.arrangement, self.focused_panel, self.banner.lines, self._quiet)
        too_small = isinstance(self.app.screen, TooSmall)
        if chosen.small:
            if not too_small:
                self.app.push_screen(TooSmall(*SMALLEST))
            return
        if too_small:
            self.app.pop_screen()
        self.set_class(chosen.narrow, "-narrow")
        apply_plan(self, chosen)
        self.call_after_refresh(self.show_heading)
        self.call_after_refresh(self.relist)

    def on_line_panel_resized(self, event: LinePanel.Resized) -> None:
        """It is laid out: later than the terminal changed where another screen stood above this one."""
        if event.panel is self.graph:
            self.show_heading()
        elif event.panel is self.lists:
            self.relist()

    def heed_log(self) -> None:
        """Room for the log once it has something to say."""
        if self._quiet != self.vlog.quiet:
            self.relayout()

    def resized(self, size: Size) -> None:
        """The terminal has another size."""
        self.terminal = size
        self.banner.fit(size.width)
        self.relayout()
        self.widget_of(self.focused_panel).focus(scroll_visible=False)
        self.retitle()

    def on_screen_suspend(self) -> None:
        """Another screen stands in front: its keys are the ones that do something."""
        self.hints.show()

    def on_screen_resume(self) -> None:
        self.hints.show()

    def show_heading(self) -> None:
        """Titles of the graph's columns."""
        self.head.update(theme.styled(self.graph.heading(self.graph.size.width or 40)))

    def relist(self) -> None:
        """The bar above the lists."""
        self.lists_bar.update(lists_title(self.lists, self._past))

    def retitle(self) -> None:
        """Titles of the frames, as the panels and the layout are now."""
        model = self.graph.model
        backward = f"  backward {model.backward}" if model.backward else ""
        nested = f"  nested backward, depth {model.depth}" if model.depth else ""
        place = self.code.place()
        where = f"  {place.file.rsplit('/', 1)[-1]}:{self.code.current or place.line}" if place else ""
        titles = {
            "graph": f"1 Graph{self._past}{backward}{nested}",
            "vlog": f"2 {self.log_name}  {self.vlog.levels}".rstrip(),
            "source": f"3 Source{where}",
            "value": f"4 Value{self._past}  {self.value.title()}".rstrip(),
            "console": "5 Console",
        }
        for name, text in titles.items():
            self._frame(name).border_title = Content(text)
        if self.narrow and not self.arrangement.zoomed:
            lower = self.arrangement.lower
            frame = self._frame(lower if lower in ("vlog", "value") else "source")
            frame.border_title = tabs_title(self.arrangement, self.log_name)

    def _frame(self, panel: str) -> Widget:
        return self.query_one(f"#{panel}-frame")

    def breakpoint_here(self) -> int:
        """Number of the breakpoint under the cursor: of its row in the list, of the node; 0: none."""
        lists = self.lists
        if self.focused is lists:
            return lists.breakpoints[lists.cursor].id if lists.tab == "breakpoints" and lists.breakpoints else 0
        row = self.graph.selected
        return row.breakpoints[0] if self.focused is self.graph and row is not None and row.breakpoints else 0

    # ---- which panel has the focus

    def widget_of(self, panel: str) -> Widget:
        """What has the focus when a panel has it."""
        source = self.lists if self.narrow and self.arrangement.lower in TABS else self.code
        widgets: dict[str, Widget] = {
            "graph": self.graph, "vlog": self.vlog, "source": source, "value": self.value,
            "console": self.transcript if self._reading else self.command,
        }  # fmt: skip
        return widgets[panel]

    def focus_moved(self, widget: Widget) -> None:
        """``widget`` has the focus; a click may have given it."""
        panel = PANEL_OF.get(widget.id or "")
        if not panel:
            return
        if widget is self.command:  # a click into it
            self._read_answer(False)
        if panel != self.focused_panel and len(self.app.screen_stack) == 1:
            self._leave(panel)
            if self.narrow:
                self.relayout()
        self.hints.show()

    def _leave(self, panel: str) -> None:
        """For ``panel``."""
        if self.focused_panel != "console":
            self._last_panel = self.focused_panel
        if panel != "console":
            self._for_one_command = False
            self._read_answer(False)
        self.focused_panel = panel

    def _focus(self, panel: str) -> None:
        self._leave(panel)
        self.relayout()
        self.set_focus(self.widget_of(panel), scroll_visible=False)  # at once: keys typed ahead go there
        self.retitle()

    def action_panel(self, panel: str, zoom: bool = True) -> None:
        """Focus a panel; the one that has the focus is zoomed."""
        if panel == self.focused_panel and zoom and not self._reading:
            self.action_zoom()
            return
        if panel == "console" and zoom:  # its own key: to stay
            self._for_one_command = False
            self._read_answer(False)
        if self.arrangement.zoomed:
            self.arrangement = replace(self.arrangement, zoomed=panel)
        if self.narrow and panel in ("vlog", "value", "source"):
            lower = self.arrangement.lower
            keep = panel == "source" and lower in TABS
            self.arrangement = replace(self.arrangement, lower=lower if keep else panel)
        self._focus(panel)

    def action_focus_panel(self, step: int) -> None:
        self.action_panel(PANELS[(PANELS.index(self.focused_panel) + step) % len(PANELS)], zoom=False)

    def toggle_console(self) -> None:
        """Into the console, or back to the panel before it."""
        self._for_one_command = False
        self.action_panel(self._last_panel if self.focused_panel == "console" else "console", zoom=False)

    def type_command(self, text: str) -> None:
        """Into the console for one command, with ``text`` in the command line."""
        self._for_one_command = self._for_one_command or self.focused_panel != "console"
        self._read_answer(False)
        self.action_panel("console", zoom=False)
        if text:
            self.command.value = text
            self.command.cursor_position = len(text)

    def entered(self) -> None:
        """A command was entered: what it says comes at the end of the output."""
        self.transcript.to_end()
        if self.command.for_program or not self._for_one_command:
            return  # the program still waits, or more commands follow
        if self.narrow or self.arrangement.zoomed:  # the answer could not be read from the panel
            self._read_answer(True)
            self.set_focus(self.transcript, scroll_visible=False)
        else:
            self.toggle_console()

    def _read_answer(self, reading: bool) -> None:
        if self._reading and not reading:
            self.transcript.to_end()
        self._reading = reading
        self.transcript.hint("answer", "esc back to the panels · j k scroll" if reading else "")

    def leave_answer(self) -> None:
        """A key of the panels goes on with the program: they are shown again."""
        if self._reading:
            self.toggle_console()

    def heed_input(self, wait: str) -> None:
        """The program waits for input, or does no more (""): what is typed goes there, without a key for it."""
        begins = not self.command.for_program
        if wait == self.command.for_program or (wait and begins and self.command.value):
            return  # a command that is being typed is adbg's
        self.command.give_to_program(wait)
        self.query_one("#prompt", Label).update("input ▸ " if wait else "(adbg) ")
        if not wait and (self._for_program or self._for_one_command):
            self._for_program = False
            if self.focused_panel == "console" and not self.command.value:
                self.toggle_console()
        elif wait and begins and len(self.app.screen_stack) == 1 and self.focused_panel != "console":
            self._for_program = True
            self.toggle_console()

    def answered(self, text: str) -> None:
        """What a command had to say is in the console: back to the panel that `:` was pressed in, unless it could not
        be read from there."""
        lines = text.count("\n") + 1 if text else 0
        if self.command.for_program:
            return
        if self._for_one_command and lines <= (0 if self.arrangement.zoomed else 1):
            self.toggle_console()

    # ---- sizes that the user chooses

    def action_zoom(self) -> None:
        zoomed = "" if self.arrangement.zoomed else self.focused_panel
        self.arrangement = replace(self.arrangement, zoomed=zoomed)
        self._focus(self.focused_panel)

    def action_resize(self, step: int) -> None:
        self._arrange(self.arrangement.resized(self.focused_panel, step))

    def action_minimise(self) -> None:
        self._arrange(self.arrangement.minimised(self.focused_panel))

    def action_even(self) -> None:
        self._arrange(self.arrangement.even())

    def _arrange(self, arrangement: Arrangement) -> None:
        self.arrangement = arrangement
        self.relayout()

    def action_main(self) -> None:
        """Leave the search, the output of the console, and the zoom."""
        self.searching = False
        if self.focused_panel == "console":
            self.toggle_console()
        elif self.arrangement.zoomed:
            self._arrange(replace(self.arrangement, zoomed=""))
            self.retitle()

    def action_ranks(self) -> None:
        """All ranks of the job."""
        if self.open_ranks is not None:
            self.open_ranks()

    # ---- tabs

    def action_show_lower(self, tab: str) -> None:
        """A tab of the lower panel in the narrow layout."""
        self.arrangement = replace(self.arrangement, lower=tab, zoomed="")
        if tab in TABS:
            self.lists.show_tab(tab)
        self._focus("source" if tab in TABS or tab == "source" else tab)

    def action_show_list(self, tab: str) -> None:
        """A tab below the code."""
        self.lists.show_tab(tab)
        self.relist()
        self.focused_panel = "source"
        self.lists.focus(scroll_visible=False)

    def action_cycle(self, step: int) -> None:
        """[ and ]: the next tab of the lists, panel of the narrow layout, or value of the node."""
        if PANEL_OF.get((self.focused and self.focused.id) or "") != "source":
            if not self.value.cycle(step):
                self.app.bell()
        elif self.narrow:
            tabs = ("source", *TABS)
            lower = self.arrangement.lower if self.arrangement.lower in tabs else "source"
            self.action_show_lower(tabs[(tabs.index(lower) + step) % len(tabs)])
        else:
            self.action_show_list(TABS[(TABS.index(self.lists.tab) + step) % len(TABS)])

    def action_filter(self) -> None:
        self.action_panel("vlog", zoom=False)
        self.ask_filter(self.vlog)

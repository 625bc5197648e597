"""What the keys do, beyond moving in a panel: breakpoints, watches, searching, slices, the layout. UI thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from textual.widget import Widget
from textual.widgets import Input

from adbg.engine.errors import AdbgError
from adbg.tui.app.base import AppBase
from adbg.tui.app.layout import PANELS
from adbg.tui.app.log.vlog_panel import VlogPanel
from adbg.tui.app.panels.console import CommandInput
from adbg.tui.app.panels.lists import TABS
from adbg.tui.app.screens.dialogs import BreakpointScreen, LineScreen, QuitScreen
from adbg.tui.app.screens.output import OutputScreen
from adbg.tui.debugger.debugger import State

TWICE = 2.0  # seconds between two ctrl+c
STEPS = ("step", "next", "finish", "after", "continue", "until")


class KeyActions(AppBase):
    """Mixed into the app."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._interrupted = 0.0
        self._searched = ""
        self._past: dict[str, list[str]] = {}  # answers to ``ask_line`` by question
        self._last_step = "step"
        self._last_panel = "graph"

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """`:` is a priority key, so that what is typed right behind it is in the console; in a line of text it is a
        colon."""
        if action == "command" and not parameters and (len(self.screen_stack) > 1 or isinstance(self.focused, Input)):
            return False
        return super().check_action(action, parameters)

    # ---- running

    def action_run_command(self, line: str) -> None:
        """A key that is a command. Steps while the program runs are dropped: a held key must not pile up."""
        word = line.split()[0]
        if word in STEPS:
            if self.debugger.state is State.RUNNING or self.commands.pending:
                return
            self._last_step = line
        self.run_line(line)

    def action_repeat(self) -> None:
        self.action_run_command(self._last_step)

    def action_until_cursor(self) -> None:
        row = self.graph.selected
        if row is None:
            self.notify("no node is under the cursor: there is no graph at this stop", severity="warning", markup=False)
        elif row.state == "done":
            self.notify(f"#{row.index} ran already: c goes on to the next backward", severity="warning", markup=False)
        else:
            self.action_run_command(f"until #{row.index}")

    def action_interrupt(self) -> None:
        """Clear what is typed in the console; else pause, and the second time within two seconds SIGINT to the
        script."""
        line = self.focused
        if isinstance(line, CommandInput) and line.value:
            line.discard()
            return
        now = time.monotonic()
        if not self.debugger.alive:
            self.notify("no script runs: q leaves")
            return
        if now - self._interrupted < TWICE:
            self._interrupted = 0.0
            self.debugger.interrupt()
            self.say("SIGINT sent to the script", "warn")
            return
        self._interrupted = now
        if self.debugger.state is State.RUNNING:
            self.lookups.ask("pause", 0, self.debugger.pause)
        self.notify("ctrl+c again within 2 s interrupts the script (SIGINT)", timeout=2)

    def _read_pause_done(self, event: Any) -> None:
        if event.error is not None:
            self.say_error(event.error)

    # ---- breakpoints

    def _spec_here(self) -> str:
        """The spec of what is under the cursor: a line of code, else the selected node."""
        if self.focused is self.code:
            place = self.code.place()
            if place is not None:
                return f"{place.file.rsplit('/', 1)[-1]}:{place.line}"
        row = self.graph.selected
        return row.unique_name if row is not None else ""

    def action_toggle_breakpoint(self) -> None:
        if self.focused is self.lists and self.lists.tab == "breakpoints" and self.lists.breakpoints:
            row = self.lists.breakpoints[self.lists.cursor]
            self.run_line(f"{'disable' if row.enabled else 'enable'} {row.id}")
            return
        spec = self._spec_here()
        if not spec:
            self.action_conditional_breakpoint()
            return
        same = [row for row in self.debugger.breakpoints if row.spec == spec]
        self.run_line(f"delete {same[0].id}" if same else f"break {spec}")

    def action_conditional_breakpoint(self) -> None:
        self.push_screen(BreakpointScreen(self._spec_here()), lambda line: self.run_line(line) if line else None)

    def action_delete_breakpoint(self) -> None:
        if self.focused is self.lists and self.lists.line_count():
            if self.lists.tab == "breakpoints":
                self.run_line(f"delete {self.lists.breakpoints[self.lists.cursor].id}")
            elif self.lists.tab == "watches":
                self.run_line(f"undisplay {self.lists.shown[self.lists.cursor].number}")
            return
        row = self.graph.selected
        for number in row.breakpoints[:1] if row is not None else ():
            self.run_line(f"delete {number}")

    # ---- values

    def action_print_value(self) -> None:
        """Print what the value panel shows; of another node than the one at hand its name says so."""
        target = self.value.model.target
        stop = self.debugger.stop
        if not target or stop is None:
            self.action_command("print ")
        elif self.selected != stop.index and not self.value.model.expression:
            self.notify(
                f"print reads the node at hand (#{stop.index}); the panel shows #{self.selected}", severity="warning"
            )
        else:
            self.run_line(f"print {target}")

    def action_watch(self) -> None:
        target = self.value.model.target
        self.ask_line("watch", f"norm({target})" if target else "", "an expression whose value is shown at every stop",
                      lambda text: self.run_line(f"watch {text}"))  # fmt: skip

    def action_slice(self) -> None:
        model = self.value.model

        def chosen(text: str) -> None:
            model.slice, model.view, model.problem = text, None, ""
            self.read_value()

        if model.target:
            self.ask_line(
                f"slice of {model.target}",
                model.slice or "[]",
                "as in Python: [0, :, 10:20]; [] the first plane",
                chosen,
            )

    def action_edit_value(self) -> None:
        model = self.value.model
        if model.target:
            self.ask_line(f"set {model.target} =", f"{model.target} * 0.5", "checked, cloned and handed to the engine",
                          lambda text: self.run_line(f"set {model.target} = {text}"))  # fmt: skip

    def action_home(self) -> None:
        """Back to the node and the frame of the stop."""
        stop = self.debugger.stop
        if stop is not None:
            self.graph.select_index(stop.nearest or 1, notify=False)
            self.select_node(stop.nearest or 1)
            self.at_stop()
            self.run_line("frame 0", echo=False)

    def action_cycle(self, step: int) -> None:
        """[ and ]: the next value of the node, tab of the lists, or panel of the narrow layout."""
        focused = self.focused
        if focused in (self.lists, self.code) and not self.narrow:
            self.action_show_list(TABS[(TABS.index(self.lists.tab) + step) % len(TABS)])
        elif focused in (self.lists, self.code):
            tabs = ("source", *TABS)
            lower = self.arrangement.lower if self.arrangement.lower in tabs else "source"
            self.action_show_lower(tabs[(tabs.index(lower) + step) % len(tabs)])
        elif self.value.model.cycle(step):
            self.read_value()
        else:
            self.bell()

    def action_yank(self) -> None:
        focused = self.focused
        text = ""
        if focused is self.graph and self.graph.selected is not None:
            text = self.graph.selected.unique_name
        elif focused in (self.vlog, self.code, self.lists):
            text = focused.copied()
        elif focused is self.value:
            text = "\n".join("".join(t for t, *_ in line) for line in self.value._lines)
        if text:
            self.copy_to_clipboard(text)
            self.notify(f"copied {text.splitlines()[0][:40]}", timeout=2, markup=False)
        else:
            self.bell()

    # ---- searching

    def ask_line(self, question: str, text: str, hint: str, then: Callable[[str], None]) -> None:
        """One line from the user; errors of ``then`` are told."""

        def answered(line: str | None) -> None:
            if line is None:
                return
            try:
                then(line.strip())
            except AdbgError as error:
                self.say_error(error)

        self.push_screen(LineScreen(question, text, hint, self._past.setdefault(question, [])), answered)

    def action_search(self) -> None:
        def chosen(text: str) -> None:
            if text:
                self._searched = text
                self.action_search_next(1)

        self.ask_line("/", "", "N next, P previous match in the panel; ↑ earlier ones", chosen)

    def action_search_next(self, step: int) -> None:
        if not self._searched:
            self.action_search()
            return
        focused = self.focused
        found: bool | None  # None: it is still looking
        try:
            if focused is self.vlog or focused is self.code:
                found = focused.search(self._searched, step)
            else:
                index = self.graph.model.find(self._searched, self._cursor_index(), step)
                found = index is not None
                if index is not None:
                    if index not in self.graph.model.visible:
                        self.graph.model.toggle_leaves(index)
                        self.graph.lines_changed()
                    self.graph.select_index(index)
        except AdbgError as error:
            self.say_error(error)
            return
        if found is False:
            self._not_there(self._searched)

    def _not_there(self, text: str) -> None:
        self.notify(f"{text!r} is not there", severity="warning", timeout=2, markup=False)

    def on_vlog_panel_search_ended(self, event: VlogPanel.SearchEnded) -> None:
        """The rest of a long log was looked through."""
        if not event.found:
            self._not_there(event.text)

    def action_filter(self) -> None:
        self.action_panel("vlog", zoom=False)
        self.ask_line(
            "&",
            "",
            "a regular expression; +2 PATTERN keeps 2 lines of context; empty: all; ↑ earlier ones",
            self.vlog.set_filter,
        )

    def _cursor_index(self) -> int:
        """Node under the graph's cursor."""
        row = self.graph.selected
        return row.index if row is not None else 0

    def action_next_bad(self, step: int) -> None:
        if self.focused is self.vlog:
            found = self.vlog.next_bad(step)
        else:
            index = self.graph.model.next_bad(self._cursor_index(), step)
            found = index is not None
            if index is not None:
                self.graph.select_index(index)
        if not found:
            self.notify("none was seen so far", timeout=2)

    def action_mark(self) -> None:
        if self.focused is self.vlog:
            self.vlog.toggle_mark()
        elif self.selected:
            self.graph.marks ^= {self.selected}
            self.graph.refresh()

    def action_to_mark(self) -> None:
        if self.focused is self.vlog:
            if not self.vlog.to_mark():
                self.bell()
        elif self.graph.marks:
            marks = sorted(self.graph.marks)
            self.graph.select_index(next((mark for mark in marks if mark > self.selected), marks[0]))
        else:
            self.bell()

    # ---- panels

    def widget_of(self, panel: str) -> Widget:
        """What has the focus when a panel has it."""
        if panel == "source":
            return self.lists if self.narrow and self.arrangement.lower in TABS else self.code
        if panel == "console":
            return self.panel(CommandInput)
        return self.main.query_one("#" + panel)

    def action_panel(self, panel: str, zoom: bool = True) -> None:
        """Focus a panel; the one that has the focus is zoomed."""
        if panel == self.focused_panel and zoom:
            self.action_zoom()
            return
        if self.arrangement.zoomed:
            self.arrangement = replace(self.arrangement, zoomed=panel)
        if self.narrow and panel in ("vlog", "value", "source"):
            lower = self.arrangement.lower
            keep = panel == "source" and lower in TABS
            self.arrangement = replace(self.arrangement, lower=lower if keep else panel)
        self._focus(panel)

    def _focus(self, panel: str) -> None:
        if self.focused_panel != "console":
            self._last_panel = self.focused_panel
        self.focused_panel = panel
        self.relayout()
        self.main.set_focus(self.widget_of(panel), scroll_visible=False)  # at once: keys typed ahead go there
        self.retitle()

    def action_focus_panel(self, step: int) -> None:
        self.action_panel(PANELS[(PANELS.index(self.focused_panel) + step) % len(PANELS)], zoom=False)

    def action_zoom(self) -> None:
        zoomed = "" if self.arrangement.zoomed else self.focused_panel
        self.arrangement = replace(self.arrangement, zoomed=zoomed)
        self._focus(self.focused_panel)

    def on_command_input_zoom(self, message: CommandInput.Zoom) -> None:
        self.action_zoom()

    def action_resize(self, step: int) -> None:
        self.arrangement = self.arrangement.resized(self.focused_panel, step)
        self.relayout()

    def action_minimise(self) -> None:
        self.arrangement = self.arrangement.minimised(self.focused_panel)
        self.relayout()

    def action_even(self) -> None:
        self.arrangement = self.arrangement.even()
        self.relayout()

    def action_main(self) -> None:
        if self.arrangement.zoomed:
            self.arrangement = replace(self.arrangement, zoomed="")
            self.relayout()
            self.retitle()

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

    def relist(self) -> None:
        raise NotImplementedError

    # ---- console, screens, leaving

    def action_toggle_console(self) -> None:
        if len(self.screen_stack) > 1:
            return
        self.action_panel(self._last_panel if self.focused_panel == "console" else "console", zoom=False)

    def action_command(self, text: str = "") -> None:
        """`:`: the command line, from anywhere."""
        self.action_panel("console", zoom=False)
        line = self.panel(CommandInput)
        if text:
            line.value = text
            line.cursor_position = len(text)

    def action_output(self) -> None:
        def type_in(data: bytes) -> None:
            try:
                self.debugger.write_stdin(data)
            except (AdbgError, OSError) as error:
                self.notify(str(error), severity="error", markup=False)

        self.push_screen(OutputScreen(self.output, type_in, self.debugger.alive and self.debugger.program.launched))

    def action_ask_quit(self) -> None:
        if not self.debugger.alive:
            self.exit(self.debugger.exit_code or 0)
            return

        def answered(answer: str | None) -> None:
            if answer == "kill":
                self.exit(0)
            elif answer == "detach":
                self.run_line("detach", echo=False)
                self.leave_after_detach = True

        self.push_screen(QuitScreen(self.debugger.program.launched, self.debugger.state.value), answered)

    leave_after_detach = False

    def action_leave(self) -> None:
        self.exit(0 if self.debugger.alive else self.debugger.exit_code or 0)

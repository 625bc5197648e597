"""The Textual app: keys, messages and events, put to the objects that deal with them. Runs on the main thread of the
front end.

The app is a client only: events of the debugger go to ``EventFeed``, questions about a stop to ``StopReader`` (answered
on the worker thread of ``Lookups``), commands to ``CommandRunner``; all of them show what comes on the ``MainScreen``.
Actions of a panel or of the layout are the screens' own; here are those that run commands, ask something, or leave.
"""

from __future__ import annotations

import contextlib
from functools import partial

from textual import events as textual_events
from textual import on
from textual.app import ComposeResult
from textual.command import CommandPalette
from textual.message import Message
from textual.widgets import Input

from adbg.engine.errors import AdbgError
from adbg.engine.types import StopReason
from adbg.tui.app import theme
from adbg.tui.app.command_runner import CommandRunner, completions
from adbg.tui.app.event_feed import EventFeed
from adbg.tui.app.failures import Failures, keep_traceback
from adbg.tui.app.keymap import bindings
from adbg.tui.app.lines.actions import Breakable, Listed
from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.app.lines.painting import Painted
from adbg.tui.app.log.nodes import node_index, occurrence_of
from adbg.tui.app.log.vlog_panel import VlogPanel
from adbg.tui.app.lookups import Lookups
from adbg.tui.app.messages import CommandBegins, CommandDone, Read, Stray
from adbg.tui.app.palette import TableCommands
from adbg.tui.app.panels import source_file
from adbg.tui.app.panels.console import CommandInput, History
from adbg.tui.app.panels.source import CodePanel
from adbg.tui.app.panels.value import ValuePanel
from adbg.tui.app.screens.dialogs import BreakpointScreen, QuitScreen, TooSmall, fields_of
from adbg.tui.app.screens.main import MainScreen
from adbg.tui.app.screens.opening import OtherScreens
from adbg.tui.app.stop_reader import StopReader
from adbg.tui.app.terminal import leave_on_signals
from adbg.tui.app.typeahead import StepsAhead
from adbg.tui.app.value_actions import ValueActions
from adbg.tui.debugger.debugger import Debugger, State

TICK = 1 / 30  # seconds
STEPS = ("step", "next", "finish", "after", "continue", "until")


class AdbgApp(OtherScreens, Painted):
    """See the module. ``history_file`` "" keeps the console's history to this session."""

    CSS_PATH = "app.tcss"
    TITLE = "adbg"
    BINDINGS = bindings("app")
    COMMANDS = {TableCommands}
    ENABLE_COMMAND_PALETTE = True

    def __init__(self, debugger: Debugger, history_file: str = "") -> None:
        super().__init__()
        self.register_theme(theme.THEME)
        self.theme = "adbg"
        self.debugger = debugger
        self.main = MainScreen(History(history_file), partial(completions, debugger))
        self.runner = CommandRunner(debugger, self.main, self.post_message)
        self.lookups = Lookups(self.post_message)
        self.reader = StopReader(debugger, self.main, self.lookups)
        self.values = ValueActions(debugger, self.main, self.reader, self.run_line)
        self.feed = EventFeed(debugger, self.main, self.reader, self.run_line)
        self.feed.profiles.submit = self.runner.try_all
        self.runner.told = lambda: debugger.stop is None or debugger.stop is self.feed.arrived
        self.failures = Failures()
        self.crash = ""  # why the screen ended, in one line
        self._unsubscribe = debugger.model.subscribe(self.feed.put)
        self._last_step = "step"
        self._ahead = StepsAhead()
        self._leave_after_detach = False

    # ---- life

    def get_default_screen(self) -> MainScreen:
        return self.main

    def compose(self) -> ComposeResult:
        yield from self.main.panels()

    def on_mount(self) -> None:
        """Everything is there: listen, and let the program start."""
        main = self.main
        main.relayout()
        main.retitle()
        main.relist()
        main.graph.waiting = "starting the program …"
        main.graph.focus()
        leave_on_signals(self.debugger.let_go, self.exit)
        self.set_interval(TICK, self._tick)
        self.set_interval(1.0, self.feed.ask_memory)
        self.runner.start_program()

    def on_unmount(self) -> None:
        self._unsubscribe()
        self.lookups.close()
        self.runner.close()

    @property
    def leaving(self) -> bool:
        """The main screen is gone or going: timers and late answers have nothing to write into."""
        return not self.screen_stack

    def _tick(self) -> None:
        if not self.leaving:
            self.feed.drain()
            self._step_ahead()

    # ---- failures of the app itself

    async def _dispatch_message(self, message: Message) -> None:
        """Textual ends the app when a handler raises. An answer that could not be shown, a key or a timer that failed
        is reported instead: what the program and the debugger know is as it was, and the next answer draws it again.
        What fails again and again, while starting, or in painting, still ends the app."""
        try:
            await super()._dispatch_message(message)
        except Exception as error:
            if self.leaving or not self.main.is_mounted or isinstance(message, textual_events.Mount):
                raise
            if not self.failures.survives(error):
                raise
            text = f"adbg's screen failed to show something: {self._keep(error)}"
            self.main.say(text, "bad")
            self.notify(text, severity="error", timeout=6, markup=False)

    def _keep(self, error: BaseException | None) -> str:
        return keep_traceback(error, self.debugger.program.run_dir or "")

    def _fatal_error(self) -> None:
        """Textual shows a traceback here; it goes into a file, and the user reads one line (``run_app``)."""
        self.crash = self._keep(self._exception)
        self._close_messages_no_wait()

    # ---- the terminal and the focus

    def on_resize(self, event: textual_events.Resize) -> None:
        """The terminal changed: the panels follow, and so does the program's own terminal."""
        self.main.resized(event.size)  # Textual calls that of Painted as well
        self.call_after_refresh(self.reader.read_value)
        with contextlib.suppress(AdbgError, OSError):
            self.debugger.program.resize(max(event.size.height - 4, 5), max(event.size.width - 2, 20))

    def on_paste(self, event: textual_events.Paste) -> None:
        """A paste that no line of text took: a command when it begins with `:`, else nothing; never keys."""
        event.stop()
        line = next(iter(event.text.strip().splitlines()), "")
        if line.startswith(":") and len(self.screen_stack) == 1:
            self.action_command(line[1:].strip())
        elif line:
            self.notify("paste into the console: ctrl+x goes there", timeout=3, markup=False)

    def on_descendant_focus(self, event: textual_events.DescendantFocus) -> None:
        self.main.focus_moved(event.widget)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """`:` is a priority key, so that what is typed right behind it is in the console; in a line of text it is a
        colon."""
        if action == "command" and not parameters and (len(self.screen_stack) > 1 or isinstance(self.focused, Input)):
            return False
        return super().check_action(action, parameters)

    # ---- what panels and worker threads report

    def on_read(self, event: Read) -> None:
        """A lookup was answered."""
        event.stop()
        if not self.leaving:
            event.then(event)

    @on(LinePanel.Moved, "#graph")
    def _select_node(self, event: LinePanel.Moved) -> None:
        """The graph's cursor is the selection."""
        graph = self.main.graph
        if event.row == graph.cursor and event.row < graph.line_count():  # else a later message says where it moved
            index = graph.model.at(event.row).index
            self.reader.select_node(index)
            self.main.vlog.show_node(graph.model.rows[index].name, index, occurrence_of(graph.model, index))

    @on(LinePanel.Moved, "#lists")
    def _select_frame(self, event: LinePanel.Moved) -> None:
        lists = self.main.lists
        if lists.tab == "stack" and event.row == lists.cursor and event.row < lists.line_count():
            self.reader.choose_frame(event.row)

    @on(LinePanel.Opened, "#graph, #value")
    def _open_value(self) -> None:
        self.values.grid()

    @on(LinePanel.Opened, "#lists")
    def _open_list(self, event: LinePanel.Opened) -> None:
        if self.main.lists.tab == "stack":
            self.reader.choose_frame(event.row)
        elif self.main.lists.tab == "breakpoints":
            self.action_toggle_breakpoint()

    @on(LinePanel.Opened, "#vlog")
    def _open_record(self) -> None:
        """A record that is a line and no more leads to its node, which is selected already."""
        if self.main.vlog.open_record():
            return
        if self.main.vlog.says_node():
            self.main.action_panel("graph", zoom=False)
        else:
            self.bell()

    def on_vlog_panel_node_wanted(self, event: VlogPanel.NodeWanted) -> None:
        """A record is about a node: that is the selection."""
        graph = self.main.graph
        index = node_index(graph.model, event.name, event.index, event.occurrence, event.address)
        if index and index != graph.index:
            graph.go_to(index)

    def on_value_panel_slot_chosen(self, event: ValuePanel.SlotChosen) -> None:
        self.reader.read_value()

    def on_code_panel_wanted(self, event: CodePanel.Wanted) -> None:
        code, path = self.main.code, event.path
        self.lookups.ask("code", path, lambda: source_file.highlighted(path), lambda read: code.highlighted(read.key))

    # ---- the console

    def run_line(self, line: str, echo: bool = True) -> None:
        """Run a console command; its output follows."""
        self.runner.run(line, echo)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if isinstance(event.input, CommandInput):
            self.runner.entered(*event.input.accept())

    def on_command_begins(self, event: CommandBegins) -> None:
        if not self.leaving:
            self.feed.catch_up()
            self.runner.begins(event.line)
        event.shown.set()

    def on_command_done(self, event: CommandDone) -> None:
        """Output or error of a command."""
        result = None if self.leaving else self.runner.show(event)
        if result is None:
            return
        if result.action == "help":
            self.action_screen("help")
        elif result.action == "profile":
            self.feed.profiles.open(result.value["path"])
        if self._leave_after_detach and event.line == "detach":
            self.exit(0)
        if result.quit:
            self.action_ask_quit()

    def on_command_input_candidates(self, event: CommandInput.Candidates) -> None:
        self.runner.show_candidates(event.lines)

    def stray(self, text: str) -> None:
        """Called on a thread: something in this process wrote to fd 1 or 2."""
        self.post_message(Stray(text))

    def on_stray(self, event: Stray) -> None:
        self.main.say(event.text.rstrip("\n"), "dim")

    def action_command(self, text: str = "") -> None:
        """`:`: the command line, from anywhere."""
        self.main.type_command(text)

    def action_toggle_console(self) -> None:
        if len(self.screen_stack) == 1:
            self.main.toggle_console()

    # ---- running

    def action_run_command(self, line: str) -> None:
        """A key that is a command. A few steps wait for the one under way; the rest of a held key is dropped."""
        word = line.split()[0]
        self.main.leave_answer()
        if word == "next" and self.main.next_match():
            return
        self.main.searching = False
        if word in STEPS:
            if self.debugger.state is State.RUNNING or self.runner.busy:
                self._ahead.put(line)
                return
            self._last_step = line
        self.run_line(line)

    def _step_ahead(self) -> None:
        """The next of the steps that were typed ahead, or what became of them."""
        if not self._ahead or self.runner.busy or self.debugger.state is State.RUNNING:
            return
        stop = self.debugger.stop
        if stop is not None and stop.reason is StopReason.STEP:
            self._last_step = self._ahead.take()
            self.run_line(self._last_step)
        else:
            self.main.say(self._ahead.drop(stop), "warn")

    def action_repeat(self) -> None:
        self.action_run_command(self._last_step)

    def action_until_cursor(self) -> None:
        why = self.main.graph.not_ahead()
        if why:
            self.notify(why, severity="warning", markup=False)
        else:
            self.action_run_command(f"until #{self.main.graph.index}")

    def action_interrupt(self) -> None:
        """Clear what is typed in the console; else as ``Interrupts`` says."""
        line = self.focused
        if isinstance(line, CommandInput) and line.value:
            line.discard()
            return
        if not self.debugger.alive:
            self.notify("no script is running: q quits", markup=False)
            return
        self.runner.interrupt()

    # ---- breakpoints

    def _spec_here(self) -> str:
        """The spec of what is under the cursor: a line of code, else the selected node."""
        spec = self.focused.breakpoint_spec() if isinstance(self.focused, Breakable) else ""
        return spec or self.main.graph.breakpoint_spec()

    def action_toggle_breakpoint(self) -> None:
        line = self.focused.toggle_command() if isinstance(self.focused, Listed) else ""
        spec = "" if line else self._spec_here()
        if spec:
            same = [row for row in self.debugger.settings.breakpoints if row.spec == spec]
            line = f"delete {same[0].id}" if same else f"break {spec}"
        if line:
            self.run_line(line)
        else:
            self.action_conditional_breakpoint()

    def action_conditional_breakpoint(self) -> None:
        """A new one at the cursor, or the one under it."""
        number, spec = self.main.breakpoint_here(), self._spec_here()
        rows = self.debugger.settings.breakpoints
        same = [row for row in rows if row.id == number] or [row for row in rows if fields_of(row).spec == spec]
        self.push_screen(BreakpointScreen(spec, self.runner.try_all, same[0] if same else None))

    def action_delete_breakpoint(self) -> None:
        line = self.focused.delete_command() if isinstance(self.focused, Listed) else None
        if line is None:
            line = self.main.graph.delete_command()
        if line:
            self.run_line(line)

    # ---- values

    def action_home(self) -> None:
        """Back to the node and the frame of the stop."""
        stop = self.debugger.stop
        if stop is not None:
            self.reader.home(stop)
            self.run_line("frame 0", echo=False)

    def action_print_value(self) -> None:
        self.values.print()

    def action_watch(self) -> None:
        self.values.watch()

    def action_slice(self) -> None:
        self.values.slice()

    def action_edit_value(self) -> None:
        self.values.edit()

    # ---- other screens, leaving

    async def action_full_prompt(self) -> None:
        """The line REPL's prompt on the whole terminal, until an empty line or Ctrl-D."""
        from adbg.tui.app.full_prompt import converse

        with self.suspend():
            lines = await converse(
                self.debugger, self.main.transcript.text().split("\n")[-20:], self.main.command.history
            )
        self.refresh(layout=True)
        for line, text in lines:
            self.main.say(f"(adbg) {line}", "echo")
            if text:
                self.main.say(text)

    def action_command_palette(self) -> None:
        if self.use_command_palette and not any(isinstance(s, CommandPalette) for s in self.screen_stack):
            self.push_screen(CommandPalette(placeholder="a command …"))

    def on_command_input_for_program(self, event: CommandInput.ForProgram) -> None:
        self.type_in(event.data)

    def action_ask_quit(self) -> None:
        if not self.debugger.alive:
            self.exit(self.debugger.run.exit_code or 0)
            return

        def answered(answer: str | None) -> None:
            if answer == "kill":
                self.exit(0 if self.debugger.alive else self.debugger.run.exit_code or 0)
            elif answer == "detach" and self.debugger.alive:
                self.run_line("detach", echo=False)
                self._leave_after_detach = True

        self.push_screen(QuitScreen(self.debugger.program.launched, self.debugger.state.value), answered)

    def action_leave(self) -> None:
        """ctrl+q, from anywhere: asks as `q` does; the second one is the answer."""
        front = self.screen
        if self.debugger.alive and not (isinstance(front, (QuitScreen, TooSmall)) and front.confirmed()):
            if not isinstance(front, TooSmall):
                self.action_ask_quit()
            return
        self.exit(0 if self.debugger.alive else self.debugger.run.exit_code or 0)

"""The Textual app: one screen of five panels over a ``Debugger``. Runs on the main thread of the front end.

The app is a client only: it reads the debugger's model, sends requests from worker threads (``lookups``) and shows what
comes back (``reading``, ``showing``); keys are in ``keymap``, what they do in ``keyactions``, where panels stand in
``arrangement``.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from textual import events as textual_events
from textual.app import ComposeResult
from textual.command import CommandPalette
from textual.geometry import Size

from adbg.engine.errors import AdbgError
from adbg.tui.app import theme
from adbg.tui.app.base import CommandQueue
from adbg.tui.app.event_feed import Showing
from adbg.tui.app.keyactions import KeyActions
from adbg.tui.app.keymap import bindings
from adbg.tui.app.layout import SMALLEST, plan
from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.app.log.nodes import node_index, occurrence_of
from adbg.tui.app.log.vlog_panel import VlogPanel
from adbg.tui.app.lookups import Lookups
from adbg.tui.app.messages import CommandDone, Stray
from adbg.tui.app.palette import TableCommands
from adbg.tui.app.panels import source_file as sourcefile
from adbg.tui.app.panels.console import CommandInput, History
from adbg.tui.app.panels.frames import Banner, GraphHead, ListsBar, apply_plan, compose_main
from adbg.tui.app.panels.graph import GraphPanel
from adbg.tui.app.panels.hints import Hints
from adbg.tui.app.panels.lists import ListsPanel
from adbg.tui.app.panels.neighbourhood import Neighbourhood
from adbg.tui.app.panels.source import CodePanel
from adbg.tui.app.panels.status_bar import StatusBar
from adbg.tui.app.panels.transcript import Transcript
from adbg.tui.app.panels.value import ValuePanel
from adbg.tui.app.screens.dialogs import TooSmall
from adbg.tui.app.screens.grid import GridScreen
from adbg.tui.app.screens.help import HelpScreen, live_keys
from adbg.tui.commands.startup import run_startup
from adbg.tui.commands.table import TABLE, CommandResult, execute, repeatable
from adbg.tui.debugger.debugger import Debugger, State

TICK = 1 / 30  # seconds
PANELS_OF_THE_APP = (
    StatusBar, Banner, GraphHead, GraphPanel, Neighbourhood, VlogPanel, CodePanel, ListsBar, ListsPanel, ValuePanel,
    Transcript, CommandInput, Hints,
)  # fmt: skip


class AdbgApp(Showing, KeyActions):
    """See the module. ``history_file`` "" keeps the console's history to this session."""

    CSS_PATH = "app.tcss"
    TITLE = "adbg"
    BINDINGS = bindings("app")
    COMMANDS = {TableCommands}
    ENABLE_COMMAND_PALETTE = True

    def __init__(self, debugger: Debugger, history_file: str = "") -> None:
        super().__init__(debugger)
        self.register_theme(theme.THEME)
        self.theme = "adbg"
        self._history = History(history_file)
        self._cancelled = threading.Event()
        self._last_line = ""
        self._terminal: Size | None = None
        self.crash = ""

    def compose(self) -> ComposeResult:
        yield from compose_main(CommandInput(self._history, self._complete, id="command"))

    def on_mount(self) -> None:
        """Everything is there: listen, and let the program start."""
        for kind in PANELS_OF_THE_APP:
            self.panel(kind)  # known from now on, also while the screen is taken down
        self.lookups = Lookups(self.post_message)
        self.commands = CommandQueue(self.post_message)
        self._unsubscribe = self.debugger.subscribe(self.incoming.append)
        self.relayout()
        self.retitle()
        self.relist()
        self.graph.waiting = "starting the program …"
        self.graph.focus()
        self._leave_on_signals()
        self.set_interval(TICK, self.drain)
        self.set_interval(1.0, self.ask_memory)
        threading.Thread(target=self._start_program, name="adbg-startup", daemon=True).start()

    def _start_program(self) -> None:
        """Worker thread: start the program and run the commands of the command line."""
        if self.debugger.state is not State.NEW:
            return

        def report(line: str, result: CommandResult | AdbgError) -> None:
            error = result if isinstance(result, AdbgError) else None
            self.post_message(CommandDone("(adbg) " + line, None if error else result, error))

        try:
            run_startup(self.debugger, report, self._cancelled)
        except AdbgError as error:
            self.post_message(CommandDone("", None, error))

    def _leave_on_signals(self) -> None:
        """SIGTERM and SIGHUP leave in good order: the terminal is put back, and the program goes on by itself (a
        connection that drops must not cost a training)."""
        if threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._let_go, 128 + number)

    def _let_go(self, status: int) -> None:
        self.debugger.let_go()
        self.exit(status)

    def on_unmount(self) -> None:
        self._cancelled.set()
        self._unsubscribe()
        self.lookups.close()
        self.commands.close()

    # ---- layout

    def relayout(self) -> None:
        """Give every panel its size for the terminal as it is."""
        main = self.main
        width, height = self._terminal or self.size
        banner = self.banner
        lines = 1 if banner.has_class("-bad") or banner.has_class("-tip") else 0
        chosen = plan(width, height, self.arrangement, self.focused_panel, lines)
        if chosen.small:
            if not isinstance(self.screen, TooSmall):
                self.push_screen(TooSmall(*SMALLEST))
            return
        if isinstance(self.screen, TooSmall):
            self.pop_screen()
        main.set_class(chosen.narrow, "-narrow")
        apply_plan(main, chosen)
        self.call_after_refresh(self._head)
        self.call_after_refresh(self.relist)

    def on_resize(self, event: textual_events.Resize) -> None:
        """The terminal changed: the panels follow, and so does the program's own terminal."""
        self._terminal = event.size  # ``size`` is still the old one here
        self.show_evidence(event.size.width)
        self.relayout()
        self.widget_of(self.focused_panel).focus(scroll_visible=False)
        self.retitle()
        self.call_after_refresh(self.read_value)
        with contextlib.suppress(AdbgError, OSError):
            self.debugger.resize(max(event.size.height - 4, 5), max(event.size.width - 2, 20))

    def on_paste(self, event: textual_events.Paste) -> None:
        """A paste that no line of text took: a command when it begins with `:`, else nothing; never keys."""
        event.stop()
        line = next(iter(event.text.strip().splitlines()), "")
        if line.startswith(":") and len(self.screen_stack) == 1:
            self.action_command(line[1:].strip())
        elif line:
            self.notify("paste into the console: ctrl+x goes there", timeout=3, markup=False)

    def on_descendant_focus(self, event: textual_events.DescendantFocus) -> None:
        """A click may have moved the focus."""
        names = dict.fromkeys(("code", "lists"), "source") | dict.fromkeys(("command", "transcript"), "console")
        names |= {name: name for name in ("graph", "vlog", "value")}
        panel = names.get(event.widget.id or "")
        if panel and panel != self.focused_panel and len(self.screen_stack) == 1:
            self._last_panel = self.focused_panel if self.focused_panel != "console" else self._last_panel
            self.focused_panel = panel
            if self.narrow:
                self.relayout()
        if panel:
            self.panel(Hints).show()

    # ---- panels speak

    def on_line_panel_moved(self, event: LinePanel.Moved) -> None:
        """The graph's cursor is the selection; the stack's cursor selects a frame."""
        event.stop()
        if event.row != event.panel.cursor or event.row >= event.panel.line_count():
            return  # it moved on; a later message says where to
        if event.panel is self.graph:
            index = self.graph.model.at(event.row).index
            self.select_node(index)
            self.vlog.show_node(self.graph.model.rows[index].name, index, occurrence_of(self.graph.model, index))
        elif event.panel is self.lists and self.lists.tab == "stack":
            self._choose_frame(event.row)

    def on_line_panel_opened(self, event: LinePanel.Opened) -> None:
        event.stop()
        if event.panel in (self.graph, self.value):
            self.action_grid()
        elif event.panel is self.vlog:
            if not self.vlog.open_record():
                self._to_node_of_record()
        elif event.panel is self.lists and self.lists.tab == "stack":
            self._choose_frame(event.row)
        elif event.panel is self.lists and self.lists.tab == "breakpoints":
            self.action_toggle_breakpoint()

    def on_vlog_panel_node_wanted(self, event: VlogPanel.NodeWanted) -> None:
        """A record is about a node: that is the selection."""
        index = node_index(self.graph.model, event.name, event.index, event.occurrence)
        if index and index != self._cursor_index():
            if index not in self.graph.model.visible:
                self.graph.model.toggle_leaves(index)
                self.graph.lines_changed()
            self.graph.select_index(index)

    def _to_node_of_record(self) -> None:
        """Enter on a record that is a line and no more: to the node that it is about, which is selected already."""
        if self.vlog.says_node():
            self.action_panel("graph", zoom=False)
        else:
            self.bell()

    def _choose_frame(self, row: int) -> None:
        frame = self.lists.frames[row] if row < len(self.lists.frames) else None
        if frame is None:
            return
        if frame.frame >= 0:
            self.lookups.ask("frame", row, lambda: self.debugger.select_frame(row))
        elif frame.place is not None:
            self.lists.frame = row
            self.code.show(frame.place)
            self.retitle()

    def _read_frame_done(self, event: Any) -> None:
        if event.error is not None:
            self.say_error(event.error)

    def on_value_panel_slot_chosen(self, event: ValuePanel.SlotChosen) -> None:
        self.read_value()

    def on_code_panel_wanted(self, event: CodePanel.Wanted) -> None:
        self.lookups.ask("code", event.path, lambda: sourcefile.highlighted(event.path))

    def _read_code_done(self, event: Any) -> None:
        self.code.highlighted(event.key)

    def action_grid(self) -> None:
        """The value shown, as numbers."""
        model = self.value.model
        stop = self.debugger.stop
        slot = model.slot
        if not model.target or stop is None or (slot is not None and (slot.meta is None or slot.meta.shape is None)):
            self.bell()
            return
        target, index = model.target, 0 if self.selected == stop.index or model.expression else self.selected

        def ask(slice_text: str, rows: int, cols: int, exact: bool) -> None:
            self.lookups.ask(
                "grid",
                slice_text,
                lambda: self.debugger.tensor(
                    target, node=index, exact=exact, window=True, slice=slice_text, rows=rows, cols=cols
                ),
            )

        self.push_screen(GridScreen(f"{target} of #{self.selected}" if self.selected else target, model.slice, ask))

    # ---- the console

    def _complete(self, line: str) -> list[str]:
        """Lines that ``line`` may become; called in a worker thread."""
        from adbg.tui.repl.completion import complete_line

        with contextlib.suppress(AdbgError):
            return list(complete_line(self.debugger, line))
        return []

    def on_input_submitted(self, event: CommandInput.Submitted) -> None:
        event.stop()
        if not isinstance(event.input, CommandInput):
            return
        line = event.input.accept()
        if not line.strip():
            line = self._last_line
            if not line or not repeatable(line):
                return
        self._last_line = line
        self.run_line(line)

    def on_command_input_leave(self, event: CommandInput.Leave) -> None:
        self.action_toggle_console()

    def on_command_input_candidates(self, event: CommandInput.Candidates) -> None:
        """Several completions: their last words, in one line."""
        words = [line.split()[-1] for line in event.lines[:24]]
        more = f"  … {len(event.lines) - 24} more" if len(event.lines) > 24 else ""
        self.say("  ".join(words) + more, "dim")

    def run_line(self, line: str, echo: bool = True) -> None:
        """Run a console command; its output follows."""
        if echo:
            self.say(f"(adbg) {line}", "echo")
        if line.split(None, 1)[:1] in (["pause"], ["interrupt"]):
            threading.Thread(target=lambda: self.post_message(self._executed(line)), daemon=True).start()
            return
        self.commands.put(line, lambda: execute(self.debugger, line))

    def _executed(self, line: str) -> CommandDone:
        try:
            return CommandDone(line, execute(self.debugger, line), None)
        except AdbgError as error:
            return CommandDone(line, None, error)

    def on_command_done(self, event: CommandDone) -> None:
        """Output or error of a command."""
        if self.leaving:
            return
        if event.line.startswith("(adbg) "):
            self.say(event.line, "echo")
        if event.error is not None:
            self.say_error(event.error)
            return
        result: CommandResult | None = event.result
        if result is None:
            return
        if result.action == "help":
            self.action_help()
        elif result.text:
            self.say(result.text)
        if event.line.removeprefix("(adbg) ").startswith("vlog") and isinstance(result.value, dict):
            self.vlog.levels = result.text.removeprefix("vlog ").partition("\n→")[0]
            self.retitle()
        if self.leave_after_detach and event.line == "detach":
            self.exit(0)
        if result.quit:
            self.action_ask_quit()

    def stray(self, text: str) -> None:
        """Called on a thread: something in this process wrote to fd 1 or 2."""
        self.post_message(Stray(text))

    def on_stray(self, event: Stray) -> None:
        self.say(event.text.rstrip("\n"), "dim")

    # ---- help, palette, prompt

    def action_help(self) -> None:
        main = self.main
        keys = live_keys([self, *main.walk_children(LinePanel)], self)
        rows = [(row.group, f"{row.name} {row.args}".strip(), row.summary) for row in TABLE.commands()]
        self.push_screen(HelpScreen(keys, rows))

    async def action_full_prompt(self) -> None:
        """The line REPL's prompt on the whole terminal, until an empty line or Ctrl-D."""
        from adbg.tui.app.full_prompt import converse

        with self.suspend():
            lines = await converse(self.debugger, self.transcript.text().split("\n")[-20:], self._history)
        self.refresh(layout=True)
        for line, text in lines:
            self.say(f"(adbg) {line}", "echo")
            if text:
                self.say(text)

    def action_command_palette(self) -> None:
        if self.use_command_palette and not any(isinstance(s, CommandPalette) for s in self.screen_stack):
            self.push_screen(CommandPalette(placeholder="a command …"))

    # ---- the end

    def _fatal_error(self) -> None:
        """Textual shows a traceback here; it goes into a file, and the user is told in one line (``run_app``)."""
        self.crash = self.keep_crash(self._exception)
        self._close_messages_no_wait()


def run_app(debugger: Debugger, history_file: str | None = None) -> int:
    """Show the app until the user leaves it or the terminal is lost; returns adbg's exit status (the script's).

    ``debugger`` is made but not started: the app does that. Must be called on the main thread, on a terminal. When the
    user detached, or the app itself failed, the program runs on: its output goes to the terminal until it ends.
    """
    from adbg.tui.app.terminal import Afterwards, guarded
    from adbg.tui.repl.repl import history_path

    app = AdbgApp(debugger, _history_file(history_path()) if history_file is None else history_file)
    afterwards = Afterwards(debugger)
    status: int | None = None
    try:
        with guarded(app.stray):
            status = app.run()
    except KeyboardInterrupt:
        status = 130
    except Exception as error:
        app.crash = app.crash or f"{type(error).__name__}: {error}"
    if app.crash:
        print(f"adbg: the screen failed: {app.crash}", file=sys.stderr)
        print("      the program goes on without the debugger; `adbg run --repl` needs no screen", file=sys.stderr)
        with contextlib.suppress(AdbgError):
            debugger.detach()
    if debugger.state is State.DETACHED and debugger.program.launched:
        return afterwards.see_out()
    debugger.close()
    return 0 if status is None else status


def _history_file(path: Path) -> str:
    """The file as text, its folder made; "" where that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError:
        return ""
    return str(path)

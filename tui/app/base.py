"""What the parts of the app share: the model, the worker threads, the panels by name. UI thread."""

from __future__ import annotations

import os
import queue
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from textual import events as textual_events
from textual.content import Content
from textual.css.query import QueryType
from textual.message import Message
from textual.screen import Screen
from textual.widget import Widget

from adbg.engine.errors import AdbgError
from adbg.tui.app.layout import Arrangement
from adbg.tui.app.lines.screen_text import ScreenText
from adbg.tui.app.log.vlog_panel import VlogPanel
from adbg.tui.app.lookups import Lookups
from adbg.tui.app.messages import CommandDone
from adbg.tui.app.panels.frames import Banner, tabs_title
from adbg.tui.app.panels.graph import GraphPanel
from adbg.tui.app.panels.lists import ListsPanel
from adbg.tui.app.panels.source import CodePanel
from adbg.tui.app.panels.status_bar import StatusBar
from adbg.tui.app.panels.transcript import Transcript
from adbg.tui.app.panels.value import ValuePanel
from adbg.tui.app.typeahead import TypeAhead
from adbg.tui.debugger.debugger import Debugger
from adbg.tui.debugger.events import Event
from adbg.tui.debugger.stop_view import as_error

SURVIVED = 5  # failures of handlers within ...
SURVIVED_IN = 10.0  # ... seconds: with more than these the screen is of no use, and the app leaves


class CommandQueue:
    """Command lines, one after the other, on a daemon thread: one may take minutes and must not keep the app from
    leaving."""

    def __init__(self, post: Callable[[CommandDone], object]) -> None:
        self._post = post
        self._lines: queue.SimpleQueue[tuple[str, Callable[[], Any]] | None] = queue.SimpleQueue()
        self.pending = 0
        threading.Thread(target=self._work, name="adbg-commands", daemon=True).start()

    def put(self, line: str, run: Callable[[], Any]) -> None:
        """Have ``run`` called; ``CommandDone(line, ...)`` follows."""
        self.pending += 1
        self._lines.put((line, run))

    def close(self) -> None:
        self._lines.put(None)

    def _work(self) -> None:
        while (item := self._lines.get()) is not None:
            line, run = item
            result: Any = None
            error: AdbgError | None = None
            try:
                result = run()
            except Exception as problem:
                error = as_error(problem)
            self.pending -= 1
            self._post(CommandDone(line, result, error))


class AppBase(TypeAhead[int]):
    """State of the app that is no widget's."""

    def __init__(self, debugger: Debugger) -> None:
        super().__init__()
        self.debugger = debugger
        self.arrangement = Arrangement()
        self.incoming: deque[Event] = deque()  # filled on the dispatcher thread, drained by the timer
        self.output = ScreenText()
        self.output_seen = 0  # finished lines that the console has
        self.selected = 0  # index of the node that panels show, 0 for none
        self.shown_node: Any = None  # NodeBody of it, once it was read
        self.focused_panel = "graph"
        self._panels: dict[type[Widget], Widget] = {}
        self._main: Screen[Any] | None = None
        self.troubles: list[tuple[float, Exception]] = []  # when a handler of the app failed and the app went on
        self.lookups: Lookups
        self.commands: CommandQueue

    # ---- panels by name; they are on the main screen, whatever is in front of it

    def panel(self, kind: type[QueryType]) -> QueryType:
        """The one widget of a class on the main screen. Looked up once: late answers may come while the screen is taken
        down."""
        if kind not in self._panels:
            self._panels[kind] = self.main.query_one(kind)
        found = self._panels[kind]
        assert isinstance(found, kind)
        return found

    @property
    def main(self) -> Screen[Any]:
        """The main screen, whatever is in front of it."""
        if self._main is None:
            self._main = self.screen_stack[0]
        return self._main

    @property
    def banner(self) -> Banner:
        return self.panel(Banner)

    @property
    def graph(self) -> GraphPanel:
        return self.panel(GraphPanel)

    @property
    def vlog(self) -> VlogPanel:
        return self.panel(VlogPanel)

    @property
    def code(self) -> CodePanel:
        return self.panel(CodePanel)

    @property
    def lists(self) -> ListsPanel:
        return self.panel(ListsPanel)

    @property
    def value(self) -> ValuePanel:
        return self.panel(ValuePanel)

    @property
    def transcript(self) -> Transcript:
        return self.panel(Transcript)

    @property
    def bar(self) -> StatusBar:
        return self.panel(StatusBar)

    @property
    def leaving(self) -> bool:
        """The main screen is gone or going: timers and late answers have nothing to write into."""
        return not self.screen_stack

    @property
    def narrow(self) -> bool:
        return self.main.has_class("-narrow")

    # ---- failures of the app itself

    async def _dispatch_message(self, message: Message) -> None:
        """Textual ends the app when a handler raises. An answer that could not be shown, a key or a timer that failed
        is told instead: what the program and the debugger know is as it was, and the next answer draws anew. What
        fails again and again, while starting, or in painting, still ends the app."""
        try:
            await super()._dispatch_message(message)
        except Exception as error:
            if not self._goes_on(message, error):
                raise

    def _goes_on(self, message: Message, error: Exception) -> bool:
        if self.leaving or not self._panels or isinstance(message, textual_events.Mount):
            return False
        now = time.monotonic()
        self.troubles.append((now, error))
        if sum(now - when < SURVIVED_IN for when, _ in self.troubles) > SURVIVED:
            return False
        text = f"adbg's screen failed to show something: {self.keep_crash(error)}"
        self.say(text, "bad")
        self.notify(text, severity="error", timeout=6, markup=False)
        return True

    def keep_crash(self, error: BaseException | None) -> str:
        """Write the traceback into a file; the error in one line, with the file's name."""
        folder = self.debugger.run_dir if os.path.isdir(self.debugger.run_dir or "") else tempfile.gettempdir()
        path = os.path.join(folder, f"adbg-crash-{os.getpid()}.log")
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(time.strftime("%Y-%m-%d %H:%M:%S\n"))
                traceback.print_exception(error, file=file)
        except OSError as problem:
            path = f"(no log: {problem})"
        return f"{type(error).__name__}: {error}; details in {path}"

    # ---- words to the user

    def say(self, text: str, style: str = "") -> None:
        """A line in the console."""
        self.transcript.write(text, style)

    def say_error(self, error: AdbgError) -> None:
        """What went wrong, and what to do next."""
        self.transcript.write(error.message, "bad")
        if error.hint:
            self.transcript.write("  " + error.hint, "dim")
        if self.focused_panel != "console":
            self.notify(error.message, severity="error", timeout=4, markup=False)

    def retitle(self) -> None:
        """Titles of the frames, as the panels and the layout are now."""
        screen = self.main

        def title(name: str, text: str) -> None:
            screen.query_one(name).border_title = Content(text)

        model = self.graph.model
        nested = f"  nested backward, depth {model.depth}" if model.depth else ""
        backward = f"  backward {model.backward}" if model.backward else ""
        title("#graph-frame", f"1 Graph{backward}{nested}")
        levels = f"  {self.vlog.levels}" if self.vlog.levels else ""
        title("#vlog-frame", f"2 VLOG{levels}")
        place = self.code.place()
        where = f"  {place.file.rsplit('/', 1)[-1]}:{self.code.current or place.line}" if place else ""
        title("#source-frame", f"3 Source{where}")
        subject = f"  {self.value.title()}" if self.value.title() else ""
        node = self.shown_node
        of = f" · #{node.index}" if node is not None and subject else ""
        title("#value-frame", f"4 Value{subject}{of}")
        title("#console-frame", "5 Console")
        if self.narrow and not self.arrangement.zoomed:
            frame = {"vlog": "#vlog-frame", "value": "#value-frame"}.get(self.arrangement.lower, "#source-frame")
            screen.query_one(frame).border_title = tabs_title(self.arrangement)

    # ---- what the parts give each other

    def run_line(self, line: str, echo: bool = True) -> None:
        """Run a console command."""
        raise NotImplementedError

    def read_node(self) -> None:
        """Read the selected node."""
        raise NotImplementedError

    def read_value(self) -> None:
        """Read the value shown."""
        raise NotImplementedError

    def select_node(self, index: int) -> None:
        """Show another node in all panels."""
        raise NotImplementedError

    def at_stop(self) -> None:
        """Stack and source are those of the stop again."""
        raise NotImplementedError

    def relayout(self) -> None:
        """Sizes of the panels."""
        raise NotImplementedError

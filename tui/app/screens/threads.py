"""Every thread of the process, and what it waits for. UI thread; the threads are read on a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen

from adbg.engine.attach.stacks_merged import ProcessThreads, Thread
from adbg.engine.types import SourceLine
from adbg.tui.app.keymap import bindings
from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.app.messages import Read
from adbg.tui.text.cells import Spans, elide
from adbg.tui.text.threads import Line, lines

Question = Callable[[], list[ProcessThreads]]
Ask = Callable[[str, Any, Question, Callable[[Read], None]], None]
_STYLES = ("title", "bold", "dim", "")


def _key(thread: Thread) -> int:
    """What tells a thread from the others of its process, also where its id in the system is not known."""
    return thread.tid or thread.ident


class ThreadsText(LinePanel):
    """The lines of the view; space folds the frames of the thread under the cursor."""

    BINDINGS = bindings("foldable")

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.whole = False
        self._views: list[ProcessThreads] = []
        self._lines: list[Line] = []
        self._folded: set[tuple[int, int]] = set()  # (pid, thread)
        self.waiting = "reading the threads …"

    def show(self, views: list[ProcessThreads]) -> None:
        """New facts; the cursor stays with its thread."""
        here = self._lines[self.cursor] if self._lines else None
        self._views = views
        self._make()
        if here is not None and here.thread is not None:
            key, frame = _key(here.thread), here.frame
            same = [row for row, line in enumerate(self._lines) if line.thread is not None and _key(line.thread) == key]
            exact = [row for row in same if frame is not None and self._lines[row].frame == frame]
            self.select(next(iter(exact or same), 0))

    def _make(self) -> None:
        found = []
        for view in self._views:
            for line in lines(view, self.whole, "v"):
                folded = line.thread is not None and (view.pid, _key(line.thread)) in self._folded
                if not (folded and line.level > 1):
                    found.append(line)
        self._lines = found
        self.lines_changed()

    def line_count(self) -> int:
        return len(self._lines)

    def line(self, row: int, width: int) -> Spans:
        line = self._lines[row]
        style = _STYLES[line.level]
        if line.level == 3 and (line.frame is None or line.frame.owner != "user"):
            style = "dim"
        if line.level == 0 and row and line.text.startswith("  "):
            style = "warn"
        return [(elide(line.text, width), style)]

    def empty_text(self) -> str:
        return self.waiting

    def action_fold(self) -> None:
        """Hide or show the frames of this thread."""
        line = self._lines[self.cursor] if self._lines else None
        if line is None or line.thread is None:
            return
        for view in self._views:
            if line.thread in view.threads:
                key = (view.pid, _key(line.thread))
                self._folded ^= {key}
                self._make()
                row = next(i for i, each in enumerate(self._lines) if each.thread is line.thread)
                self.select(row)
                return

    def place(self) -> SourceLine | None:
        """The source line under the cursor; of a line about a thread, its innermost line of the user's code."""
        line = self._lines[self.cursor] if self._lines else None
        if line is None or line.thread is None:
            return None
        frame = line.frame or line.thread.user_frame
        if frame is None or frame.owner == "native" or not frame.line:
            return None
        return SourceLine(frame.file, frame.line, frame.function)

    def copied(self) -> str:
        return self._lines[self.cursor].text.strip() if self._lines else ""


class ThreadsScreen(ModalScreen["SourceLine | None"]):
    """Returns the source line that was chosen with enter. ``ask`` as ``Lookups.ask``; ``question`` reads the
    threads."""

    BINDINGS = [
        Binding("escape,q,W", "leave", "Back", show=False),
        Binding("r", "again", "Read again", show=False),
        Binding("v", "whole", "All frames", show=False),
    ]

    def __init__(self, ask: Ask, question: Question) -> None:
        super().__init__()
        self._ask = ask
        self._question = question
        self._reading = False

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame full") as box:
            box.border_title = "Threads"
            yield ThreadsText(id="threads-text")

    def on_mount(self) -> None:
        self.set_focus(self._text)
        self.action_again()

    @property
    def _text(self) -> ThreadsText:
        return self.query_one(ThreadsText)

    def _tell(self) -> None:
        state = "reading … · " if self._reading else ""
        frames = "v own frames" if self._text.whole else "v all frames"
        words = f"{state}r again · {frames} · space fold · ⏎ source · esc back"
        self.query_one(".frame").border_subtitle = Content(words)

    def action_again(self) -> None:
        """Read the threads now."""
        self._reading = True
        self._tell()
        self._ask("threads", None, self._question, self._answered)

    def _answered(self, read: Read) -> None:
        if not self.is_mounted:
            return
        self._reading = False
        if read.error is not None:
            self._text.waiting = str(read.error)
            self._text.show([])
        else:
            self._text.show(read.result)
        self._tell()

    def action_whole(self) -> None:
        """All frames of all threads, or the user's alone."""
        self._text.whole = not self._text.whole
        self._text.show(self._text._views)
        self._tell()

    def on_line_panel_opened(self, event: LinePanel.Opened) -> None:
        event.stop()
        place = self._text.place()
        if place is None:
            self.app.bell()
        else:
            self.dismiss(place)

    def action_yank(self) -> None:
        self.app.copy_to_clipboard(self._text.copied())

    def action_leave(self) -> None:
        self.dismiss(None)

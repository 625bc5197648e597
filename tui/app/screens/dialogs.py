"""Small questions: one line of text, a breakpoint with its conditions, whether to quit. Each screen returns its answer.
UI thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Grid, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Checkbox, Input, Label, Static

from adbg.tui.debugger.breakpoint_list import Breakpoint


class LineScreen(ModalScreen["str | None"]):
    """One line at the bottom (search, filter, slice, expression). Returns it, None when it was left with escape. Up and
    down go through ``past``, the oldest first, to which an answer is added."""

    BINDINGS = [
        Binding("escape", "leave", "Leave", show=False),
        Binding("up", "past(-1)", "Earlier", show=False, priority=True),
        Binding("down", "past(1)", "Later", show=False, priority=True),
    ]

    def __init__(self, question: str, text: str = "", hint: str = "", past: list[str] | None = None) -> None:
        super().__init__()
        self._past = [] if past is None else past
        self._at = len(self._past)
        self._question = question
        self._text = text
        self._hint = hint

    def compose(self) -> ComposeResult:
        with Vertical(id="line-box"):
            yield Static(Content(self._hint), id="line-hint")
            with Grid(id="line-row"):
                yield Label(Content(self._question + " "), id="line-question")
                yield Input(self._text, id="line-input", compact=True, select_on_focus=False)

    def on_mount(self) -> None:
        self.query_one("#line-hint").display = bool(self._hint)
        line = self.query_one("#line-input", Input)
        line.cursor_blink = False
        line.cursor_position = len(self._text)
        self.set_focus(line)  # at once: keys typed ahead go there

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        text = event.value.strip()
        if text:
            self._past[:] = [*(line for line in self._past if line != text), text]
        self.dismiss(event.value)

    def action_past(self, step: int) -> None:
        self._at = min(max(self._at + step, 0), len(self._past))
        line = self.query_one("#line-input", Input)
        line.value = self._past[self._at] if self._at < len(self._past) else self._text
        line.cursor_position = len(line.value)

    def action_leave(self) -> None:
        self.dismiss(None)


def breakpoint_line(spec: str, condition: str, after: bool, every: str, ignore: str, once: bool, trace: bool) -> str:
    """The console command that the dialog stands for."""
    words = ["trace" if trace else "tbreak" if once else "break", spec.strip()]
    if after:
        words.append("after")
    if every.strip() and every.strip() != "1":
        words.append(f"every {every.strip()}")
    if ignore.strip() and ignore.strip() != "0":
        words.append(f"ignore {ignore.strip()}")
    if condition.strip():
        words.append(f"if {condition.strip()}")
    return " ".join(word for word in words if word)


@dataclass(frozen=True, slots=True)
class Fields:
    """A breakpoint, taken apart. A suffix that has no field (``backward 7``) stays with the spec."""

    spec: str = ""
    condition: str = ""
    after: bool = False
    every: str = ""
    ignore: str = ""
    once: bool = False
    trace: bool = False

    @property
    def line(self) -> str:
        """The command that sets it."""
        return breakpoint_line(self.spec, self.condition, self.after, self.every, self.ignore, self.once, self.trace)


def fields_of(row: Breakpoint) -> Fields:
    """Of a breakpoint that is set: its spec as the agent writes it, the condition last."""
    spec, _, condition = row.spec.partition(" if ")
    conditions = [part for part in (condition, row.condition) if part]
    words = spec.split()
    counts = {"every": "", "ignore": ""}
    for name in counts:
        if name in words[1:-1]:
            at = words.index(name, 1)
            counts[name] = words[at + 1]
            del words[at : at + 2]
    after = "after" in words[1:]
    if after:
        words.remove("after")
    condition = conditions[0] if len(conditions) == 1 else " and ".join(f"({part})" for part in conditions)
    return Fields(" ".join(words), condition, after, counts["every"], counts["ignore"], row.temporary, row.trace)


Submit = Callable[[list[str], Callable[[str], None]], None]  # commands; called with "" or what was wrong


class BreakpointScreen(ModalScreen[None]):
    """A breakpoint with all it may have: a new one at ``spec``, or ``row`` to be changed. ``submit`` runs the commands
    that do so; the dialog stays, with what was typed, until they were accepted."""

    BINDINGS = [
        Binding("escape", "leave", "Leave", show=False),
        Binding("enter", "accept", "Set", show=False),
        Binding("down", "app.focus_next", "Next field", show=False),
        Binding("up", "app.focus_previous", "Previous field", show=False),
    ]

    def __init__(self, spec: str, submit: Submit, row: Breakpoint | None = None) -> None:
        super().__init__()
        self._row = row
        self._before = Fields(spec) if row is None else fields_of(row)
        self._submit = submit

    def compose(self) -> ComposeResult:
        before = self._before
        with Vertical(id="dialog", classes="breakpoint") as box:
            box.border_title = Content("Breakpoint" if self._row is None else f"Breakpoint {self._row.id}")
            box.border_subtitle = "enter set · tab next field · esc leave"
            with Grid(id="fields"):
                yield Label("stop at")
                yield Input(
                    before.spec, id="spec", compact=True, placeholder="Bmm*, #112, model.py:16, module:layers.3.*, nan"
                )
                yield Label("if")
                yield Input(before.condition, id="condition", compact=True, placeholder="norm(grad_outputs[0]) > 1e-2")
                yield Label("every")
                yield Input(before.every, id="every", compact=True, type="integer", placeholder="1: each hit")
                yield Label("ignore")
                yield Input(
                    before.ignore, id="ignore", compact=True, type="integer", placeholder="0: hits to ignore first"
                )
            yield Checkbox("after the node, not before it", before.after, id="after", compact=True)
            yield Checkbox("once (tbreak)", before.once, id="once", compact=True)
            yield Checkbox("do not stop, only log (trace)", before.trace, id="trace", compact=True)
            yield Static("", id="preview")
            yield Static("", id="problem", markup=False)

    def on_mount(self) -> None:
        for line in self.query(Input):
            line.cursor_blink = False
        self.set_focus(self.query_one("#condition" if self._before.spec else "#spec"))
        self._preview()

    def on_input_changed(self) -> None:
        self._preview()

    def on_checkbox_changed(self) -> None:
        self._preview()

    def _fields(self) -> Fields:
        def text(name: str) -> str:
            return self.query_one(f"#{name}", Input).value.strip()

        def on(name: str) -> bool:
            return self.query_one(f"#{name}", Checkbox).value

        return Fields(
            text("spec"), text("condition"), on("after"), text("every"), text("ignore"), on("once"), on("trace")
        )

    def _lines(self) -> list[str]:
        """The commands: only the condition is changed in place; anything else is another breakpoint, which takes over
        the commands of this one."""
        row, now = self._row, self._fields()
        if row is None:
            return [now.line]
        if now == self._before:
            return []
        if replace(now, condition=self._before.condition) == self._before and " if " not in row.spec:
            return [f"condition {row.id} {now.condition}".strip()]
        commands = ["commands " + "; ".join(row.commands)] if row.commands else []
        return [now.line, *commands, f"delete {row.id}"]

    def _preview(self) -> None:
        lines = " · ".join(self._lines()) or "nothing is changed"
        self.query_one("#preview", Static).update(Content.from_markup("[$text-dim](adbg)[/] $line", line=lines))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_accept()

    def action_accept(self) -> None:
        if self._fields().spec:
            self._submit(self._lines(), self._done)
        else:
            self.app.bell()

    def _done(self, problem: str) -> None:
        if not self.is_mounted or not self.is_attached:
            return
        self.query_one("#problem", Static).update(problem)
        if not problem:
            self.dismiss(None)

    def action_leave(self) -> None:
        self.dismiss(None)


class Answer(Static):
    """One answer of a question."""


class QuitScreen(ModalScreen[str]):
    """A script runs: returns "kill", "detach" or "stay"."""

    BINDINGS = [
        Binding("y", "answer('kill')", "End it", show=False),
        Binding("d", "answer('detach')", "Detach", show=False),
        Binding("n,escape", "answer('stay')", "Stay", show=False),
    ]

    def __init__(self, launched: bool, state: str) -> None:
        super().__init__()
        self._launched = launched
        self._state = state

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog", classes="quit") as box:
            box.border_title = "Quit"
            end = "end the script and leave" if self._launched else "leave; the script continues"
            rows = [("y, ctrl+q", end), ("d", "detach: the script continues without adbg"), ("n", "stay")]
            if not self._launched:
                del rows[1]
            yield Static(Content(f"The script is {self._state}.\n"), id="question")
            for key, text in rows:
                markup = Content.from_markup("[$accent]$key[/]  $text", key=key, text=text)
                yield Answer(markup, id=f"answer-{key[0]}")

    def confirmed(self) -> bool:
        """ctrl+q was pressed again: that is the answer."""
        return True

    def script_ended(self) -> None:
        """While it was asked: there is nothing left to end or to let go."""
        self.query_one("#question", Static).update("The script has ended.\n")
        self.query_one("#answer-y", Answer).update(Content.from_markup("[$accent]y, ctrl+q[/]  leave"))
        self.query("#answer-d").remove()

    def on_click(self, event: events.Click) -> None:
        """A click on an answer gives it."""
        name = event.widget.id if event.widget is not None else ""
        answers = {"answer-y": "kill", "answer-d": "detach", "answer-n": "stay"}
        if name in answers:
            self.dismiss(answers[name])

    def action_answer(self, answer: str) -> None:
        self.dismiss(answer)


class TooSmall(ModalScreen[None]):
    """In front of all while the terminal is too small; keys go nowhere but ctrl+q and ctrl+c."""

    def __init__(self, width: int, height: int) -> None:
        super().__init__()
        self._needed = (width, height)
        self._asked = False

    def confirmed(self) -> bool:
        """ctrl+q was pressed; the second time it counts."""
        asked, self._asked = self._asked, True
        self._say()
        return asked

    def compose(self) -> ComposeResult:
        yield Static("", id="too-small")

    def on_mount(self) -> None:
        self._say()

    def on_resize(self) -> None:
        self._say()

    def _say(self) -> None:
        width, height = self._needed
        size = self.app.size
        leave = "ctrl+q again ends the script" if self._asked else "ctrl+q quits"
        self.query_one("#too-small", Static).update(
            Content(f"terminal too small\n{size.width}x{size.height}, needs {width}x{height}\n{leave}")
        )

    def on_key(self, event: Any) -> None:
        if event.key not in ("ctrl+q", "ctrl+c"):
            event.stop()
            event.prevent_default()

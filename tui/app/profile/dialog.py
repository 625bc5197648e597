"""What to measure: a profiler, a region of the run, or a report that is there already. UI thread; which profilers can
run is asked of the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Grid, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from adbg.engine.errors import CommandError
from adbg.engine.protocol.messages import ProfilerRow
from adbg.profiles.region import REPEAT, parse_region
from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.app.messages import Read
from adbg.tui.app.profile.artifacts import Saved
from adbg.tui.text.cells import Spans, fit

Ask = Callable[[str, Any, Callable[[], list[ProfilerRow]], Callable[[Read], None]], None]
Submit = Callable[[list[str], Callable[[str], None]], None]  # commands; called with "" or what was wrong
DEFAULT = "cprofile"
PASSES = 20  # of a line
TELL_EVERY = 0.25  # seconds between two looks at how far it is


@dataclass(frozen=True, slots=True)
class Offer:
    """A region: its words, and what it is for."""

    words: str
    what: str


def offers(line: str, node: str, selected: str = "") -> list[Offer]:
    """Regions that make sense: ``line`` FILE:LINE under the cursor or "", ``node`` the one before which the program
    stands or "", ``selected`` the one under the cursor where that is to come."""
    found = [
        Offer("10 iterations", "steps of training, the first one left out; each ends with its backward"),
        Offer("backward", "the next outermost backward"),
        Offer("stop", "from here to the next stop"),
        Offer("run", "until it ends, or `profile stop`"),
    ]
    if node:
        found.append(Offer(f"node {node} --repeat {REPEAT}", "this node, again and again, with its gradients"))
    if selected and selected != node:
        found.append(Offer(f"node {selected} --repeat {REPEAT}", "the selected node: the program runs to it first"))
    if line:
        number = line.rpartition(":")[2]
        found.append(Offer(f"{line}-{number} {PASSES} times", f"the forward line shown, the next {PASSES} times"))
    return found


class Choice(LinePanel):
    """Lines of which one is chosen: that under the cursor."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.lines: list[Spans] = []
        self.waiting = ""

    def show(self, lines: list[Spans]) -> None:
        self.lines = lines
        self.lines_changed()

    def line_count(self) -> int:
        return len(self.lines)

    def line(self, row: int, width: int) -> Spans:
        return fit([("▸ " if row == self.cursor else "  ", "key"), *self.lines[row]], width)

    def empty_text(self) -> str:
        return self.waiting


IDLE = "enter start, or open · tab next list · esc leave"
LIVE = "x or esc ends it now, what was measured is kept · F5 leaves it at work"


class ProfileScreen(ModalScreen["Saved | None"]):
    """Returns the report to be opened. ``submit`` runs the command; the dialog stays, with what was typed, until it was
    accepted. ``live`` says how far the profile is that is made, "" for none; ``end`` ends that; ``alive``: there is a
    program to measure; ``here``: the node before which it stands."""

    BINDINGS = [
        Binding("escape", "give_up", "Leave", show=False),
        Binding("f5", "leave", "Leave", show=False),
        Binding("enter", "accept", "Start", show=False),
        Binding("x", "stop", "End it", show=False),
    ]

    def __init__(
        self, ask: Ask, question: Callable[[], list[ProfilerRow]], submit: Submit, regions: Sequence[Offer],
        saved: Sequence[Saved], live: Callable[[], str], end: Callable[[], None], *, alive: bool = True, here: str = "",
    ) -> None:  # fmt: skip
        super().__init__()
        self._ask, self._question, self._submit = ask, question, submit
        self._regions, self._saved = list(regions), list(saved)
        self._tell, self._end, self._alive, self._here = live, end, alive, here
        self._live = live()
        self.measuring = False  # a command of this dialog is under way
        self._rows: list[ProfilerRow] = []
        self.profilers = Choice(id="profile-profilers")
        self.regions = Choice(id="profile-regions")
        self.artifacts = Choice(id="profile-artifacts")

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog", classes="profile") as box:
            box.border_title = "Profile"
            box.border_subtitle = Content(LIVE if self._live else IDLE)
            if self._live:
                yield Static(Content(self._live), id="profile-live")
            elif self._alive:
                yield Label("profiler", classes="title")
                yield self.profilers
                yield Label("region", classes="title")
                yield self.regions
                with Grid(id="profile-region-row"):
                    yield Label("  region ")
                    yield Input("", id="profile-region", compact=True, placeholder="10 iterations, model.py:10-25, …")
                yield Static("", id="preview")
            else:
                yield Static(Content("no program runs: there is nothing to measure"))
            yield Label("reports", classes="title")
            yield self.artifacts
            yield Static("", id="problem", markup=False)

    def on_mount(self) -> None:
        for line in self.query(Input):
            line.cursor_blink = False
        self.artifacts.waiting = "none so far; `profile open FILE` opens any file of a profiler"
        self.artifacts.show([[(each.name, ""), (f"  {each.what}", "dim")] for each in self._saved])
        self.artifacts.styles.height = min(max(len(self._saved), 1), 6)
        self.set_interval(TELL_EVERY, self._progress)
        if self._live or not self._alive:
            self.set_focus(self.artifacts)
            return
        self.profilers.waiting = "asking the program …"
        self.profilers.styles.height = 6
        self.regions.show([[(f"{offer.words:<26}", ""), (f"  {offer.what}", "dim")] for offer in self._regions])
        self.regions.styles.height = max(len(self._regions), 1)
        self._fill()
        self.set_focus(self.profilers)
        self._ask("profilers", None, self._question, self._answered)

    def _answered(self, read: Read) -> None:
        if not self.is_mounted:
            return
        if read.error is not None:
            self.profilers.waiting = str(read.error)
            self.profilers.show([])
            return
        self._rows = read.result
        self.profilers.show([_profiler_line(row) for row in self._rows])
        self.profilers.styles.height = len(self._rows)
        names = [row.name for row in self._rows if row.ok]
        first = DEFAULT if DEFAULT in names else next(iter(names), "")
        self.profilers.select(next((n for n, row in enumerate(self._rows) if row.name == first), 0))
        self._preview()

    # ---- what is chosen

    @property
    def _region(self) -> str:
        return self.query_one("#profile-region", Input).value.strip()

    @property
    def _profiler(self) -> ProfilerRow | None:
        rows = self._rows
        return rows[min(self.profilers.cursor, len(rows) - 1)] if rows else None

    @property
    def _line(self) -> str:
        row = self._profiler
        return f"profile {row.name if row is not None else DEFAULT} {self._region}".rstrip()

    def _fill(self) -> None:
        """The chosen region's words, to be changed."""
        if self._regions:
            self.query_one("#profile-region", Input).value = self._regions[self.regions.cursor].words

    @on(LinePanel.Moved)
    def _moved(self, event: LinePanel.Moved) -> None:
        event.stop()
        if event.panel is self.regions:
            self._fill()
        if event.panel is not self.artifacts:
            self._preview()

    def on_input_changed(self) -> None:
        self._preview()

    def _problem(self) -> str:
        """Why this cannot be started, "" where it can."""
        row = self._profiler
        if row is not None and not row.ok:
            return f"{row.name} cannot run here: {row.why}. {row.hint}"
        try:
            parse_region(self._region.split())
        except CommandError as error:
            return f"{error.message}; {error.hint}"
        return ""

    def _whole(self) -> str:
        """What the list says of the line under its cursor, where there is no room for all of it."""
        shown = self.regions if self.focused is self.regions else self.profilers
        if not shown.lines:
            return ""
        text = "".join(part for part, _ in shown.lines[min(shown.cursor, len(shown.lines) - 1)])
        return " ".join(text.split()) if len(text) + 2 > shown.size.width else ""

    def _preview(self) -> None:
        self.query_one("#preview", Static).update(Content.from_markup("[$text-dim](adbg)[/] $line", line=self._line))
        problem = self._problem()
        self.query_one("#problem", Static).update(problem or Content.styled(self._whole(), "$text-dim"))

    # ---- keys

    def on_line_panel_opened(self, event: LinePanel.Opened) -> None:
        event.stop()
        self.action_accept()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_accept()

    def action_accept(self) -> None:
        if self.focused is self.artifacts:
            if self._saved:
                self.dismiss(self._saved[self.artifacts.cursor])
            else:
                self.app.bell()
        elif self._live or not self._alive or self.measuring or self._problem():
            self.app.bell()
        else:
            self.measuring = True
            self._submit(self._lines(), self._done)

    def _lines(self) -> list[str]:
        """What is run: to the node first, where that is another one than that of the stop."""
        words = self._region.split()
        if words[0] == "node" and self._here and words[1] not in (self._here, "."):
            return [f"until {words[1]}", self._line]
        return [self._line]

    def _progress(self) -> None:
        """How far it is, while it is made."""
        told = self._tell()
        if self._live and told:
            self.query_one("#profile-live", Static).update(Content(told))
        elif self.measuring and told:
            self.query_one(".profile").border_subtitle = Content(LIVE)
            self.query_one("#preview", Static).update(Content(told))

    @property
    def waits(self) -> bool:
        """There is nothing in it to be lost: it shows a profile that is made."""
        return self.measuring or bool(self._live)

    def action_stop(self) -> None:
        """End the profile that is made."""
        if self._live or self.measuring:
            self._end()
        else:
            self.app.bell()
        if self._live:
            self.dismiss(None)

    def action_give_up(self) -> None:
        if self._live or (self.measuring and self._tell()):
            self.action_stop()
        else:
            self.dismiss(None)

    def _done(self, problem: str) -> None:
        self.measuring = False
        if self.is_mounted and self.is_attached:
            self.query_one("#problem", Static).update(problem)
            if not problem:
                self.dismiss(None)

    def action_leave(self) -> None:
        self.dismiss(None)


def _profiler_line(row: ProfilerRow) -> Spans:
    if row.ok:
        return [(f"{row.name:<10}", "bold"), (f"  {row.what}", "dim")]
    return [(f"{row.name:<10}  no: {row.why}; {row.hint}", "faint")]

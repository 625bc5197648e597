"""The source line of a frame, where there is no main screen to show it on. UI thread."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen

from adbg.engine.types import SourceLine
from adbg.tui.app.lookups import Lookups
from adbg.tui.app.messages import Read
from adbg.tui.app.panels import source_file
from adbg.tui.app.panels.source import CodePanel
from adbg.tui.app.screens.dialogs import LineScreen


class SourceScreen(ModalScreen[None]):
    """Any of escape, q, o and F5 goes back."""

    BINDINGS = [
        Binding("escape,q,o,f5", "leave", "Back", show=False),
        Binding("slash", "search", "Search", show=False),
        Binding("n,full_stop", "search_next(1)", "Next", show=False),
        Binding("N,P,comma", "search_next(-1)", "Previous", show=False),
    ]

    def __init__(self, place: SourceLine) -> None:
        super().__init__()
        self._place = place
        self._lookups: Lookups | None = None
        self._sought = ""
        self._past: list[str] = []
        self.code = CodePanel()

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame full") as box:
            box.border_title = Content(f"{self._place.file}:{self._place.line}  {self._place.function}")
            box.border_subtitle = "/ n N search · h l sideways · q back to the report"
            yield self.code

    def on_mount(self) -> None:
        self._lookups = Lookups(self.app.post_message, "adbg-source")
        self.set_focus(self.code)
        self.call_after_refresh(self.code.show, self._place)

    def on_unmount(self) -> None:
        if self._lookups is not None:
            self._lookups.close()

    def on_code_panel_wanted(self, event: CodePanel.Wanted) -> None:
        event.stop()
        path = event.path

        def read(answer: Read) -> None:
            if self.is_mounted:
                self.code.highlighted(answer.key)

        if self._lookups is not None:
            self._lookups.ask("code", path, lambda: source_file.highlighted(path), read)

    def action_search(self) -> None:
        def chosen(text: str | None) -> None:
            if text:
                self._sought = text
                self.action_search_next(1)

        self.app.push_screen(LineScreen("/", "", "text in the file; n next, N previous", self._past), chosen)

    def action_search_next(self, step: int) -> None:
        if not self._sought or not self.code.search(self._sought, step):
            self.app.bell()

    def action_leave(self) -> None:
        self.dismiss(None)

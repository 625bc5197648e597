"""The last line: the keys that matter most, as they are bound now; a click does what the key does. UI thread."""

from __future__ import annotations

from typing import Any

from rich.text import Text
from textual import events
from textual.app import App
from textual.screen import Screen
from textual.widgets import Static

from adbg.tui.app import theme
from adbg.tui.app.keymap import BY_ID, HINTS
from adbg.tui.app.panels.console import CommandInput

# With the console focused: id of the key table or "", key when it is not in the table, word.
CONSOLE_HINTS = (
    ("", "enter", "Run"), ("main", "esc", "Panels"), ("", "tab", "Complete"), ("", "↑", "History"),
    ("", "^r", "Search history"),
    ("interrupt", "^c", "Pause"), ("help", "f1", "Help"),
)  # fmt: skip


def fitting(hints: list[tuple[str, str, str]], width: int) -> list[tuple[str, str, str]]:
    """The first of ``hints`` (key, word, id) that fit in ``width`` cells, 2 apart."""
    kept = []
    left = width - 1
    for key, word, name in hints:
        left -= len(key) + 1 + len(word) + 2
        if left < -2:
            break
        kept.append((key, word, name))
    return kept


def _of_screen(screen: Screen[Any], app: App[Any]) -> list[tuple[str, str, str]]:
    """The keys that a screen over this one has of its own: the first of each action, with its description."""
    classes = [each for each in type(screen).__mro__ if each.__module__.startswith("adbg.")]  # Textual's have more
    own = {binding.action for each in classes for binding in vars(each).get("BINDINGS", ())}
    found: dict[str, tuple[str, str, str]] = {}
    for _, binding in screen._bindings:
        if binding.action in own and binding.description and binding.action not in found:
            found[binding.action] = (app.get_key_display(binding), binding.description, "")
    return list(found.values())


class Hints(Static):
    """Rebuilt when the screen or the keys change."""

    _places: list[tuple[int, int, str]] = []  # (first cell, end cell, id of the key)

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, lambda screen: self.show())

    def show(self) -> None:
        """Read the live bindings, of the screen in front."""
        front = (self.app.screen_stack or [self.screen])[-1]  # none: the app goes down
        if front is not self.screen:
            self._draw(_of_screen(front, self.app))
            return
        keys: dict[str, str] = {}
        for active in self.screen.active_bindings.values():
            name = active.binding.id
            if name and name not in keys:
                keys[name] = self.app.get_key_display(active.binding)
        if isinstance(self.screen.focused, CommandInput):
            hints = [(keys.get(name, key), word, name) for name, key, word in CONSOLE_HINTS]
            self._draw(hints)
            return
        hints = [(keys[name], BY_ID[name].hint, name) for name in HINTS if name in keys and BY_ID[name].hint]
        self._draw(hints)

    def _draw(self, hints: list[tuple[str, str, str]]) -> None:
        """``hints``: key, word, id of the key."""
        text = Text(" ", no_wrap=True)
        self._places = []
        for key, word, name in fitting(hints, self.size.width or 80):
            start = text.cell_len
            text.append(key, theme.STYLES["key"])
            text.append(" " + word, theme.STYLES["dim"])
            self._places.append((start, text.cell_len, name))
            text.append("  ")
        self.update(text)

    async def on_click(self, event: events.Click) -> None:
        """Do what the key does."""
        for start, end, name in self._places:
            if start <= event.x < end and name:
                key = BY_ID[name]
                await self.app.run_action(key.action, self.app if key.where == "app" else self.screen)

    def on_resize(self) -> None:
        self.show()

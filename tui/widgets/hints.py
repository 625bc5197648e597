"""The last line: the keys that matter most, as they are bound now; a click does what the key does. UI thread."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from adbg.tui.keymap import BY_ID, HINTS


def fitting(hints: list[tuple[str, str, str]], width: int) -> list[tuple[str, str, str]]:
    """The first of ``hints`` (key, word, action) that fit in ``width`` cells, 2 apart."""
    kept = []
    left = width - 1
    for key, word, action in hints:
        left -= len(key) + 1 + len(word) + 2
        if left < -2:
            break
        kept.append((key, word, action))
    return kept


class Hints(Static):
    """Built anew when the screen or the keys change."""

    def show(self) -> None:
        """Read the live bindings."""
        keys: dict[str, str] = {}
        for active in self.screen.active_bindings.values():
            name = active.binding.id
            if name and name not in keys:
                keys[name] = self.app.get_key_display(active.binding)
        hints = [(keys[name], BY_ID[name].hint, BY_ID[name].action) for name in HINTS if name in keys and BY_ID[name].hint]
        parts: list[Content | str] = [" "]
        for key, word, action in fitting(hints, self.size.width or 80):
            call = f"@click=app.{action}" if "(" in action else f"@click=app.{action}()"
            parts.append(Content.from_markup(f"[{call}][$accent]$key[/] [$text-dim]$word[/][/]  ", key=key, word=word))
        self.update(Content.assemble(*parts))

    def on_resize(self) -> None:
        self.show()

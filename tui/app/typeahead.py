"""Keys in the order they were typed, each with what the one before it led to. UI thread.

Textual hands a key to the widget that has the focus and continues with the next one; what the first one does (another
panel, a question at the bottom) comes about some messages later. Whoever types `/Exp`, or pastes keys over ssh, lost
the letters. Here the next key waits until the one before it went through the widget, its parents and the app, until
these have nothing more to do, and until a screen that it opened can take it: about a millisecond.
"""

from __future__ import annotations

from collections import deque
from typing import TypeVar

from textual import events
from textual.app import App
from textual.dom import DOMNode
from textual.message import Message
from textual.timer import Timer

from adbg.engine.types import NodeStop, StopReason

PATIENCE = 0.5  # seconds; a widget that was taken away gives no answer, and a slow one holds no keyboard

Result = TypeVar("Result")

_STOPS = {
    StopReason.BREAKPOINT: "at a breakpoint", StopReason.PAUSE: "because it was paused",
    StopReason.NAN: "at a NaN", StopReason.INF: "at an infinity", StopReason.ERROR: "at an exception",
    StopReason.BACKWARD: "at the bounds of a backward", StopReason.ENTRY: "where a backward begins",
}  # fmt: skip


class StepsAhead:
    """Stepping keys that were typed while a step was under way. They are taken one by one, each once the step before it
    is done; what stops for another reason (a breakpoint, a NaN) ends them: nobody wants to run past it."""

    MOST = 3  # a held key must not go on for long after it is let go

    def __init__(self) -> None:
        self._lines: deque[str] = deque()

    def __len__(self) -> int:
        return len(self._lines)

    def put(self, line: str) -> bool:
        """Keep ``line`` for later; False when there is no room."""
        if len(self._lines) < self.MOST:
            self._lines.append(line)
            return True
        return False

    def take(self) -> str:
        """The next line to run; "" for none."""
        return self._lines.popleft() if self._lines else ""

    def drop(self, stop: NodeStop | None) -> str:
        """Forget them; which they were, what came before them (``stop``; None: the end), and what to do."""
        dropped, many = ", ".join(self._lines), len(self._lines) > 1
        self._lines.clear()
        they = "They were" if many else "It was"
        head = f"typed ahead and not run: {dropped}. {they} to follow a step, but"
        if stop is None:
            return f"{head} the program stands at no node any more"
        return f"{head} the program stopped {_STOPS.get(stop.reason, 'elsewhere')}: press the key again to go on"


class KeyDone(Message):
    """Follows a key on its way from the widget up to the app."""

    verbose = True

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class TypeAhead(App[Result]):
    """An app that handles one key after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._typed: deque[events.Key | events.Paste] = deque()
        self._keys = 0  # handed out so far
        self._at_work = False
        self._patience: Timer | None = None

    async def on_event(self, event: events.Event) -> None:
        """As the app's; a key or a paste waits for its turn."""
        if isinstance(event, (events.Key, events.Paste)) and not event.is_forwarded:
            self._typed += _apart(event)
            await self._next_key()
            return
        await super().on_event(event)

    async def _next_key(self) -> None:
        if self._at_work or not self._typed or not self.screen_stack:  # none: the app is going down
            return
        self._at_work = True
        self._keys += 1
        number = self._keys
        target = self._target()
        self._patience = self.set_timer(PATIENCE, lambda: self._key_done(number))
        await super().on_event(self._typed.popleft())
        if not target.post_message(KeyDone(number)):
            await self._key_done(number)

    def _target(self) -> DOMNode:
        return self.focused or self.screen

    async def on_key_done(self, message: KeyDone) -> None:
        """The key came up to here. What it led to (a line was submitted, a question is answered) is on its way in the
        queues: once more behind it, until they are empty."""
        message.stop()
        if message.number != self._keys or not self._at_work or not self.screen_stack:
            return
        target = self._target()
        idle = self.screen.is_mounted and not any(node.message_queue_size for node in target.ancestors_with_self)
        if idle or not target.post_message(KeyDone(message.number)):
            await self._key_done(message.number)

    async def _key_done(self, number: int) -> None:
        if number == self._keys and self._at_work:
            self._at_work = False
            if self._patience is not None:
                self._patience.stop()
            await self._next_key()


def _apart(event: events.Key | events.Paste) -> list[events.Key | events.Paste]:
    """Escape and a key right behind it come as that key with alt (a terminal sends the same bytes for both). No key of
    adbg's has alt."""
    if not isinstance(event, events.Key) or not event.key.startswith("alt+"):
        return [event]
    character = event.character
    if character is None or not character.isprintable():
        return [event]
    name = event.key.removeprefix("alt+").removeprefix("shift+")
    return [events.Key("escape", None), events.Key(character if len(name) == 1 else name, character)]

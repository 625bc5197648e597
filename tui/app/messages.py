"""Messages that come to the app from its worker threads and screens (panels have their own, beside them)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual.message import Message

from adbg.engine.errors import AdbgError


class Read(Message):
    """A lookup was answered: ``result``, or ``error``. ``key`` is what the question was about; ``then`` takes the
    answer."""

    def __init__(self, key: Any, result: Any, error: AdbgError | None, then: Callable[[Read], None]) -> None:
        super().__init__()
        self.key = key
        self.result = result
        self.error = error
        self.then = then


class CommandDone(Message):
    """A console command ended: its ``CommandResult``, or the error."""

    def __init__(self, line: str, result: Any, error: AdbgError | None) -> None:
        super().__init__()
        self.line = line
        self.result = result
        self.error = error


class Stray(Message):
    """Something in this process wrote to fd 1 or fd 2."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

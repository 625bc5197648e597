"""Messages that come to the app from its worker threads and screens (panels have their own, beside them)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from textual.message import Message

from adbg.engine.errors import AdbgError


@dataclass(eq=False)
class Read(Message):
    """A lookup was answered: ``result``, or ``error``. ``key`` is what the question was about; ``then`` takes the
    answer."""

    key: Any
    result: Any
    error: AdbgError | None
    then: Callable[[Read], None]


@dataclass(eq=False)
class CommandBegins(Message):
    """The turn of a console command came: its line is shown, and its answer follows. ``shown``: set then; the command
    waits for that, or what it does could be told above it."""

    line: str
    shown: threading.Event


@dataclass(eq=False)
class CommandDone(Message):
    """A console command ended: its ``CommandResult``, or the error."""

    line: str
    result: Any
    error: AdbgError | None


@dataclass(eq=False)
class Stray(Message):
    """Something in this process wrote to fd 1 or fd 2."""

    text: str

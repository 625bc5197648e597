"""The registry of messages: which request carries which arguments and gets which answer, which event which body."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

PROTOCOL_VERSION = 1
MAX_MESSAGE = 32 << 20  # bytes; a larger one is refused before it is read

T = TypeVar("T")
REQUESTS: dict[str, tuple[type, type]] = {}  # command -> (arguments, response body)
EVENTS: dict[str, type] = {}


def request(command: str, body: type) -> Callable[[type[T]], type[T]]:
    """Register an arguments class for ``command`` whose response body is ``body``."""

    def register(cls: type[T]) -> type[T]:
        REQUESTS[command] = (cls, body)
        cls.COMMAND = command  # type: ignore[attr-defined]
        return cls

    return register


def event(name: str) -> Callable[[type[T]], type[T]]:
    """Register the body class of event ``name``."""

    def register(cls: type[T]) -> type[T]:
        EVENTS[name] = cls
        cls.EVENT = name  # type: ignore[attr-defined]
        return cls

    return register


@dataclass(frozen=True, slots=True)
class Empty:
    """A body without fields."""

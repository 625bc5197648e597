"""What a key may ask of the panel that has the focus; a panel has the methods of what it can do. UI thread."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Searched(Protocol):
    """``/``, ``N`` and ``P``."""

    def search(self, text: str, step: int) -> bool | None:
        """Go to the next (1) or previous (-1) match. None: the answer follows as a message. Raises CommandError."""


@runtime_checkable
class Walked(Searched, Protocol):
    """Besides: ``e`` and ``E``, ``m`` and ``'``."""

    def next_bad(self, step: int) -> bool:
        """Go to the next or previous NaN, Inf, warning or error; False when there is none."""

    def toggle_mark(self) -> None:
        """Mark the line under the cursor, or unmark it."""

    def to_mark(self) -> bool:
        """Go to the next mark; False when there is none."""


@runtime_checkable
class Copied(Protocol):
    """``y``."""

    def copied(self) -> str:
        """The text to copy; "" for none."""


@runtime_checkable
class Breakable(Protocol):
    """``b`` and ``B``."""

    def breakpoint_spec(self) -> str:
        """Spec of what is under the cursor; "" for none."""


@runtime_checkable
class Listed(Protocol):
    """``b`` and ``delete`` on what is in a list already."""

    def toggle_command(self) -> str:
        """The command that switches what is under the cursor on or off; "" for none."""

    def delete_command(self) -> str | None:
        """The command that removes it; "" for none, None: the list is empty."""

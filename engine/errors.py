"""The one error tree of adbg.

Every message says what happened, why, and what to do next; it is printed in one place (the front end),
never as a traceback. ``hint`` is the "what next" part, kept apart so that a UI can show it dimmed.
"""

from __future__ import annotations

from typing import ClassVar


class AdbgError(Exception):
    """Base of all errors that adbg reports to the user.

    Args:
        message: what happened and why, one line.
        hint: what to do next, one line, may be empty.

    ``ID`` tells the kinds apart on the wire (DAP's ``body.error.id``); ``error_of_id`` is the way back.
    """

    ID: ClassVar[int] = 0

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ProtocolError(AdbgError):
    """A message that cannot be read: malformed, too large, unknown, or of the wrong shape."""

    ID = 1


class NotStopped(AdbgError):
    """The request needs a parked thread, and the program is running."""

    ID = 2


class Unsupported(AdbgError):
    """The framework (or this build of it) cannot do this; the message says why."""

    ID = 3


class BackendError(AdbgError):
    """The framework failed while answering."""

    ID = 4


class CommandError(AdbgError):
    """Bad input: unknown command, bad breakpoint spec, bad expression, bad edit."""

    ID = 5


class UnknownName(CommandError):
    """A name in an expression is not defined in the selected frame."""

    ID = 7


class DebuggeeGone(AdbgError):
    """The program ended or the connection to it was lost."""

    ID = 6


class AttachError(AdbgError):
    """A process cannot be entered, or entering it failed; it runs on as it was."""

    ID = 8


_KINDS = {
    kind.ID: kind
    for kind in (
        ProtocolError, NotStopped, Unsupported, BackendError, CommandError, DebuggeeGone, UnknownName, AttachError,
    )
}  # fmt: skip


def error_of_id(number: object) -> type[AdbgError]:
    """The kind that a number of the wire means; ``AdbgError`` for one that is not known."""
    return _KINDS.get(number, AdbgError) if isinstance(number, int) else AdbgError

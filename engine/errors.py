"""The one error tree of adbg (L0: imports nothing).

Every message says what happened, why, and what to do next; it is printed in one place (the front end),
never as a traceback. ``hint`` is the "what next" part, kept apart so that a UI can show it dimmed.
"""

from __future__ import annotations


class AdbgError(Exception):
    """Base of all errors that adbg reports to a person.

    Args:
        message: what happened and why, one line.
        hint: what to do next, one line, may be empty.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ProtocolError(AdbgError):
    """A message that cannot be read: malformed, too large, unknown, or of the wrong shape."""


class NotStopped(AdbgError):
    """The request needs a parked thread, and the program is running."""


class Unsupported(AdbgError):
    """The framework (or this build of it) cannot do this; the message says why."""


class BackendError(AdbgError):
    """The framework failed while answering."""


class CommandError(AdbgError):
    """Bad input of a person: unknown command, bad breakpoint spec, bad expression, bad edit."""


class DebuggeeGone(AdbgError):
    """The program ended or the connection to it was lost."""

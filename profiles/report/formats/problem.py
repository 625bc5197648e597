"""The one error of files that cannot be read or written as profiles."""

from __future__ import annotations

from pathlib import Path

from adbg.engine.errors import CommandError


class FormatError(CommandError):
    """Raised by every reader and writer of this folder."""


def damaged(path: Path, kind: str, why: str, hint: str = "") -> FormatError:
    return FormatError(f"{path} is no {kind} that adbg can read: {why}", hint or "was it written to its end?")

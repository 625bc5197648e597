"""The script's tracebacks as they would be without adbg. Runs on the thread of the exception."""

from __future__ import annotations

import types
from collections.abc import Container


def strip_own(error: BaseException, codes: Container[types.CodeType] = ()) -> None:
    """Take adbg's own frames out of the traceback of ``error``: called where it leaves adbg, right before ``raise``.

    Args:
        codes: functions of adbg's that go by a framework's name.
    """
    kept = []
    entry = error.__traceback__
    while entry is not None:
        name = entry.tb_frame.f_globals.get("__name__")
        own = isinstance(name, str) and name.partition(".")[0] == "adbg"
        if not own and entry.tb_frame.f_code not in codes:
            kept.append(entry)
        entry = entry.tb_next
    following: types.TracebackType | None = None
    for entry in reversed(kept):
        entry.tb_next = following
        following = entry
    error.__traceback__ = following

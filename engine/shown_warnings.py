"""Warnings as they are shown, for those of adbg's who want to know of them. On the threads that warn.

``warnings._showwarnmsg`` is what both C and Python end in, once the program's filters have let a warning pass;
``warnings.catch_warnings`` leaves it alone (CPython 3.10 to 3.13). One stand-in for all listeners: it is put in with
the first and taken out with the last, in whatever order they go.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from adbg.engine.outside import suppress

Listener = Callable[[Any], bool]  # of a ``warnings.WarningMessage``; True: the listener has dealt with it, show nothing

_theirs_of: Any = warnings  # its private names
_listeners: list[Listener] = []
_put: list[tuple[Any, Any]] = []  # (theirs, ours) while it is in


def listen(listener: Listener) -> bool:
    """False where this Python has no such place."""
    theirs = getattr(_theirs_of, "_showwarnmsg", None)
    if theirs is None:
        return False
    if not _put:

        def show(message: Any) -> None:
            for each in tuple(_listeners):
                if each(message):
                    return
            theirs(message)

        _theirs_of._showwarnmsg = show
        _put.append((theirs, show))
    _listeners.append(listener)
    return True


def forget(listener: Listener) -> None:
    """Where somebody put theirs over the stand-in, it stays below and does nothing any more."""
    with suppress(ValueError):
        _listeners.remove(listener)
    if not _listeners and _put:
        theirs, ours = _put.pop()
        if _theirs_of._showwarnmsg is ours:
            _theirs_of._showwarnmsg = theirs

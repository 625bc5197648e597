"""NumPy's own word on numbers that are not finite: its warnings ("invalid value encountered in divide"), with the line
of the program's that each is of. Data is often prepared in NumPy, where no operator of a framework is seen."""

from __future__ import annotations

import re
import sys
import warnings
from typing import Any

from adbg.engine.outside import suppress
from adbg.engine.python.user_code import source_line, user_frame
from adbg.engine.types import SourceLine

_theirs_of: Any = warnings  # its private names
_MOST = 32  # lines
_NAN = re.compile(r"invalid value encountered in ")
_INFINITE = re.compile(r"(divide by zero|overflow) encountered in ")


class Warned:
    """From ``put_in`` to ``take_out``: what of them is shown, once for each line as Python's default filters have it.
    Where the program silences them (``np.errstate``, ``filterwarnings``) there is nothing to see. What the program's
    filters and its ``showwarning`` make of a warning stays as it is: ``_showwarnmsg`` is what both C and Python end
    in, and ``warnings.catch_warnings`` leaves it alone (CPython 3.10 to 3.13)."""

    def __init__(self) -> None:
        self._nan: dict[SourceLine, str] = {}
        self._infinite: dict[SourceLine, str] = {}
        self._put: tuple[Any, Any] | None = None

    def put_in(self) -> None:
        theirs = getattr(_theirs_of, "_showwarnmsg", None)
        if self._put is not None or theirs is None:
            return
        note = self._note

        def show(message: Any) -> None:
            with suppress(Exception):
                note(message)
            theirs(message)

        _theirs_of._showwarnmsg = show
        self._put = theirs, show

    def take_out(self) -> None:
        """Where somebody put theirs over it, it stays below and notes nothing any more."""
        if self._put is None:
            return
        theirs, ours = self._put
        if _theirs_of._showwarnmsg is ours:
            _theirs_of._showwarnmsg = theirs
        self._put = None

    def _note(self, message: Any) -> None:
        if self._put is None or not issubclass(message.category, RuntimeWarning):
            return
        text = str(message.message)
        of = self._nan if _NAN.match(text) else self._infinite if _INFINITE.match(text) else None
        line = source_line(user_frame(sys._getframe(1))) if of is not None and len(of) < _MOST else None
        if of is not None and line is not None:
            of.setdefault(line, text)

    def of(self, nan: bool) -> dict[SourceLine, str]:
        """The lines at which NaN (else infinities) came to be, in order, each with the warning's text."""
        return dict(self._nan if nan else self._infinite)

"""NumPy's own word on numbers that are not finite: its warnings ("invalid value encountered in divide"), with the line
of the program's that each is of. Data is often prepared in NumPy, where no operator of a framework is seen."""

from __future__ import annotations

import re
import sys
from typing import Any

from adbg.engine import shown_warnings
from adbg.engine.outside import suppress
from adbg.engine.python.user_code import source_line, user_frame
from adbg.engine.types import SourceLine

_MOST = 32  # lines
_NAN = re.compile(r"invalid value encountered in ")
_INFINITE = re.compile(r"(divide by zero|overflow) encountered in ")


class Warned:
    """From ``put_in`` to ``take_out``: what of them is shown, once for each line as Python's default filters have it.
    Where the program silences them (``np.errstate``, ``filterwarnings``) there is nothing to see."""

    def __init__(self) -> None:
        self._nan: dict[SourceLine, str] = {}
        self._infinite: dict[SourceLine, str] = {}
        self._on = False

    def put_in(self) -> None:
        self._on = self._on or shown_warnings.listen(self._shown)

    def take_out(self) -> None:
        if self._on:
            shown_warnings.forget(self._shown)
        self._on = False

    def _shown(self, message: Any) -> bool:
        with suppress(Exception):
            self._note(message)
        return False

    def _note(self, message: Any) -> None:
        if not issubclass(message.category, RuntimeWarning):
            return
        text = str(message.message)
        of = self._nan if _NAN.match(text) else self._infinite if _INFINITE.match(text) else None
        line = source_line(user_frame(sys._getframe(1))) if of is not None and len(of) < _MOST else None
        if of is not None and line is not None:
            of.setdefault(line, text)

    def of(self, nan: bool) -> dict[SourceLine, str]:
        """The lines at which NaN (else infinities) came to be, in order, each with the warning's text."""
        return dict(self._nan if nan else self._infinite)

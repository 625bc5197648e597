"""Whether it is Paddle that asks for a stack, or the program: by the machine's own call stack.

Paddle asks in a function that libpaddle exports, ``GetPythonStack``, and nothing else runs in there: while that one
waits for an answer, Paddle asks. A name in the program's code says nothing (``from traceback import format_stack as
fs``, a thread's target, ``map``).

Looking costs 7 us (knowing 0.2), so what was Paddle's at one instruction is Paddle's there again, except where the
same instruction may call anything without arguments (``work()``, ``work(*args)``). On the threads of the forward.
"""

from __future__ import annotations

import ctypes
import dis
import types
from typing import Any

from adbg.engine.backends.paddle.native import symbols
from adbg.engine.outside import own

_ASKS = "_ZN6paddle6pybind14GetPythonStackB5cxx11Ev"
_NEXT = "_ZN6paddle6pybind14SetPythonStackEv"  # begins where the other ends in 3.3.1
_LONGEST = 4096  # bytes of it
_DEEP = 24  # ctypes' frames, those of adbg's Python functions (11 to 20 by Python's version), Paddle's
_FEWEST = 8  # a stack that cannot be followed is shorter
_MOST_SITES = 50_000
_COUNTED = {"CALL", "CALL_FUNCTION", "CALL_METHOD"}  # whose argument is how many the callee gets
_Buffer = ctypes.c_void_p * _DEEP
_Site = tuple[int, int]  # the code object by its address, which takes 0.1 us; its hash takes 0.5 to 2.8


class Asking:
    """``found`` False: it cannot be told here, and the caller's code is looked at instead."""

    def __init__(self) -> None:
        self._sites: dict[_Site, types.CodeType] = {}
        self._backtrace: Any = getattr(ctypes.PyDLL(None), "backtrace", None)
        self._begin = self._end = 0
        try:
            exported = symbols.library()
            self._begin = _address(exported, _ASKS)
            after = _address(exported, _NEXT)
        except own(AttributeError, OSError, symbols.NativeProblem):
            after = 0
        self._end = after if self._begin < after < self._begin + _LONGEST else self._begin + _LONGEST
        self.found = self._begin > 0 and self._backtrace is not None and self._backtrace(_Buffer(), _DEEP) >= _FEWEST

    def by_paddle(self, caller: types.FrameType) -> bool:
        """Of the call that is under way, made while ``caller`` runs."""
        if not self.found:
            return "format_stack" not in caller.f_code.co_names
        site = (id(caller.f_code), caller.f_lasti)
        if site in self._sites:
            return True
        addresses = _Buffer()
        count = self._backtrace(addresses, _DEEP)
        begin, end = self._begin, self._end
        asked = any(begin < (address or 0) < end for address in addresses[:count])
        if asked and _always(caller):
            if len(self._sites) >= _MOST_SITES:
                self._sites = {}
            self._sites[site] = caller.f_code
        return asked


def _address(library: ctypes.PyDLL, symbol: str) -> int:
    return ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0


def _always(caller: types.FrameType) -> bool:
    """Whether its instruction calls nothing that takes no argument: an operator, or a call with arguments."""
    code, at = caller.f_code.co_code, caller.f_lasti
    name = dis.opname[code[at]]
    return code[at + 1] > 0 if name in _COUNTED else not name.startswith("CALL")

"""Finds the extension ``adbg._native`` and checks it, once a process; says why it is not used.

It is used where it is built and right, but with ``ADBG_NATIVE=0``; a path there takes the one that was built at it.
Without it the Python hooks do everything, more slowly: no error anywhere.
Called on the thread that prepares a backend, and by ``adbg doctor``.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import struct
import sys
import types
from typing import Any

VARIABLE = "ADBG_NATIVE"
INTERFACE = 9  # of the extension's functions: as kInterface in module.cpp, one more with each change of theirs
_NOT_BUILT = "not built: `make native` does, with a C++ compiler"
_answer: list[tuple[Any, str]] = []


def core() -> tuple[Any, str]:
    """The extension's module and "", or None and why it is not used."""
    if not _answer:
        _answer.append(_find())
    return _answer[0]


def _find() -> tuple[Any, str]:
    asked = os.environ.get(VARIABLE, "")
    if asked == "0":
        return None, f"{VARIABLE}=0"
    try:
        module = loaded(asked) if os.path.sep in asked else importlib.import_module("adbg._native")
    except ImportError as error:
        built = not isinstance(error, ModuleNotFoundError)
        return None, f"it cannot be loaded: {error}" if built else _NOT_BUILT
    failed = check(module)
    return (None, failed) if failed else (module, "")


def loaded(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("adbg._native", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no extension module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(module: Any) -> str:
    """What the extension does wrong in this Python; "" for nothing. Runs Python only: no framework is touched."""
    if getattr(module, "INTERFACE", 0) != INTERFACE:
        return "it was built for another version of adbg: `make native`, or `pip install .`, builds it anew"
    try:
        module.begin()
    except NotImplementedError as error:
        return f"{error} ({sys.version.split()[0]})"
    if not _frames_agree(module):
        return f"its stacks differ from Python's own ({sys.version.split()[0]})"
    return "" if _numbers_agree(module) else "its numbers are wrong"


def _frames_agree(module: Any) -> bool:
    """The stack of a generator, a comprehension and a plain call, beside what ``sys._getframe`` says of it."""

    def here() -> tuple[Any, list[tuple[types.CodeType, int]]]:
        return module.stack(module.capture()), _frames(sys._getframe())

    def generated() -> Any:
        yield here()

    both = [here(), *generated(), *[here() for _ in range(2)], *map(_called, [here])]
    for taken, expected in both:
        if taken is None:
            return False
        # The innermost frame went on between the two questions.
        first, *others = taken[0]
        if first[0] is not expected[0][0] or others != expected[1:]:
            return False
    return True


def _called(call: Any) -> Any:
    return call()


def _frames(frame: types.FrameType | None) -> list[tuple[types.CodeType, int]]:
    found = []
    while frame is not None:
        found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return found


def _numbers_agree(module: Any) -> bool:
    values = (3.0, -4.0, float("inf"), float("nan"), 0.0)
    for kind, letter in enumerate("fde"):
        for some in (values, values[:2]):
            bad, count, squares = module.numbers(struct.pack(f"{len(some)}{letter}", *some), kind)
            if bad != (len(some) > 2) or count != max(0, len(some) - 3) or (squares == 25.0) == bad:
                return False
    bad, count, _ = module.numbers(struct.pack("3H", 0x3F80, 0x7F80, 0xFFC0), 3)
    return bool(bad) and bool(count == 2)

"""The script's tracebacks as they would be without adbg. Runs on the thread of the exception."""

from __future__ import annotations

import ctypes
import re
import sys
import types
from collections.abc import Container

from adbg.engine.outside import is_standard
from adbg.engine.own_files import own_folders

# Frames as a framework writes them into the text of an exception: Python's own form, with the source line below, and
# pybind11's ("  FILE(LINE): FUNCTION").
_FRAME = re.compile(
    r'^(?P<indent>[ \t]*)File "(?P<file>[^"\n]+)", line \d+, in [^\n]*\n(?:(?P=indent)[ \t]+(?!File ")[^\n]*\n)*'
    r"|^[ \t]*(?P<bound>/[^\n(]+)\(\d+\): [^\n]*(?:\n|\Z)",
    re.MULTILINE,
)


_python = ctypes.PyDLL(None)  # not ``ctypes.pythonapi``, whose functions a program may give other types


def strip_own(error: BaseException, codes: Container[types.CodeType] = ()) -> None:
    """Take adbg's own frames out of the traceback of ``error``, called where it leaves adbg, right before ``raise``;
    and where it ends in what adbg called of the standard library (a Ctrl-C while it waited for a lock), that too.

    Args:
        codes: functions of adbg's that go by a framework's name.
    """
    kept: list[types.TracebackType] = []
    below: list[types.TracebackType] | None = None  # of the standard library, called by adbg
    entry = error.__traceback__
    while entry is not None:
        name = entry.tb_frame.f_globals.get("__name__")
        own = isinstance(name, str) and name.partition(".")[0] == "adbg"
        if own or entry.tb_frame.f_code in codes:
            below = []
        elif below is not None and is_standard(entry.tb_frame.f_code.co_filename):
            below.append(entry)
        else:
            kept += [*(below or ()), entry]
            below = None
        entry = entry.tb_next
    following: types.TracebackType | None = None
    for entry in reversed(kept):
        entry.tb_next = following
        following = entry
    error.__traceback__ = following
    if sys.version_info < (3, 11):
        _raise_with(error, following)


def _raise_with(error: BaseException, trace: types.TracebackType | None) -> None:
    """Before Python 3.11 a bare ``raise`` does not take the traceback of the exception that is handled, but what was
    kept beside it as it was caught: there it is put in the place of that."""
    kind, handled, _ = sys.exc_info()
    if handled is not error:
        return
    given = (kind, handled, trace)
    for each in given:
        if each is not None:
            _python.Py_IncRef(ctypes.py_object(each))  # these references are taken
    _python.PyErr_SetExcInfo(*(ctypes.c_void_p(None if each is None else id(each)) for each in given))


def clean_text(error: BaseException) -> None:
    """Take adbg's own frames out of the text of ``error``, where a framework wrote the Python stack into it: the text
    is then the one that the script gets without adbg."""
    text = error.args[0] if error.args else None
    own = own_folders()
    if isinstance(text, str) and any(folder in text for folder in own):
        error.args = (_FRAME.sub(lambda frame: _kept(frame, own), text), *error.args[1:])


def _kept(frame: re.Match[str], own: tuple[str, ...]) -> str:
    return "" if (frame["file"] or frame["bound"]).startswith(own) else frame[0]

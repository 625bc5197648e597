"""The last function on the way to an object: one that stands still (a generator, a frame that a traceback keeps), whose
locals are variables as any, or one that carries the object with it (a closure, a default), whose own line tells more
than any path."""

from __future__ import annotations

import os
import re
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adbg.engine.inspect.attributes import instance_dict
from adbg.engine.inspect.memory.bindings import class_at, text_of
from adbg.engine.inspect.memory.reach import LIBRARIES
from adbg.engine.own_files import own_folders
from adbg.engine.types import SourceLine

_PYTHON = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_LOCAL = re.compile(r".*\.f_locals\['(\w+)'\]")
_STANDING: dict[type, str] = {
    types.GeneratorType: "gi_code",
    types.CoroutineType: "cr_code",
    types.AsyncGeneratorType: "ag_code",
    types.FrameType: "f_code",
}


@dataclass(frozen=True, slots=True)
class Scope:
    """``rest``: the path from its local on, as it would be written there; "" where the object is no local of it."""

    line: SourceLine
    text: str
    rest: str = ""


def scope_of(path: str, way: Sequence[Any]) -> Scope | None:
    """None where no function of the user's is on the way."""
    for value in reversed(way):
        code = code_of(value)
        if code is not None and is_users_file(code.co_filename):
            match = _LOCAL.match(path) if type(value) is not types.FunctionType else None
            return made_at(code, match[1] + path[match.end() :] if match else "")
    return None


def code_of(value: Any) -> types.CodeType | None:
    """Of a function, and of what stands still within one."""
    if type(value).__name__ == "_lru_cache_wrapper":
        value = instance_dict(value).get("__wrapped__")
    if type(value) is types.FunctionType:
        return value.__code__
    name = _STANDING.get(type(value))
    return getattr(value, name) if name is not None else None


def is_users_file(file: str) -> bool:
    """Neither of a library, nor Python's, nor adbg's."""
    away = file.startswith((_PYTHON, "<frozen ", *own_folders()))
    return not away and not any(f"/{each}/" in file for each in LIBRARIES)


def made_at(code: types.CodeType, rest: str = "") -> Scope:
    """Where the function of ``code`` begins."""
    file = os.path.abspath(code.co_filename)
    return Scope(SourceLine(file, code.co_firstlineno, code.co_name), text_of(file, code.co_firstlineno), rest)


def made_as(kind: type, file: str) -> Scope | None:
    """Where a class is defined."""
    line = class_at(file, kind.__name__)
    return Scope(SourceLine(os.path.abspath(file), line, "<module>"), text_of(file, line)) if line else None

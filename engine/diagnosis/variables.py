"""What the program calls an object, and where it gave that variable its value. On the thread of the program."""

from __future__ import annotations

import ast
import os
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from adbg.engine.diagnosis.source import assigned, assigned_before
from adbg.engine.frames import locals_of
from adbg.engine.outside import suppress
from adbg.engine.types import SourceLine


def frame_at(line: SourceLine | None) -> types.FrameType | None:
    """The innermost running function of this thread that is at ``line`` now."""
    frame: types.FrameType | None = sys._getframe(1) if line is not None else None
    while frame is not None and line is not None:
        if frame.f_lineno == line.line and line.file in (file := frame.f_code.co_filename, os.path.abspath(file)):
            return frame
        frame = frame.f_back
    return None


@dataclass(frozen=True, slots=True)
class Variable:
    """``name`` as the function at ``line`` has it ("model", "self.net"), "" for none. ``everywhere``: all functions of
    that file have it, for it is a global one."""

    name: str = ""
    line: SourceLine | None = None
    everywhere: bool = False

    @property
    def short(self) -> str:
        return self.name.removeprefix("self.")

    def visible_at(self, line: SourceLine | None) -> str:
        """The name, where the function at ``line`` has it too; else ""."""
        if line is None or self.line is None or line.file != self.line.file:
            return ""
        same = self.everywhere or line.function == self.line.function or self.name.startswith("self.")
        return self.name if same else ""


UNKNOWN = Variable()
UNDEFINED = object()  # what ``value_of`` does not know


def value_of(expression: ast.expr, frame: types.FrameType) -> Any:
    """Of a variable or an attribute, as a function has it now; nothing of the program runs."""
    path: list[str] = []
    while isinstance(expression, ast.Attribute):
        path.insert(0, expression.attr)
        expression = expression.value
    if not isinstance(expression, ast.Name):
        return UNDEFINED
    value = locals_of(frame).get(expression.id, frame.f_globals.get(expression.id, UNDEFINED))
    with suppress(Exception):
        for name in path:
            inner = vars(value)
            value = inner.get(name, inner.get("_modules", {}).get(name, UNDEFINED))
        return value
    return UNDEFINED


def variable_of(value: Any, line: SourceLine | None) -> Variable:
    """A variable of the function at ``line`` that is ``value``, an attribute of its ``self``, or a global one."""
    with suppress(Exception):
        frame = frame_at(line)
        if frame is not None:
            name = next((name for name, each in _seen(frame) if each is value), "")
            return Variable(name, line, frame.f_globals.get(name) is value)
    return UNKNOWN


def made_at(value: Any, line: SourceLine | None) -> SourceLine | None:
    """Where the variable of the function at ``line`` that is ``value`` was given its value, above that line."""
    with suppress(Exception):
        frame = frame_at(line)
        if frame is None or line is None:
            return None
        name = next((name for name, each in _seen(frame) if each is value), "")
        made = assigned_before(line.file, line.line, name) if name else None
        if made is not None and made[0] < line.line:
            return SourceLine(line.file, made[0], line.function)
        return _attribute_made(value, frame)
    return None


def _attribute_made(value: Any, frame: types.FrameType) -> SourceLine | None:
    """Of a tensor that an object keeps which the function names, itself or as an attribute of its own: where the class
    assigns it."""
    for _, holder in [("self", locals_of(frame).get("self")), *_seen(frame)]:
        inner = getattr(holder, "__dict__", None)
        if type(inner) is not dict or isinstance(holder, (type, types.ModuleType)):
            continue
        kept = inner.get("_buffers")
        every = {**inner, **kept} if isinstance(kept, dict) else inner
        name = next((name for name, each in list(every.items()) if each is value), "")
        code = getattr(type(holder).__init__, "__code__", None)
        if name and code is not None:
            return assigned(os.path.abspath(code.co_filename), name, type(holder).__name__)
    return None


def _seen(frame: types.FrameType) -> Iterator[tuple[str, Any]]:
    """The variables that code of this function can name, without running any of the program's."""
    values = locals_of(frame)
    me = values.pop("self", None)
    yield from _plain(values)
    inner = getattr(me, "__dict__", None)
    if type(inner) is dict:
        yield from (("self." + name, each) for name, each in _plain(inner))
        for kept in ("_modules", "_sub_layers", "_parameters", "_buffers"):
            if isinstance(parts := inner.get(kept), dict):
                yield from (("self." + name, each) for name, each in _plain(parts))
    if frame.f_globals is not frame.f_locals:
        yield from _plain(frame.f_globals)


def _plain(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((name, each) for name, each in list(values.items()) if not name.startswith("_"))

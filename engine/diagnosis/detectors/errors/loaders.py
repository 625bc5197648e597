"""The loader that a program's loop gets its batches from while an exception leaves it: how many samples its last batch
has, and the line that makes it."""

from __future__ import annotations

import ast
import os
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from adbg.engine.diagnosis.detectors.errors.foreign import given_to
from adbg.engine.diagnosis.source import (
    assigned_before,
    called_name,
    function_named,
    inside,
    nodes_of,
    returns_of,
    scope_at,
)
from adbg.engine.diagnosis.values import Step, attribute, is_users, line_in, value_of
from adbg.engine.frames import local, locals_of
from adbg.engine.outside import suppress
from adbg.engine.types import SourceLine

_FRAMEWORKS = ("torch", "paddle")
_LOADER = "DataLoader"
_END = 1 << 30  # a line behind all functions of a file
_DEPTH = 8  # variables and functions that are followed
_ITEMS = 64  # of a dict or an object that may hold a loader


@dataclass(frozen=True, slots=True)
class Written:
    """A loader that has no name: ``for x, y in DataLoader(data, 32)``."""

    call: ast.Call
    file: str
    frame: types.FrameType

    def rest(self) -> tuple[int, int, int] | None:
        given = {each.arg: each.value for each in self.call.keywords}
        given = {**dict(zip(("dataset", "batch_size"), self.call.args)), **given}
        unknown = {"sampler", "batch_sampler", "drop_last", None} & given.keys()
        size = self._value(given.get("batch_size"))
        if unknown or type(size) is not int or size < 1 or len(self.call.args) > 3:
            return None
        with suppress(Exception):
            count = len(self._value(given.get("dataset")))
            return (count, size, count % size or size) if count else None
        return None

    def _value(self, node: ast.expr | None) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        return value_of(self.frame, node) if node is not None else None


def is_loader(value: Any) -> bool:
    return any(each.__name__ == _LOADER and _is_theirs(each) for each in type(value).__mro__)


def is_set(value: Any) -> bool:
    return any(each.__name__ == "Dataset" and _is_theirs(each) for each in type(value).__mro__)


def _is_theirs(kind: type) -> bool:
    return str(kind.__module__).partition(".")[0] in _FRAMEWORKS


def rest_of(loader: Any) -> tuple[int, int, int] | None:
    """(samples, how many a batch has, how many the last one has) of a loader whose last batch may be smaller."""
    if isinstance(loader, Written):
        return loader.rest()
    batches = attribute(loader, "batch_sampler")
    size, drops, sampler = (attribute(batches, name) for name in ("batch_size", "drop_last", "sampler"))
    if not _is_theirs(type(batches)) or type(size) is not int or size < 1 or drops is not False:
        return None
    with suppress(Exception):  # a data set of the program's may not know
        count = len(sampler)
        return (count, size, count % size or size) if count else None
    return None


def looped(steps: list[Step], error: BaseException) -> Iterator[tuple[str, Any, list[Any] | None]]:
    """(its name, the loader, what its loop holds of the batch) of those that a loop goes through which the exception
    leaves, the innermost first."""
    for frame, _ in reversed(steps):
        line = line_in(error, frame) if is_users(frame) else None
        scope = scope_at(line.file, line.line) if line is not None else None
        loops = [each for each in inside(scope) if isinstance(each, (ast.For, ast.AsyncFor))] if scope else []
        for loop in sorted(loops, key=lambda each: -each.lineno):
            if line is None or not loop.lineno < line.line <= (loop.end_lineno or 0):
                continue
            names = [each.id for each in ast.walk(loop.target) if isinstance(each, ast.Name)]
            batch = [value for value in (local(frame, name) for name in names) if value is not None]
            nodes = list(ast.walk(loop.iter))
            owners = {id(each.value) for each in nodes if isinstance(each, (ast.Attribute, ast.Subscript))}
            for node in nodes:
                if isinstance(node, ast.Call) and called_name(node) == _LOADER:
                    yield "the loader", Written(node, line.file, frame), batch
                if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and id(node) not in owners:
                    for _, loader in held_in(_value(frame, node)):
                        yield ast.unparse(node), loader, batch


def _value(frame: types.FrameType, node: ast.AST) -> Any:
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name):  # loaders[phase]
        holder, key = value_of(frame, node.value), value_of(frame, node.slice)
        with suppress(Exception):
            return holder[key] if type(holder) in (dict, list, tuple) else None
    return value_of(frame, node)


def held_in(value: Any) -> Iterator[tuple[str, Any]]:
    """(by which key or attribute, the loader) of a loader itself, or one that an object, a dict or a list has, as a bar
    of progress around it."""
    if is_loader(value):
        yield "", value
        return
    parts: list[tuple[Any, Any]] = []
    if type(value) in (list, tuple):
        parts = list(enumerate(value[:_ITEMS]))
    elif not isinstance(value, (type, types.ModuleType, types.FunctionType)):
        own = value if type(value) is dict else getattr(value, "__dict__", None)
        parts = list(own.items())[:_ITEMS] if type(own) is dict else []
    yield from ((str(key), each) for key, each in parts if is_loader(each))


def every_loader(steps: list[Step]) -> list[tuple[str, Any]]:
    """(its name, the loader) of all that functions of the program's or their modules have under a name."""
    found: dict[int, tuple[str, Any]] = {}
    for frame in (each for each, _ in reversed(steps) if is_users(each)):
        for name, value in (*locals_of(frame).items(), *list(frame.f_globals.items())):
            for key, loader in held_in(value):
                found.setdefault(id(loader), (f"{name}.{key}" if key else name, loader))
    return list(found.values())


def made_on(steps: list[Step], error: BaseException, loader: Any) -> SourceLine | None:
    """The line of the call that makes it: in the statement that gives its variable, or the attribute that holds it, its
    value, or in the function that is called there; else the only such call of the program's files that run."""
    if isinstance(loader, Written):
        return _setting(loader.file, loader.call)
    frames = [each for each, _ in reversed(steps) if is_users(each)]
    for frame in frames:
        here = line_in(error, frame)
        if here is None:
            continue
        for names, line in ((locals_of(frame), here.line), (dict(frame.f_globals), _END)):
            for name, value in names.items():
                for key in (key for key, each in held_in(value) if each is loader):
                    call = _of_name(frame, here.file, line, name, value, key, loader)
                    if call is not None:
                        return call
    calls: dict[tuple[str, int], SourceLine] = {}
    for code in (frame.f_code for frame in frames):
        for node in nodes_of(code.co_filename):
            if isinstance(node, ast.Call) and _makes(node, loader):
                found = _setting(os.path.abspath(code.co_filename), node)
                calls[found.file, found.line] = found
    return next(iter(calls.values())) if len(calls) == 1 else None


def _makes(node: ast.AST, loader: Any) -> bool:
    return isinstance(node, ast.Call) and called_name(node) in (_LOADER, type(loader).__name__)


def _of_name(
    frame: types.FrameType, file: str, line: int, name: str, value: Any, key: str, loader: Any
) -> SourceLine | None:
    if key and type(value) not in (dict, list, tuple):
        given = given_to(type(value), key) if not _is_theirs(type(value)) else None
        scope = scope_at(given.file, given.line) if given is not None else None
        for node in inside(scope) if scope is not None else ():
            if given is not None and isinstance(node, (ast.Assign, ast.AnnAssign)) and node.lineno == given.line:
                return _in_statement(frame, given.file, node, f"self.{key}", "", loader, _DEPTH)
        return None
    made = assigned_before(file, line, name)
    return _in_statement(frame, file, made[1], name, key, loader, _DEPTH) if made is not None else None


def _in_statement(
    frame: types.FrameType, file: str, statement: ast.AST, name: str, key: str, loader: Any, left: int
) -> SourceLine | None:
    if not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) or statement.value is None:
        return None
    for target in getattr(statement, "targets", ()):
        if isinstance(target, (ast.Tuple, ast.List)):
            places = [at for at, each in enumerate(target.elts) if ast.unparse(each) == name]
            key = str(places[0]) if places else key
    return _in_value(frame, file, statement.value, key, loader, left)


def _in_value(
    frame: types.FrameType, file: str, value: ast.expr, key: str, loader: Any, left: int
) -> SourceLine | None:
    """``key``: which of several values it is."""
    one: ast.expr = value
    if isinstance(value, (ast.Tuple, ast.List)) and key.isdigit() and int(key) < len(value.elts):
        one, key = value.elts[int(key)], ""
    elif isinstance(value, ast.Dict):
        known = (part for each, part in zip(value.keys, value.values) if str(getattr(each, "value", None)) == key)
        one, key = next(known, value), ""
    if isinstance(one, ast.Subscript) and isinstance(one.slice, ast.Constant):
        key, one = str(one.slice.value), one.value
    if isinstance(one, ast.Name):
        made = assigned_before(file, one.lineno, one.id) if left else None
        return _in_statement(frame, file, made[1], one.id, key, loader, left - 1) if made is not None else None
    calls = [each for each in ast.walk(one) if isinstance(each, ast.Call)]
    making = [each for each in calls if _makes(each, loader)]
    if len(making) == 1:
        return _setting(file, making[0])
    for call in calls if left and not making else ():
        function = _called(frame, file, call)
        returns = returns_of(function[1]) if function is not None else []
        given = returns[-1].value if returns else None
        if function is not None and given is not None:
            found = _in_value(frame, function[0], given, key, loader, left - 1)
            if found is not None:
                return found
    return None


def _called(frame: types.FrameType, file: str, call: ast.Call) -> tuple[str, ast.AST] | None:
    """(its file, the function of the program's) that a call calls: a global name's, else the only one of the file."""
    name = called_name(call)
    value = frame.f_globals.get(name)
    if isinstance(value, types.FunctionType):
        code = value.__code__
        found = function_named(os.path.abspath(code.co_filename), code.co_firstlineno)
        return (os.path.abspath(code.co_filename), found) if found is not None else None
    known = [each for each in nodes_of(file) if isinstance(each, ast.FunctionDef) and each.name == name]
    return (file, known[0]) if len(known) == 1 else None


def _setting(file: str, call: ast.Call) -> SourceLine:
    """The line that says what becomes of the last batch: ``drop_last=False`` where it stands, that of a batch sampler
    where one is given, else that of the call."""
    batches = next((each.value for each in call.keywords if each.arg == "batch_sampler"), None)
    made: ast.AST | None = batches
    if isinstance(batches, ast.Name):
        found = assigned_before(file, call.lineno, batches.id)
        made = getattr(found[1], "value", None) if found is not None else None
    node = made if isinstance(made, ast.Call) else call
    drops = next((each.value for each in node.keywords if each.arg == "drop_last"), None)
    line = drops.lineno if drops is not None else node.lineno
    return SourceLine(file, line, str(getattr(scope_at(file, line), "name", "<module>")))

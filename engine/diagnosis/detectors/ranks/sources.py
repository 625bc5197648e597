"""What the source says: the line of a model's forward that uses one of its parameters, and the one that seeds by the
rank."""

from __future__ import annotations

import ast
import os
import types
from collections.abc import Iterator
from typing import Any

from adbg.engine.diagnosis.source import called_name, function_called, function_named, inside, scope_at
from adbg.engine.own_files import is_library, is_programs
from adbg.engine.types import SourceLine

_SEEDS = frozenset({"manual_seed", "manual_seed_all", "seed", "seed_all", "seed_everything", "set_seed"})


def use_of(root: Any, name: str) -> SourceLine | None:
    """Of parameter ``name`` ("encoder.0.weight") of a module: the line in one of the user's classes on the way to it
    that uses it, or the part that holds it; one under an ``if`` first. None where no such class uses it by name."""
    found = None
    holder = root
    parts = name.split(".")
    if parts[0] != "module" and (inner := _part(root, "module")) is not None and _part(root, parts[0]) is None:
        holder = inner  # a wrapper, which the name leaves out
    for part in parts:
        for line, conditional in _uses(type(holder), part):
            if conditional:
                return line
            found = line
        holder = _part(holder, part)
        if holder is None:
            break
    return found


def seeded_by_rank(frame: types.FrameType | None) -> tuple[SourceLine, SourceLine] | None:
    """The first line of the running functions of the program's, the outermost first, that seeds the framework's random
    numbers with something that speaks of a rank: ``manual_seed(seed + rank)``; itself, or in what it calls. With the
    line of the running function."""
    scopes = []
    while frame is not None:
        if is_programs(frame.f_code.co_filename):
            scopes.append((os.path.abspath(frame.f_code.co_filename), frame.f_lineno))
        frame = frame.f_back
    for file, line in reversed(scopes):
        scope = scope_at(file, line)
        calls = [each for each in inside(scope) if isinstance(each, ast.Call)] if scope is not None else []
        for call in sorted(calls, key=lambda each: each.lineno):
            for at in (call, *_called_in(file, call)):
                if _seeds_by_rank(at):
                    where = SourceLine(file, at.lineno, getattr(scope_at(file, at.lineno), "name", "<module>"))
                    return where, SourceLine(file, call.lineno, getattr(scope, "name", "<module>"))
    return None


def _called_in(file: str, call: ast.Call) -> list[ast.Call]:
    """The calls in a function of the file that is called."""
    function = function_called(file, call)
    return [each for each in inside(function) if isinstance(each, ast.Call)] if function is not None else []


def _seeds_by_rank(call: ast.Call) -> bool:
    names = {getattr(each, "id", getattr(each, "attr", "")) for part in call.args for each in ast.walk(part)}
    return called_name(call) in _SEEDS and any("rank" in name.lower() for name in names)


def _part(holder: Any, name: str) -> Any:
    for kept in ("_modules", "_sub_layers"):
        parts = getattr(holder, "__dict__", {}).get(kept)
        if isinstance(parts, dict) and name in parts:
            return parts[name]
    return None


def _uses(kind: type, name: str) -> Iterator[tuple[SourceLine, bool]]:
    """(line, whether it is under an ``if``) of ``self.name`` in the methods of a class of the user's."""
    for each in (each for base in kind.__mro__ for each in vars(base).values()):
        code = getattr(each, "__code__", None)
        if code is None or code.co_name == "__init__" or is_library(code.co_filename):
            continue
        method = function_named(code.co_filename, code.co_firstlineno)
        if method is not None:
            for line, conditional in _inside(method, name, False):
                yield SourceLine(code.co_filename, line, method.name), conditional


def _inside(node: ast.AST, name: str, conditional: bool) -> Iterator[tuple[int, bool]]:
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.Attribute) and each.attr == name and _is_self(each.value):
            yield each.lineno, conditional
        under = isinstance(node, (ast.If, ast.IfExp)) and each is not node.test
        yield from _inside(each, name, conditional or under)


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"

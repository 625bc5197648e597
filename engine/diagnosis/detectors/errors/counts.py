"""The variable that gave a tensor a size which does not fit: ``n = int(index.max()) + 1``, of which ``zeros(n, 8)`` is
made, and of that in turn what an operator failed on."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Collection
from typing import Any

from adbg.engine.diagnosis.source import assigned_before
from adbg.engine.frames import local
from adbg.engine.types import SourceLine

_MOST = 20  # statements that are followed back


def count_of(
    frame: types.FrameType, line: SourceLine, name: str, sizes: Collection[int], shape_of: Callable[[Any], Any]
) -> tuple[str, int, SourceLine] | None:
    """(its name, its value, the line that computes it) of the variable of a function with one of ``sizes`` that the
    variable ``name`` was made with, at ``line`` or further up. None where several are, or where it is a number that the
    source has."""
    todo, met = [(name, line.line)], set[tuple[str, int]]()
    found: dict[str, tuple[str, int, SourceLine]] = {}
    while todo and len(met) < _MOST:
        each, before = todo.pop()
        made = assigned_before(line.file, before, each)
        if made is None or made[0] >= before or (each, made[0]) in met:
            continue
        met.add((each, made[0]))
        for inner in _loaded(made[1]):
            value = local(frame, inner)
            if type(value) is int:
                at = assigned_before(line.file, made[0], inner)
                if value in sizes and at is not None and at[0] < made[0] and _computes(at[1]):
                    found[inner] = inner, value, SourceLine(line.file, at[0], line.function)
            elif inner == each or set(shape_of(value) or ()) & set(sizes):
                todo.append((inner, made[0]))
    return next(iter(found.values())) if len(found) == 1 else None


def _loaded(statement: ast.AST) -> set[str]:
    value = getattr(statement, "value", None)
    if not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)) or value is None:
        return set()
    taken = [value, statement.target] if isinstance(statement, ast.AugAssign) else [value]
    return {each.id for one in taken for each in ast.walk(one) if isinstance(each, ast.Name)}


def _computes(statement: ast.AST) -> bool:
    """Whether a number comes from elsewhere: a constant of the source may be what is meant."""
    return isinstance(statement, ast.Assign) and any(isinstance(each, ast.Call) for each in ast.walk(statement.value))

"""Which line of NumPy's made an array not finite, read back in the source from where the array is taken: data is often
prepared in several lines (``x = (x - mean) / std``, ``x = x.clip(-5, 5)``, ``torch.from_numpy(x.astype("float32"))``),
of which one divides."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from adbg.engine.diagnosis.detectors.numbers.silenced import may_make
from adbg.engine.diagnosis.source import (
    assigned_before,
    called_name,
    function_called,
    inside,
    returns_of,
    scope_at,
)
from adbg.engine.types import SourceLine

_MOST = 40  # expressions that are read
_Step = tuple[ast.expr, int, SourceLine]  # an expression, which of its results (where it has several), its line


def made_bad(line: SourceLine, name: str, finite: Collection[str] = ()) -> tuple[SourceLine, bool] | None:
    """(the line that divides, or takes a root or a logarithm, on the way to what variable ``name`` is at ``line``; the
    only one): the last of several. None where there is none, or where the way leads out of the source (an argument).
    ``finite``: variables of that function that hold finite numbers, which did not bring it in."""
    return _back([(ast.Name(name), 0, line)], finite)


def given_bad(line: SourceLine) -> tuple[SourceLine, bool] | None:
    """The same of what the statement at ``line`` gives its target, ``self.x = x.astype("float32")``, or appends."""
    scope = scope_at(line.file, line.line)
    steps: list[_Step] = []
    for node in inside(scope) if scope is not None else ():
        if isinstance(node, ast.stmt) and node.lineno == line.line:
            value = getattr(node, "value", None)
            added = isinstance(value, ast.Call) and called_name(value) in ("append", "extend")
            given = value.args if isinstance(value, ast.Call) and added else [value]
            steps += [(each, 0, line) for each in given if each is not None]
    return _back(steps, ())


def _back(todo: list[_Step], finite: Collection[str]) -> tuple[SourceLine, bool] | None:
    found: list[SourceLine] = []
    seen: set[tuple[str, int]] = set()
    here = todo[0][2].function if todo else ""
    for _ in range(_MOST):
        if not todo:
            break
        expression, place, line = todo.pop(0)
        if isinstance(expression, (ast.Tuple, ast.List)) and place < len(expression.elts):
            expression = expression.elts[place]
        for node in ast.walk(expression):
            if may_make(node):
                found.append(SourceLine(line.file, getattr(node, "lineno", line.line), line.function))
            elif isinstance(node, ast.Name) and not (line.function == here and node.id in finite):
                todo += _of_variable(node.id, line, seen)
        called = _result_of(expression, line)
        if called is not None and (line.file, called.lineno) not in seen:
            seen.add((line.file, called.lineno))
            for each in returns_of(called)[-1:]:
                if each.value is not None:
                    todo.append((each.value, place, SourceLine(line.file, each.lineno, called.name)))
    every = list(dict.fromkeys(found))
    return (every[0], len(every) == 1) if every else None


def _of_variable(name: str, line: SourceLine, seen: set[tuple[str, int]]) -> Iterator[_Step]:
    """What gave a variable its value above that line."""
    made = assigned_before(line.file, line.line, name)
    if made is None or made[0] >= line.line or (name, made[0]) in seen:
        return
    seen.add((name, made[0]))
    at, statement = SourceLine(line.file, made[0], line.function), made[1]
    value = getattr(statement, "value", None)
    if isinstance(statement, ast.AugAssign):
        yield ast.copy_location(ast.BinOp(statement.target, statement.op, statement.value), statement), 0, at
    elif isinstance(value, ast.expr):
        yield value, _place_in(statement, name), at


def _place_in(statement: ast.AST, name: str) -> int:
    for target in getattr(statement, "targets", []):
        if isinstance(target, (ast.Tuple, ast.List)):
            return next((at for at, each in enumerate(target.elts) if ast.unparse(each) == name), 0)
    return 0


def _result_of(expression: ast.expr, line: SourceLine) -> ast.FunctionDef | None:
    """The function whose result an expression is, or a method of that: ``standardised(x).astype(t)``."""
    while isinstance(expression, ast.Call):
        known = function_called(line.file, expression)
        if known is not None or not isinstance(expression.func, ast.Attribute):
            return known
        expression = expression.func.value
    return None

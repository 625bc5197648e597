"""What a failing expression calls, and what the user calls it."""

from __future__ import annotations

import ast
import dis
from typing import Any

from adbg.engine.diagnosis.source import expression_at
from adbg.engine.diagnosis.values import Step


def raises(step: Step) -> bool:
    code = step[0].f_code.co_code
    return step[1] >= 0 and dis.opname[code[step[1]]] in ("RAISE_VARARGS", "RERAISE")


def operator(steps: list[Step]) -> str:
    """What the innermost expression calls: "linear", "@"."""
    expression = expression_at(steps[-1][0].f_code, steps[-1][1])
    if isinstance(expression, ast.Call):
        function = expression.func
        return function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)
    if isinstance(expression, ast.BinOp):
        return ast.unparse(expression)
    return steps[-1][0].f_code.co_name if len(steps) > 1 else "an operator"


def called(steps: list[Step], place: int) -> str:
    """The operator; where a function of the framework's refused by itself what it was given, what the user called."""
    call = expression_at(steps[place][0].f_code, steps[place][1])
    if len(steps) > place + 1 and raises(steps[-1]) and isinstance(call, ast.Call):
        return ast.unparse(call.func)
    return operator(steps)


def distinct(pairs: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    seen: dict[int, tuple[str, Any]] = {}
    for name, value in pairs:
        seen[id(value)] = (name, value)  # the name in the user's frame is the later one
    return list(seen.values())

"""Which line of a custom function writes into what it was given, as its source says."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator, Sequence

from adbg.engine.diagnosis.detectors.functions.effects import plain_code
from adbg.engine.diagnosis.source import called_name, function_named, inside
from adbg.engine.types import SourceLine

FORWARD, BACKWARD = ("forward", "setup_context"), ("backward",)
_WRITERS = frozenset({"set_value", "copy_"})
_VIEWS = frozenset({
    "view", "reshape", "flatten", "squeeze", "unsqueeze", "transpose", "permute", "t", "narrow", "select", "detach",
    "view_as", "expand", "unbind", "data",
})  # fmt: skip


def nodes(function: type, methods: Sequence[str]) -> Iterator[tuple[str, ast.AST]]:
    for method in methods:
        code = plain_code(function, method)
        tree = function_named(code.co_filename, code.co_firstlineno) if code is not None else None
        for node in inside(tree) if tree is not None else ():
            yield os.path.abspath(code.co_filename), node


def line_with(function: type, wanted: Callable[[ast.AST], bool], methods: Sequence[str] = FORWARD) -> SourceLine | None:
    """The first line of these methods whose syntax is ``wanted``."""
    found = [(node.lineno, file) for file, node in nodes(function, methods) if hasattr(node, "lineno") and wanted(node)]
    return SourceLine(found[0][1], min(found)[0], methods[0]) if found else None


def writes_to(function: type, argument: str, methods: Sequence[str] = FORWARD) -> SourceLine | None:
    """Where they write into an argument, or into a view that they made of it."""
    names = {argument}
    for _, node in sorted(nodes(function, methods), key=lambda each: getattr(each[1], "lineno", 0)):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_view(node.value, names):
            names.add(node.targets[0].id)

    def wanted(node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            return any(_base(each) in names for each in _written(node))
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        )
        return any(
            _base(each) in names and (isinstance(each, ast.Subscript) or isinstance(node, ast.AugAssign))
            for each in targets
        )

    return line_with(function, wanted, methods)


def _written(call: ast.Call) -> list[ast.expr]:
    """What a call writes into, as far as its source says: ``x.add_(1)``, ``F.relu_(x)``, ``F.relu(x, inplace=True)``,
    ``torch.div(x, y, out=x)``."""
    keywords = {each.arg: each.value for each in call.keywords}
    found = [keywords["out"]] if "out" in keywords else []
    name = called_name(call)
    told = keywords.get("inplace")
    if (name.endswith("_") and not name.endswith("__")) or name in _WRITERS or getattr(told, "value", None) is True:
        found += [*([call.func.value] if isinstance(call.func, ast.Attribute) else []), *call.args[:1]]
    return found


def _is_view(value: ast.expr, names: set[str]) -> bool:
    while isinstance(value, (ast.Subscript, ast.Attribute, ast.Call)):
        if isinstance(value, ast.Call):
            if not isinstance(value.func, ast.Attribute) or value.func.attr not in _VIEWS:
                return False
            value = value.func
        value = value.value
    return isinstance(value, ast.Name) and value.id in names


def _base(expression: ast.expr) -> str:
    while isinstance(expression, (ast.Subscript, ast.Attribute)):
        expression = expression.value
    return expression.id if isinstance(expression, ast.Name) else ""

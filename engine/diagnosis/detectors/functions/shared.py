"""A variable of a custom function's backward that all of its wrong gradients are made of, and none of the right ones:
read from its source."""

from __future__ import annotations

import ast
import os
from collections.abc import Collection, Iterable

from adbg.engine.diagnosis.detectors.functions.effects import plain_code
from adbg.engine.diagnosis.source import (
    assigned_names,
    called_name,
    function_named,
    inside,
    nodes_of,
    parameters_of,
    returns_of,
    scope_at,
)
from adbg.engine.types import SourceLine


def shared_line(function: type, wrong: Iterable[int], right: Iterable[int]) -> SourceLine | None:
    """The last line that computes such a variable, None where there is none. ``wrong``, ``right``: places of
    results."""
    code = plain_code(function, "backward")
    tree = function_named(code.co_filename, code.co_firstlineno) if code is not None else None
    returns = returns_of(tree) if tree is not None else []
    value = returns[-1].value if returns else None
    if code is None or tree is None or not isinstance(value, (ast.Tuple, ast.List)):
        return None
    made = _computed(tree)
    used = [_used(value.elts[place], made) for place in wrong if place < len(value.elts)]
    if len(used) < 2:
        return None
    clear = set[str]().union(*(_used(value.elts[place], made) for place in right if place < len(value.elts)))
    lines = [made[name].lineno for name in set.intersection(*used) - clear]
    return SourceLine(os.path.abspath(code.co_filename), max(lines), code.co_name) if lines else None


def kept_intermediate(function: type, attributes: Collection[str]) -> tuple[str, SourceLine] | None:
    """(name, line) of what forward keeps for its backward, and that is neither an argument nor a result of it: what it
    saves, else one of ``attributes`` of its context, which are tensors."""
    code = plain_code(function, "forward")
    tree = function_named(code.co_filename, code.co_firstlineno) if code is not None else None
    if code is None or tree is None:
        return None
    outer = {*parameters_of(tree)}
    for each in returns_of(tree):
        results = each.value.elts if isinstance(each.value, (ast.Tuple, ast.List)) else [each.value]
        outer |= {result.id for result in results if isinstance(result, ast.Name)}
    computed = {name for node in inside(tree) if isinstance(node, ast.Assign) for name in assigned_names(node)} - outer
    saved, set_ = [], []
    for node in sorted((each for each in inside(tree) if hasattr(each, "lineno")), key=lambda each: each.lineno):
        if isinstance(node, ast.Call) and called_name(node) == "save_for_backward":
            saved += [(value, node.lineno) for value in node.args]
        elif isinstance(node, ast.Assign) and any(getattr(each, "attr", "") in attributes for each in node.targets):
            set_.append((node.value, node.lineno))
    for value, line in (*saved, *set_):
        plain = value.id if isinstance(value, ast.Name) else ""
        if plain in computed or (not plain and isinstance(value, (ast.Call, ast.BinOp))):
            return plain or ast.unparse(value), SourceLine(os.path.abspath(code.co_filename), line, code.co_name)
    return None


def adds_once(line: SourceLine | None) -> str:
    """What a line does that adds to rows which an index names: to each of them once."""
    for node in nodes_of(line.file) if line is not None else ():
        if line is None or not isinstance(node, ast.AugAssign) or node.lineno != line.line:
            continue
        index = node.target.slice if isinstance(node.target, ast.Subscript) else None
        if not isinstance(index, ast.Name) or _is_single(line, index.id):
            continue
        if isinstance(node.op, (ast.Add, ast.Sub)):
            return (
                f"`{ast.unparse(node)}` adds once where an index occurs several times: index_add_(), or "
                "index_put_() with accumulate=True, adds each"
            )
    return ""


def _is_single(line: SourceLine, name: str) -> bool:
    """Whether a variable counts in a loop, or is a mask: each element is named once."""
    scope = scope_at(line.file, line.line)
    for node in inside(scope) if scope is not None else ():
        if isinstance(node, (ast.For, ast.comprehension)):
            if any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node.target)):
                return True
        elif isinstance(node, ast.Assign) and name in assigned_names(node):
            mask = any(isinstance(each, ast.Compare) for each in ast.walk(node.value))
            if mask:
                return True
    return False


def _computed(function: ast.AST) -> dict[str, ast.stmt]:
    """By variable, the only statement that gives it a value, where that computes it of others: it does not take what
    was saved off the context."""
    found: dict[str, ast.stmt] = {}
    often: set[str] = set()
    statements = sorted((each for each in inside(function) if isinstance(each, ast.stmt)), key=lambda each: each.lineno)
    parameters = parameters_of(function)
    variables = {*parameters[1:], *(name for each in statements for name in assigned_names(each))}
    for node in statements:
        value = getattr(node, "value", None)
        if isinstance(value, ast.expr) and any(_reads(each, variables) for each in ast.walk(value)):
            often |= found.keys() & set(assigned_names(node))
            found.update(dict.fromkeys(assigned_names(node), node))
    return {name: node for name, node in found.items() if name not in often}


def _reads(node: ast.AST, variables: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in variables


def _used(value: ast.AST, made: dict[str, ast.stmt]) -> set[str]:
    """The variables of ``made`` that an expression is computed of, directly or by others."""
    found: set[str] = set()
    todo = [value]
    while todo:
        for each in ast.walk(todo.pop()):
            if isinstance(each, ast.Name) and each.id in made and each.id not in found:
                found.add(each.id)
                todo.append(made[each.id])
    return found

"""What the source says of how a tensor gets from one iteration into the next: a variable of the loop, an attribute, a
cache."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from adbg.engine.diagnosis.source import called_name, inside, parameters_of, scope_at, tree_of
from adbg.engine.types import SourceLine

_FILLERS = frozenset({"append", "appendleft", "add", "extend", "insert", "update", "setdefault"})
_CONTAINERS = frozenset({"tuple", "list", "dict"})
# Decorators: functools.cached_property, lru_cache, memoize, but not memory_efficient
_CACHES = re.compile(r"cache|memo(?!r)", re.IGNORECASE)


def kept_on(line: SourceLine, names: Sequence[str]) -> tuple[SourceLine, str] | None:
    """Where what a line gives ``names`` gets into something that outlives the call, and what that is: on the line
    itself, or further down in its function, as in ``out, state = self.cell(x, state)`` and ``self.state = state``, or
    ``self.memory.store("cell", state)``."""
    own = [name for name in names if "." in name or "[" in name]
    return (line, own[-1]) if own else _stored(line, names)


def _stored(line: SourceLine, names: Sequence[str]) -> tuple[SourceLine, str] | None:
    scope, found = scope_at(line.file, line.line), None
    for node in sorted(inside(scope) if scope is not None else (), key=lambda node: getattr(node, "lineno", 0)):
        if getattr(node, "lineno", 0) <= line.line:
            continue
        if isinstance(node, ast.Assign):
            kept = [each for each in node.targets if isinstance(each, (ast.Attribute, ast.Subscript))]
            if kept and _as_they_are(node.value) & set(names):
                found = SourceLine(line.file, node.lineno, line.function), ast.unparse(kept[0])
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            found = _stored_by(line.file, node.value, set(names)) or found
    return found


def _stored_by(file: str, call: ast.Call, names: set[str]) -> tuple[SourceLine, str] | None:
    """Where a function of the same file that is given one of ``names`` gives it to what outlives the call."""
    called = called_name(call)
    given = [at for at, each in enumerate(call.args) if _as_they_are(each) & names]
    if not given:
        return None
    functions = [each for each in _functions(file) if each.name == called]
    if len(functions) != 1:
        return None
    parameters = parameters_of(functions[0])
    shift = 1 if parameters[:1] == ["self"] else 0
    inner = {parameters[at + shift] for at in given if at + shift < len(parameters)}
    for node in inside(functions[0]):
        kept: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            plain = _as_they_are(node.value) & inner
            kept = [each for each in node.targets if plain and isinstance(each, (ast.Attribute, ast.Subscript))]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FILLERS:
            kept = [node.func.value] if any(_named(each) & inner for each in node.args) else []
        if kept:
            return SourceLine(file, kept[0].lineno, called), ast.unparse(kept[0])
    return None


def carried(line: SourceLine, names: Sequence[str]) -> bool:
    """Whether a loop takes one of ``names``, or what its function gives that to, before the line gives it its next
    value: a hidden state, and no loss."""
    scope = scope_at(line.file, line.line)
    nodes = list(inside(scope)) if scope is not None else []
    known = set(names)
    for node in nodes:
        if isinstance(node, ast.Assign) and _named(node.value) & set(names):
            known |= {each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)}
        if (
            isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
            and (node.lineno <= line.line <= (node.end_lineno or 0) or _named(node.value) & set(names))
        ):  # fmt: skip
            return True
    last = max([line.line, *(node.end_lineno or 0 for node in nodes
                             if isinstance(node, ast.stmt) and node.lineno <= line.line <= (node.end_lineno or 0)
                             and not hasattr(node, "body"))])  # fmt: skip
    return any(
        isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in known and node.lineno <= last
        for node in nodes
    )


def cached(line: SourceLine) -> tuple[SourceLine, str] | None:
    """The decorator that keeps the result of the function which a line is in, and the name of the function; where it
    was handed to one in a call, that call's line."""
    tree = tree_of(line.file)
    name = line.function.split(".")[-1]
    inner = [each for each in _functions(line.file) if each.lineno <= line.line <= (each.end_lineno or 0)]
    if tree is None or not inner or inner[-1].name != name:  # a comprehension, an inner function
        return None
    for each in inner[-1].decorator_list:
        if _keeps(each):
            return SourceLine(line.file, each.lineno, line.function), name
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _keeps(node.func) and name in {
            ast.unparse(each).rpartition(".")[2] for each in node.args
        }:  # fmt: skip
            return SourceLine(line.file, node.lineno, line.function), name
    return None


def _keeps(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return _CACHES.search(ast.unparse(called).rpartition(".")[2]) is not None


def _functions(file: str) -> Iterator[ast.FunctionDef]:
    tree = tree_of(file)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.FunctionDef):
            yield node


def _as_they_are(expression: ast.expr) -> set[str]:
    """The variables that a value is, or that it has in it, with their graphs: ``state``, ``(h, c)``, ``tuple(state)``,
    ``{"cell": c}``, and none of ``(h.detach(), c.detach())``."""
    if isinstance(expression, ast.Name):
        return {expression.id}
    inner: list[ast.expr] = []
    if isinstance(expression, (ast.Tuple, ast.List)):
        inner = expression.elts
    elif isinstance(expression, ast.Dict):
        inner = expression.values
    elif isinstance(expression, ast.Call) and ast.unparse(expression.func) in _CONTAINERS:
        inner = [*expression.args, *(each.value for each in expression.keywords)]
    elif isinstance(expression, (ast.ListComp, ast.GeneratorExp)) and isinstance(expression.elt, ast.Name):
        inner = [each.iter for each in expression.generators]
    found: set[str] = set()
    for each in inner:
        whole = each.value if isinstance(each, ast.Starred) else each
        plain = not any(isinstance(part, ast.Call) for part in ast.walk(whole))
        found |= _as_they_are(whole) or (_named(whole) if plain else set())
    return found


def _named(expression: ast.expr) -> set[str]:
    return {each.id for each in ast.walk(expression) if isinstance(each, ast.Name)}

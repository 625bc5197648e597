"""What the source says of how a tensor gets from one iteration into the next: a variable of the loop, an attribute, a
cache."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from adbg.engine.diagnosis.source import assigned_on, called_name, inside, nodes_of, parameters_of, scope_at, tree_of
from adbg.engine.types import SourceLine

_FILLERS = frozenset({"append", "appendleft", "add", "extend", "insert", "update", "setdefault"})
_LISTS = frozenset({"append", "appendleft", "extend"})
_CONTAINERS = frozenset({"tuple", "list", "dict"})
_BARE = frozenset({"data", "shape", "dtype", "device", "grad", "ndim", "size"})  # attributes without a graph
# Decorators: functools.cached_property, lru_cache, memoize, but not memory_efficient
_CACHES = re.compile(r"cache|memo(?!r)", re.IGNORECASE)


def kept_on(line: SourceLine, names: Sequence[str]) -> tuple[SourceLine, str] | None:
    """Where what a line gives ``names`` gets into something that outlives the call, and what that is: on the line
    itself, or further down in its function, as in ``out, state = self.cell(x, state)`` and ``self.state = state``, or
    ``self.memory.store("cell", state)``."""
    own = [name for name in names if "." in name or "[" in name]
    return (line, own[-1]) if own else _stored(line, names)


def filled_on(line: SourceLine) -> list[str]:
    """What the statement on a line puts something into: ``powers`` of ``powers.append(powers[-1] @ x)``."""
    found = []
    for node in in_order(scope_at(line.file, line.line)):
        call = node.value if isinstance(node, ast.Expr) else None
        here = node.lineno <= line.line <= (node.end_lineno or node.lineno)
        if here and isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _FILLERS:
            found.append(ast.unparse(call.func.value))
    return found


def _stored(line: SourceLine, names: Sequence[str]) -> tuple[SourceLine, str] | None:
    scope, found = scope_at(line.file, line.line), None
    known = set(names)
    for node in in_order(scope):
        if node.lineno <= line.line:
            continue
        if isinstance(node, ast.Assign):
            kept = [
                target for target, value in _pairs(node)
                if isinstance(target, (ast.Attribute, ast.Subscript)) and as_they_are(value) & known
            ]  # fmt: skip
            if kept:
                found = SourceLine(line.file, node.lineno, line.function), ast.unparse(kept[0])
            known |= unpacked(node, known)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            into = _filled(node.value, known)
            if found is None and isinstance(into, ast.Attribute):
                found = SourceLine(line.file, node.lineno, line.function), ast.unparse(into)
            found = _stored_by(line.file, node.value, known) or found
    return found


def _filled(call: ast.Call, names: set[str]) -> ast.expr | None:
    """``self.history`` of ``self.history.append(state)``; ``update`` and ``add`` are a meter's, too."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _LISTS:
        return None
    return call.func.value if any(as_they_are(each) & names for each in call.args) else None


def in_order(scope: ast.AST | None) -> list[ast.stmt]:
    """The statements of a function, from the first line on."""
    nodes = inside(scope) if scope is not None else ()
    return sorted((node for node in nodes if isinstance(node, ast.stmt)), key=lambda node: node.lineno)


def unpacked(node: ast.Assign, known: set[str]) -> set[str]:
    """The variables that get one of ``known``, or a part of it, as it is: ``hidden, memory = state``."""
    return {
        each.id for each, value in _pairs(node) if isinstance(each, ast.Name) and as_they_are(value) & known
    }  # fmt: skip


def _pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each target with its value, both values of ``self.v, self.s = v, s`` too."""
    for target in node.targets:
        if not isinstance(target, (ast.Tuple, ast.List)):
            yield target, node.value
            continue
        values = node.value.elts if isinstance(node.value, (ast.Tuple, ast.List)) else []
        each = values if len(values) == len(target.elts) else [node.value] * len(target.elts)
        yield from zip(target.elts, each)


def _stored_by(file: str, call: ast.Call, names: set[str]) -> tuple[SourceLine, str] | None:
    """Where a function of the same file that is given one of ``names`` gives it to what outlives the call."""
    function, inner = handed_to(file, call, names)
    for node in in_order(function):
        kept: list[ast.expr] = []
        called = node.value if isinstance(node, ast.Expr) else None
        if isinstance(node, ast.Assign):
            plain = as_they_are(node.value) & inner
            kept = [each for each in node.targets if plain and isinstance(each, (ast.Attribute, ast.Subscript))]
            inner |= unpacked(node, inner)
        elif isinstance(called, ast.Call) and isinstance(called.func, ast.Attribute) and called.func.attr in _FILLERS:
            kept = [called.func.value] if any(named_in(each) & inner for each in called.args) else []
        if kept and function is not None:
            return SourceLine(file, kept[0].lineno, function.name), ast.unparse(kept[0])
    return None


def handed_to(file: str, call: ast.Call, names: set[str]) -> tuple[ast.FunctionDef | None, set[str]]:
    """The function of that file which a call of it hands one of ``names``, and its parameters for them."""
    called = called_name(call)
    given = [at for at, each in enumerate(call.args) if as_they_are(each) & names]
    functions = [each for each in functions_in(file) if each.name == called] if given else []
    if len(functions) != 1:
        return None, set()
    parameters = parameters_of(functions[0])
    shift = 1 if parameters[:1] == ["self"] else 0
    return functions[0], {parameters[at + shift] for at in given if at + shift < len(parameters)}


def carried(line: SourceLine, names: Sequence[str]) -> bool:
    """Whether a loop takes one of ``names``, or what its function gives that to, before the line gives it its next
    value: a hidden state, and no loss."""
    scope = scope_at(line.file, line.line)
    nodes = list(inside(scope)) if scope is not None else []
    known = set(names)
    for node in nodes:
        if isinstance(node, ast.Assign) and named_in(node.value) & set(names):
            known |= {each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)}
        if (
            isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
            and (node.lineno <= line.line <= (node.end_lineno or 0) or named_in(node.value) & set(names))
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
    inner = [each for each in functions_in(line.file) if each.lineno <= line.line <= (each.end_lineno or 0)]
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


def functions_in(file: str) -> Iterator[ast.FunctionDef]:
    for node in nodes_of(file):
        if isinstance(node, ast.FunctionDef):
            yield node


def as_they_are(expression: ast.expr) -> set[str]:
    """The variables that a value is, or that it has in it, with their graphs: ``state``, ``state[1]``, ``(h, c)``,
    ``tuple(state)``, ``{"cell": c}``, and none of ``(h.detach(), c.detach())``. What a class makes of them is not
    known."""
    if isinstance(expression, (ast.Name, ast.Attribute, ast.Subscript)):
        return _of_path(expression)
    found: set[str] = set()
    for each in parts_of(expression) if not is_made(expression) else ():
        plain = not any(isinstance(part, ast.Call) for part in ast.walk(each))
        found |= as_they_are(each) or (named_in(each) if plain else set())
    return found


def _of_path(expression: ast.expr) -> set[str]:
    """``state`` of ``state[1].cell``, where that may be a tensor with its graph; of ``(old + [state])[-2:]`` too."""
    while isinstance(expression, (ast.Attribute, ast.Subscript)):
        if isinstance(expression, ast.Attribute) and expression.attr in _BARE:
            return set()
        expression = expression.value
    if isinstance(expression, ast.BinOp):
        return as_they_are(expression)
    return {expression.id} if isinstance(expression, ast.Name) else set()


def is_made(expression: ast.expr) -> bool:
    """An object of a class: ``State(h, c)``."""
    return called_name(expression)[:1].isupper()


def parts_of(expression: ast.expr) -> list[ast.expr]:
    """What a value is put together of: the items of a list, the values of a dict, the arguments of a class. None of
    what is no container."""
    inner: list[ast.expr | None] = []
    if isinstance(expression, (ast.Tuple, ast.List)):
        inner = [*expression.elts]
    elif isinstance(expression, ast.Dict):
        inner = [*expression.values]
    elif isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Add):  # lists, as one of them is
        both = [expression.left, expression.right]
        inner = [*both] if any(isinstance(each, (ast.Tuple, ast.List)) for each in both) else []
    elif isinstance(expression, ast.Call):
        name = called_name(expression)
        if ast.unparse(expression.func) in _CONTAINERS or is_made(expression) or name == "_replace":
            inner = [*expression.args, *(each.value for each in expression.keywords)]
        if name == "_replace" and isinstance(expression.func, ast.Attribute):
            inner.append(expression.func.value)
    elif isinstance(expression, (ast.ListComp, ast.GeneratorExp)) and isinstance(expression.elt, ast.Name):
        inner = [each.iter for each in expression.generators]
    return [each.value if isinstance(each, ast.Starred) else each for each in inner if each is not None]


def named_in(expression: ast.expr) -> set[str]:
    return {each.id for each in ast.walk(expression) if isinstance(each, ast.Name)}


def makes_of_itself(line: SourceLine, made: SourceLine, name: str) -> bool:
    """Whether the statement there, and not that of ``made``, gives the same variable a new value that is computed of
    the old one: an attribute, or a variable of the same function."""
    same = line.file == made.file and ("." in name or line.function == made.function)
    if not name or line == made or not same or name not in assigned_on(line.file, line.line):
        return False
    here = [
        node for node in in_order(scope_at(line.file, line.line))
        if node.lineno <= line.line <= (node.end_lineno or node.lineno)
    ]  # fmt: skip
    taken = {
        ast.unparse(part)
        for node in here if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
        for part in ast.walk(node.value) if isinstance(part, ast.expr)
    }  # fmt: skip
    return name in taken or any(isinstance(node, ast.AugAssign) for node in here)

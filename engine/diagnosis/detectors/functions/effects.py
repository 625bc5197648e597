"""Whether a custom function may be run again: whether anybody would see it."""

from __future__ import annotations

import ast
import dis
import re
import types
from collections import Counter
from collections.abc import Iterator
from typing import Any

from adbg.engine.diagnosis.source import function_named, parameters_of

_EFFECTS = frozenset(
    ("print", "open", "write", "all_reduce", "all_gather", "broadcast", "send", "recv", "reduce_scatter", "barrier",
     "append", "add_", "update")
)  # fmt: skip


def plain_code(function: type, name: str) -> Any:
    method = getattr(function, name, None)
    return getattr(getattr(method, "__wrapped__", method), "__code__", None)


def has_effects(function: type) -> bool:
    """Whether running it again may be seen: it prints, writes, talks to other ranks, or sets what is not its own. What
    it is given are copies; a buffer that all of its calls share is not."""
    for name in ("forward", "backward", "setup_context"):
        code, known = plain_code(function, name), _globals_of(function, name)
        todo = [code] if code is not None else []
        while todo:
            each = todo.pop()
            tree = function_named(each.co_filename, each.co_firstlineno)
            if (_EFFECTS & set(each.co_names) and (tree is None or not _on_its_own(tree))) or _stores_global(each):
                return True
            if tree is not None and _writes_shared(tree, each, known):
                return True
            todo += [const for const in each.co_consts if hasattr(const, "co_code")]
    return False


def _stores_global(code: Any) -> bool:
    return any(each.opname == "STORE_GLOBAL" for each in dis.get_instructions(code))


def _on_its_own(tree: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether all that it does so it does to what it made itself: ``rows = []``, ``rows.append(x)``; ``g =
    torch.empty(n)``, ``g[token].add_(row)``."""
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    stored = Counter(name.id for name in names if isinstance(name.ctx, ast.Store))
    made = Counter(name for name, value in _assigned_in(tree) if _is_new(value))
    own = {name for name, times in made.items() if times == stored[name]} - set(parameters_of(tree))
    return all(_root_of(node) in own for node in _effects_in(tree))


def _assigned_in(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """(name, value) of ``name = value``."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            to = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(to, ast.Name):
                yield to.id, node.value


def _effects_in(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _EFFECTS:
            yield node.value
        elif isinstance(node, ast.Name) and node.id in _EFFECTS:
            yield node


def _is_new(value: ast.expr) -> bool:
    """Nothing else has it: a display, or what a function of such a name makes."""
    if isinstance(value, ast.Call):
        called = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        return re.fullmatch(r"(new_)?(empty|zeros|ones|full)(_like)?|clone|list|dict|set", called) is not None
    return isinstance(value, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp))


def _globals_of(function: type, name: str) -> dict[str, Any]:
    method = getattr(function, name, None)
    return getattr(getattr(method, "__wrapped__", method), "__globals__", {})


def _writes_shared(tree: ast.AST, code: Any, known: dict[str, Any]) -> bool:
    """Whether it writes in place to what others have, too: a global name, one of the function around it, or what is got
    from these (``work = arena.take(n)``)."""
    names = {*code.co_names, *code.co_freevars} - {*code.co_varnames, *code.co_cellvars}
    modules = {name for name in names if isinstance(known.get(name), types.ModuleType)}
    shared = names - modules
    for name, value in _assigned_in(tree):
        if _root_of(value) in shared and not _is_new(value):
            shared.add(name)
    return any(root in shared for root in _written_in(tree, modules))


def _written_in(tree: ast.AST, modules: set[str]) -> Iterator[str]:
    """Roots of what is written to in place: ``work[0] = x``, ``work.copy_(x)``, ``mul(x, y, out=work)``."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            yield _root_of(node.value)
        elif isinstance(node, ast.AugAssign):
            yield _root_of(node.target)
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            inplace = called.endswith("_") and not called.endswith("__")
            owner = _root_of(node.func.value) if isinstance(node.func, ast.Attribute) else ""
            if inplace and owner in modules:  # torch.relu_(work)
                yield from map(_root_of, node.args[:1])
            elif inplace or called == "set_value":
                yield owner
            elif called == "assign" and len(node.args) > 1:  # paddle.assign(x, work)
                yield _root_of(node.args[1])
            yield from (_root_of(each.value) for each in node.keywords if each.arg in ("out", "output"))


def _root_of(node: ast.expr) -> str:
    while isinstance(node, (ast.Subscript, ast.Attribute, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""

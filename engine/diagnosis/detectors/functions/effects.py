"""Whether a custom function may be run again: whether anybody would see it."""

from __future__ import annotations

import ast
import dis
import re
import types
from collections import Counter
from collections.abc import Iterator
from typing import Any

from adbg.engine.diagnosis.detectors.functions.reached import Reached
from adbg.engine.diagnosis.source import called_name, function_named, parameters_of, tree_of
from adbg.engine.outside import own
from adbg.engine.own_files import is_library

_EFFECTS = frozenset(
    ("print", "open", "write", "all_reduce", "all_gather", "broadcast", "send", "recv", "reduce_scatter", "barrier",
     "append", "add_", "update", "extend", "insert", "pop", "popleft", "appendleft", "setdefault", "writelines")
)  # fmt: skip
_MOST = 200  # functions that are read


def plain_code(function: type, name: str) -> Any:
    method = getattr(function, name, None)
    return getattr(getattr(method, "__wrapped__", method), "__code__", None)


def has_effects(function: type) -> bool:
    """Whether running it again may be seen: it, or what it calls, prints, writes, talks to other ranks, or sets what is
    not its own. What it is given are copies; a buffer that all of its calls share is not, nor is an object that others
    have, whose methods may do anything. What cannot be read counts as seen."""
    try:
        return _has_effects(function)
    except own(Exception):  # an object of the program's that lets nobody look at it
        return True


def _has_effects(function: type) -> bool:
    todo: list[Any] = []
    classes, met = [function], {function}
    while classes:
        each = classes.pop()
        for name in ("forward", "backward", "setup_context"):
            todo += _layers(getattr(each, name, None))
        seen: dict[int, Any] = {}  # code by its address: equal functions of two files are two
        while todo:
            plain = todo.pop()
            if id(plain.__code__) in seen:
                continue
            seen[id(plain.__code__)] = plain.__code__
            reached = _reached(plain)
            if reached is None or len(seen) > _MOST or any(map(_writes_given, reached.given)):
                return True
            todo += reached.functions
            classes += [each for each in reached.classes if each not in met]
            met.update(classes)
    return False


def _layers(method: Any) -> Iterator[types.FunctionType]:
    """A method and what its decorators wrap, without those of the framework (``once_differentiable``)."""
    for _ in range(8):
        method = getattr(method, "__func__", method)
        wrapped = getattr(method, "__wrapped__", None)
        if type(method) is types.FunctionType and (wrapped is None or not is_library(method.__code__.co_filename)):
            yield method
        if wrapped is None:
            return
        method = wrapped


def _reached(function: types.FunctionType) -> Reached | None:
    """None where it does something that is seen, or its source cannot be read."""
    code = function.__code__
    tree = _tree_of(code)
    if tree is None or (_EFFECTS & _names_in(code) and not _on_its_own(tree)):
        return None
    if any(map(_stores_global, _codes_in(code))) or _writes_shared(tree, code, function.__globals__):
        return None
    reached = Reached(tree, function)
    return None if reached.impure else reached


def _tree_of(code: types.CodeType) -> Any:
    """A lambda's as that of a function, where it is the only one of its line."""
    if code.co_name != "<lambda>":
        return function_named(code.co_filename, code.co_firstlineno)
    tree = tree_of(code.co_filename)
    found = [each for each in ast.walk(tree) if isinstance(each, ast.Lambda)] if tree is not None else []
    here = [each for each in found if each.lineno == code.co_firstlineno]
    if len(here) != 1:
        return None
    return ast.FunctionDef(name="", args=here[0].args, body=[ast.Return(value=here[0].body)], decorator_list=[])


def _codes_in(code: Any) -> Iterator[Any]:
    """A function's code, and that of functions and comprehensions in it."""
    yield code
    for const in code.co_consts:
        if hasattr(const, "co_code"):
            yield from _codes_in(const)


def _names_in(code: Any) -> set[str]:
    return {name for each in _codes_in(code) for name in each.co_names}


def _writes_given(function: types.FunctionType) -> bool:
    """Whether it writes to what it is handed, and cannot be shown not to."""
    tree = _tree_of(function.__code__)
    return tree is None or bool({*_written_in(tree, set())} & {*parameters_of(tree)})


def _stores_global(code: Any) -> bool:
    return any(each.opname == "STORE_GLOBAL" for each in dis.get_instructions(code))


def _on_its_own(tree: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether all that it does so it does to what it made itself: ``rows = []``, ``rows.append(x)``; ``g =
    torch.empty(n)``, ``g[token].add_(row)``. What such a name is given afterwards (``rows = torch.stack(rows)``) does
    not matter."""
    effects = list(_effects_in(tree))
    loops = [{*map(id, ast.walk(node))} for node in ast.walk(tree) if isinstance(node, (ast.For, ast.While))]
    on: dict[str, list[ast.expr]] = {}
    for node in effects:
        on.setdefault(_root_of(node), []).append(node)

    def is_late(store: ast.Name) -> bool:
        around = [inner for inner in loops if id(store) in inner]
        return all(
            store.lineno > (each.end_lineno or 0) and not any(id(each) in inner for inner in around)
            for each in on.get(store.id, ())
        )

    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    stored = Counter(name.id for name in names if not is_late(name))
    made = Counter(to.id for to, value in _assigned_in(tree) if _is_new(value) and not is_late(to))
    own = {name for name, times in made.items() if times == stored[name]} - set(parameters_of(tree))
    return all(name in own for name in on)


def _assigned_in(tree: ast.AST) -> Iterator[tuple[ast.Name, ast.expr]]:
    """(name, value) of ``name = value``, and of each in ``one, other = [], []``."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            to = node.targets[0] if isinstance(node, ast.Assign) else node.target
            pairs = [(to, node.value)]
            if isinstance(to, (ast.Tuple, ast.List)) and isinstance(node.value, (ast.Tuple, ast.List)):
                each = [*to.elts, *node.value.elts]
                alike = len(to.elts) == len(node.value.elts) and not any(isinstance(one, ast.Starred) for one in each)
                pairs = list(zip(to.elts, node.value.elts)) if alike else []
            yield from ((name, value) for name, value in pairs if isinstance(name, ast.Name))


def _effects_in(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _EFFECTS:
            yield node.value
        elif isinstance(node, ast.Name) and node.id in _EFFECTS:
            yield node


def _is_new(value: ast.expr) -> bool:
    """Nothing else has it: a display, or what a function of such a name makes."""
    if isinstance(value, ast.Call):
        called = called_name(value)
        return re.fullmatch(r"(new_)?(empty|zeros|ones|full)(_like)?|clone|list|dict|set", called) is not None
    return isinstance(value, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp))


def _writes_shared(tree: ast.AST, code: Any, known: dict[str, Any]) -> bool:
    """Whether it writes in place to what others have, too: a global name, one of the function around it, or what is got
    from these (``work = arena.take(n)``)."""
    codes = list(_codes_in(code))
    kept = {name for each in codes for name in (*each.co_varnames, *each.co_cellvars)}
    names = _names_in(code).union(code.co_freevars) - kept
    modules = {name for name in names if isinstance(known.get(name), types.ModuleType)}
    shared = names - modules
    for name, value in _assigned_in(tree):
        if _root_of(value) in shared and not _is_new(value):
            shared.add(name.id)
    return any(root in shared for root in _written_in(tree, modules))


def _written_in(tree: ast.AST, modules: set[str]) -> Iterator[str]:
    """Roots of what is written to in place: ``work[0] = x``, ``work.copy_(x)``, ``mul(x, y, out=work)``."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            yield _root_of(node.value)
        elif isinstance(node, ast.AugAssign):
            yield _root_of(node.target)
        elif isinstance(node, ast.Call):
            called = called_name(node)
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

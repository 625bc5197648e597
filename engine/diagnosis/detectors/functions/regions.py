"""What a checkpointed region runs, read off its source: where it draws random numbers of Python's or NumPy's, and where
it changes what its next pass finds. No code of the program's runs; nothing that is met is kept."""

from __future__ import annotations

import ast
import functools
import os
import random
import re
import sys
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.diagnosis.source import function_named, tree_of
from adbg.engine.diagnosis.values import attribute
from adbg.engine.outside import suppress
from adbg.engine.own_files import is_library
from adbg.engine.types import SourceLine

_MOST = 200  # functions that are read
_MODULES = 500
_UNKNOWN = object()
_ABSENT = attribute(object(), "")
# ``random.gauss``, ``np.random.rand``, ``self.rng.normal``, ``default_rng(0).random``
GENERATORS = re.compile(
    r"(?:^|[._])(?:rng|random|default_rng|RandomState|generator)\b.*\.\w+$|^(?:randint|uniform|gauss)$"
)
FRAMEWORKS = re.compile(r"(?:torch|paddle|F|nn)\.")
_NO_DRAWS = frozenset((
    "seed", "getstate", "setstate", "get_state", "set_state", "manual_seed", "Random", "SystemRandom", "default_rng",
    "RandomState", "Generator", "SeedSequence", "PCG64", "Philox", "spawn",
))  # fmt: skip
_CHANGES = frozenset((
    "append", "appendleft", "extend", "insert", "pop", "popleft", "popitem", "add", "discard", "remove", "clear",
    "update", "setdefault", "rotate", "reverse", "sort",
))  # fmt: skip


@dataclass(slots=True)
class Region:
    """``drawn``: (line, call as it is written, whether of the generator that all share). ``changed``: by what is
    changed and read ("self.calls"), the lines that change it."""

    drawn: list[tuple[SourceLine, str, bool]] = field(default_factory=list)
    changed: dict[str, list[SourceLine]] = field(default_factory=dict)


def read_region(function: Any) -> Region:
    """Of the function or module that a checkpoint was given."""
    reader = _Reader()
    with suppress(Exception):  # an object of the program's may raise anything where it is asked for a name
        reader.read(function)
    region = reader.region
    region.changed = {name: lines for name, lines in region.changed.items() if reader.reads[name]}
    return region


class _Reader:
    def __init__(self) -> None:
        self.region = Region()
        self.reads: Counter[str] = Counter()
        self._met: set[tuple[int, type]] = set()  # code by its address: equal functions of two files are two
        self._held: list[types.CodeType] = []

    def read(self, thing: Any) -> None:
        while isinstance(thing, functools.partial):
            thing = thing.func
        if isinstance(thing, types.MethodType):
            self._function(thing.__func__, thing.__self__)
        elif isinstance(thing, types.FunctionType):
            self._function(thing, None)
        elif _is_module(thing):
            for each in _modules_of(thing):
                self._function(_method(type(each), "forward"), each)
        elif not isinstance(thing, type):
            self._function(_method(type(thing), "__call__"), thing)

    def _function(self, function: Any, owner: Any) -> None:
        function = getattr(function, "__wrapped__", function)
        if type(function) is not types.FunctionType or is_library(function.__code__.co_filename):
            return
        mark = (id(function.__code__), type(owner))
        tree = _tree_of(function.__code__) if mark not in self._met and len(self._met) < _MOST else None
        self._met.add(mark)
        self._held.append(function.__code__)
        if tree is not None:
            names = _names_of(function, owner)
            todo = [value for node in _inside(tree) for value in self._node(node, function, names)]
            self._changes(tree, function, type(owner).__name__ if owner is not None else "")
            for value in todo:
                self.read(value)

    def _node(self, node: ast.AST, function: types.FunctionType, names: dict[str, Any]) -> Iterator[Any]:
        """What runs with a node: functions that it calls, modules that it names."""
        if isinstance(node, ast.Call):
            shared = _draws(node.func, names)
            if shared is not None:
                line = SourceLine(os.path.abspath(function.__code__.co_filename), node.lineno, function.__name__)
                self.region.drawn.append((line, ast.unparse(node.func), shared))
            called = _value(node.func, names)
            if isinstance(called, (types.FunctionType, types.MethodType, functools.partial)):
                yield called
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            value = _value(node, names)
            if _is_module(value) and not (isinstance(node, ast.Name) and node.id in ("self", "cls")):
                yield value

    def _changes(self, tree: ast.AST, function: types.FunctionType, owner: str) -> None:
        """Attributes of ``self`` and names from outside that it changes, and reads beside that."""
        file, outside = os.path.abspath(function.__code__.co_filename), set(_globals_of(function))
        of_itself: set[tuple[int, str]] = set()  # nodes within what changes a thing, and what that is

        def note(target: ast.expr, statement: ast.AST) -> str:
            name = _place(target, outside, owner)
            if name:
                line = SourceLine(file, getattr(target, "lineno", 0), function.__name__)
                self.region.changed.setdefault(name, []).append(line)
                of_itself.update((id(each), name) for each in ast.walk(statement))
            return name

        for node in _inside(tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                        note(each, node)
            elif isinstance(node, ast.AugAssign):
                note(node.target, node)
            elif isinstance(node, ast.Call):
                method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
                if isinstance(node.func, ast.Attribute) and method in _CHANGES:
                    name = note(node.func.value, node.func)
                    self.reads[name] += method.startswith("pop")  # what comes out is used
                elif getattr(node.func, "id", "") == "next" and node.args:
                    self.reads[note(node.args[0], node)] += 1
        for node in _inside(tree):
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                name = _place(node, outside, owner)
                self.reads[name] += bool(name) and (id(node), name) not in of_itself


def _place(node: ast.AST, outside: set[str], owner: str) -> str:
    """ "Block.calls" of ``self.calls[0]`` in class Block; "" for what is the function's own."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self":
        return f"{owner}.{node.attr}"
    root = node
    while isinstance(root, ast.Attribute):
        root = root.value
    return ast.unparse(node) if isinstance(root, ast.Name) and root.id in outside else ""


def _draws(called: ast.expr, names: dict[str, Any]) -> bool | None:
    """None for what draws nothing of Python's or NumPy's; else whether of the generator that all of them share."""
    text = ast.unparse(called)
    if (called.attr if isinstance(called, ast.Attribute) else text) in _NO_DRAWS:
        return None
    value = _value(called, names)
    holder = getattr(value, "__self__", _UNKNOWN) if value is not _UNKNOWN else _UNKNOWN
    if holder is _UNKNOWN and isinstance(called, ast.Attribute):
        holder = _value(called.value, names)
    if holder is not _UNKNOWN:
        kind = type(holder).__module__
        if isinstance(holder, types.ModuleType):
            return True if holder.__name__ in ("random", "numpy.random") else None
        shared = getattr(random, "_inst", None), getattr(sys.modules.get("numpy.random.mtrand"), "_rand", _UNKNOWN)
        return any(holder is each for each in shared) if kind == "random" or kind.startswith("numpy.random") else None
    if value is not _UNKNOWN or FRAMEWORKS.match(text) or re.search(r"\(\d+\)\.", text):
        return None
    return False if isinstance(called, ast.Attribute) and GENERATORS.search(text) else None


def _value(node: ast.AST, names: dict[str, Any]) -> Any:
    """What a name or an attribute of one is, as far as no code has to run for that."""
    if isinstance(node, ast.Name):
        return names.get(node.id, _UNKNOWN)
    if not isinstance(node, ast.Attribute):
        return _UNKNOWN
    holder = _value(node.value, names)
    if holder is _UNKNOWN:
        return _UNKNOWN
    if isinstance(holder, types.ModuleType):
        return vars(holder).get(node.attr, _UNKNOWN)
    if type(holder).__module__.startswith(("numpy.random", "random")):
        return _UNKNOWN
    kept = attribute(holder, node.attr)
    if kept is not _ABSENT:
        return kept
    plain = _method(holder if isinstance(holder, type) else type(holder), node.attr)
    if type(plain) is types.FunctionType and not isinstance(holder, type):
        return types.MethodType(plain, holder)
    return plain if type(plain) is types.FunctionType else _UNKNOWN


def _method(kind: type, name: str) -> Any:
    found = next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), None)
    return found.__func__ if isinstance(found, staticmethod) else found


def _globals_of(function: types.FunctionType) -> dict[str, Any]:
    """Names that it has from outside: global ones, and those of the function around it."""
    names = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        with suppress(ValueError):  # empty so far
            names[name] = cell.cell_contents
    for name in function.__code__.co_varnames:
        names.pop(name, None)
    return names


def _names_of(function: types.FunctionType, owner: Any) -> dict[str, Any]:
    names, code = _globals_of(function), function.__code__
    given = function.__defaults__ or ()
    names.update(zip(code.co_varnames[code.co_argcount - len(given) : code.co_argcount], given))  # lambda h, part=part
    names.update(function.__kwdefaults__ or {})
    if owner is not None and code.co_argcount:
        names[code.co_varnames[0]] = owner
    return names


def _tree_of(code: types.CodeType) -> ast.AST | None:
    """A lambda's where it is the only one of its line."""
    if code.co_name != "<lambda>":
        return function_named(code.co_filename, code.co_firstlineno)
    tree = tree_of(code.co_filename)
    found = [each for each in ast.walk(tree) if isinstance(each, ast.Lambda)] if tree is not None else []
    here = [each for each in found if each.lineno == code.co_firstlineno]
    return here[0] if len(here) == 1 else None


def _inside(tree: ast.AST) -> Iterator[ast.AST]:
    """With functions in it: it calls them."""
    for node in ast.iter_child_nodes(tree):
        yield from ast.walk(node)


def _is_module(value: Any) -> bool:
    kind = type(value)
    return hasattr(kind, "named_modules") or hasattr(kind, "named_sublayers")


def _modules_of(module: Any) -> list[Any]:
    named = module.named_modules() if hasattr(module, "named_modules") else module.named_sublayers(include_self=True)
    return [each for _, (_, each) in zip(range(_MODULES), named)]

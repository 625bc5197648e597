"""What a function of the program's reaches beside what it is given: functions that it calls, objects that others have.
Read off its source and the values of its global names; no code of the program's runs."""

from __future__ import annotations

import ast
import builtins
import collections
import enum
import functools
import random
import sys
import types
from collections.abc import Iterator
from typing import Any

#: Their functions compute, and do nothing that anybody else sees but draw random numbers, which are restored.
_COMPUTE = frozenset((
    "abc", "cmath", "collections", "contextlib", "copy", "dataclasses", "einops", "enum", "fractions", "functools",
    "itertools", "math", "numbers", "numpy", "operator", "paddle", "random", "re", "scipy",
    "statistics", "time", "torch", "triton", "types", "typing", "typing_extensions", "warnings",
))  # fmt: skip
_SEEN = frozenset(("print", "open", "input", "exec", "eval", "setattr", "delattr", "__import__", "breakpoint"))
_FRAMEWORKS = ("torch", "paddle", "numpy", "scipy")
#: Kinds of theirs that nothing changes, and operators.
_FIXED = frozenset((
    "dtype", "device", "Size", "layout", "memory_format", "finfo", "iinfo", "qscheme", "DataType", "VarType", "Place",
    "CPUPlace", "CUDAPlace", "ufunc", "_ArrayFunctionDispatcher", "OpOverload", "OpOverloadPacket", "ScriptFunction",
))  # fmt: skip
_PLAIN = (
    bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset, range, slice, type(None), type(...),
    type(NotImplemented),
)  # fmt: skip
_CONTAINERS = (list, dict, set, collections.deque)
_READS = frozenset(("get", "keys", "values", "items", "index", "count", "copy", "union", "intersection", "difference"))
_UNKNOWN = object()


class Reached:
    """``functions``: those of the program's that it refers to. ``impure``: what it refers to may be changed by that, or
    tell others of it."""

    def __init__(self, tree: ast.FunctionDef | ast.AsyncFunctionDef, function: types.FunctionType) -> None:
        self.functions: list[types.FunctionType] = []
        self.classes: list[type] = []  # custom functions that are applied
        self.given: list[types.FunctionType] = []  # those that are handed tensors or containers that others have
        self._names = _known_names(tree, function)
        self._local = _local_names(tree) - self._names.keys() | {each.arg for each in _arguments(tree)}
        self.impure = any(self._is_impure(node) for node in _outermost(tree))

    def _value(self, node: ast.AST) -> Any:
        """What a name or an attribute of one is; ``_UNKNOWN`` for what the function itself has or is given."""
        if isinstance(node, ast.Name):
            if node.id in self._local or not isinstance(node.ctx, ast.Load):
                return _UNKNOWN
            return self._names.get(node.id, _UNKNOWN)
        if isinstance(node, ast.Attribute):
            holder = self._value(node.value)
            return _attribute(holder, node.attr) if holder is not _UNKNOWN else _UNKNOWN
        return _UNKNOWN

    def _is_impure(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            self._note_given(node)
            if any(each.arg == "generator" and not _is_none(each.value) for each in node.keywords):
                return True
            return isinstance(node.func, ast.Attribute) and self._changes(node.func)
        value = self._value(node)
        return value is not _UNKNOWN and self._is_impure_value(value)

    def _changes(self, called: ast.Attribute) -> bool:
        """``LOG.extend(rows)``: a container that others have, and no reading of it."""
        holder = self._value(called.value)
        return isinstance(holder, _CONTAINERS) and called.attr not in _READS

    def _note_given(self, call: ast.Call) -> None:
        function = self._value(call.func)
        if isinstance(function, types.FunctionType):
            values = [self._value(each) for each in (*call.args, *[each.value for each in call.keywords])]
            if any(isinstance(each, _CONTAINERS) or _is_tensor(each) for each in values):
                self.given.append(function)

    def _is_impure_value(self, value: Any) -> bool:
        kind = type(value)
        root = _root(kind)
        if isinstance(value, functools.partial):
            return any(map(self._is_impure_value, (value.func, *value.args, *value.keywords.values())))
        if kind is types.FunctionType:
            if _root(value) not in _COMPUTE:
                self.functions.append(value)
            return False
        if kind in (types.MethodType, types.BuiltinFunctionType):
            return self._is_impure_method(value)
        if isinstance(value, type):
            if _root(value) not in _COMPUTE and value.__module__ != "builtins":
                self.functions += [each for each in vars(value).values() if type(each) is types.FunctionType]
            return False
        if kind in _PLAIN or isinstance(value, (types.ModuleType, enum.Enum, tuple)) or _is_tensor(value):
            return False
        if kind.__module__ == "functools" and hasattr(value, "__wrapped__"):  # a cache
            return self._is_impure_value(value.__wrapped__)
        if root in _FRAMEWORKS:
            return kind.__name__ not in _FIXED
        return root not in _COMPUTE or root in ("itertools", "random")  # they go on where they were

    def _is_impure_method(self, value: Any) -> bool:
        holder = value.__self__
        if isinstance(holder, type) and value.__name__ == "apply" and hasattr(holder, "backward"):
            self.classes.append(holder)
            return False
        if isinstance(holder, type) and type(value) is types.MethodType:
            return self._is_impure_value(value.__func__)
        if holder is None or isinstance(holder, (type, types.ModuleType)) or type(holder).__name__ == "PyCapsule":
            home = (value.__module__ or "").partition(".")[0]
            if home == "builtins":
                return value.__name__ in _SEEN
            return home in sys.stdlib_module_names and home.lstrip("_") not in _COMPUTE
        return not (_is_tensor(holder) or type(holder) in (str, tuple) or _is_restored(holder))


def _outermost(tree: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """Calls, names and attributes in the body, without the names that an attribute is of: ``CONFIG.scale`` reads a
    number, whatever CONFIG is."""
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.Call, ast.Name, ast.Attribute)):
            yield node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            todo += node.body
        elif isinstance(node, ast.AnnAssign):
            todo += [node.target, *([node.value] if node.value is not None else [])]
        elif not (isinstance(node, ast.Attribute) and _is_chain(node)):
            todo += ast.iter_child_nodes(node)


def _is_chain(node: ast.AST) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _arguments(tree: ast.AST) -> Iterator[ast.arg]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.arg))


def _local_names(tree: ast.AST) -> set[str]:
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    made = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node is not tree)
    return stored | {node.name for node in made}


def _known_names(tree: ast.AST, function: types.FunctionType) -> dict[str, Any]:
    """Values by name: builtin, global, of the function around it, imported in it. Not what it assigns itself."""
    names = {**vars(builtins), **function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            names[name] = None
    for each in _local_names(tree):
        names.pop(each, None)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                path = alias.name if alias.asname else alias.name.partition(".")[0]
                names[alias.asname or path] = sys.modules.get(path, _UNKNOWN)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                module = sys.modules.get(node.module or "")
                names[alias.asname or alias.name] = vars(module).get(alias.name, _UNKNOWN) if module else _UNKNOWN
    return names


def _attribute(holder: Any, name: str) -> Any:
    """``holder.name`` without running code of the program's. The holder itself where it cannot be told: what is impure
    about it is so of its parts."""
    if isinstance(holder, types.ModuleType):
        found = vars(holder).get(name, _UNKNOWN)
        return getattr(holder, name, None) if found is _UNKNOWN and _root(holder) in _COMPUTE else found
    if isinstance(holder, type):
        if name == "apply" and hasattr(holder, "backward"):
            return getattr(holder, name)
        for kind in holder.__mro__:
            if name in vars(kind):
                found = vars(kind)[name]
                return getattr(found, "__func__", found)
        return holder
    if _root(type(holder)) in _COMPUTE:
        return holder
    own = getattr(holder, "__dict__", None)
    if type(own) is dict and name in own:
        return own[name]
    default = next((vars(kind)[name] for kind in type(holder).__mro__ if name in vars(kind)), holder)
    return default if type(default) in _PLAIN else holder


def _is_restored(holder: Any) -> bool:
    """The generator behind ``random.random`` or ``numpy.random.rand``."""
    numpys = getattr(sys.modules.get("numpy.random"), "mtrand", None)
    return holder is getattr(random, "_inst", None) or (numpys is not None and holder is getattr(numpys, "_rand", None))


def _is_tensor(value: Any) -> bool:
    return _root(type(value)) in ("torch", "paddle", "numpy") and hasattr(type(value), "shape")


def _root(thing: Any) -> str:
    """The package of a class, a function or a module."""
    name = thing.__name__ if isinstance(thing, types.ModuleType) else getattr(thing, "__module__", "")
    return name.partition(".")[0].lstrip("_") if isinstance(name, str) else ""  # Python's _functools is functools

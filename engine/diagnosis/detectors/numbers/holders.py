"""Whose array NaN in a batch comes from: an attribute of a data set that the variables of running functions lead to, or
a variable of the function that made a tensor of it."""

from __future__ import annotations

import ast
import math
import os
import sys
import types
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.diagnosis.detectors.numbers.prepared import made_bad
from adbg.engine.diagnosis.source import assigned, assigned_before, called_name, inside, nodes_of, scope_at
from adbg.engine.diagnosis.values import is_users
from adbg.engine.frames import forget_stack, local, locals_of
from adbg.engine.outside import suppress
from adbg.engine.own_files import is_programs
from adbg.engine.python.user_code import source_line
from adbg.engine.types import SourceLine

_MOST = 500  # objects that are looked at
_DEPTH = 4  # from a variable: a trainer, its loader, a subset, the data set
_SETS = ("dataset", "_dataset")  # what loaders, and what goes through them, call what they read from
_LARGEST = values.MOST  # elements of an array
_TAKERS = frozenset({"from_numpy", "as_tensor", "tensor", "to_tensor", "asarray"})
_MOVERS = frozenset({
    "astype", "copy", "reshape", "transpose", "stack", "concatenate", "array", "asarray", "ascontiguousarray",
    "squeeze", "expand_dims", "ravel", "flatten", "swapaxes",
})  # fmt: skip


def holder_of_bad_data(backend: Backend, nan: bool) -> tuple[str, SourceLine] | None:
    """("Stations.table, 3 NaN of 800 elements", the line that assigns it) of the first attribute with a NaN, or with an
    infinity that is no mask's; None where none is found. Reads arrays on the thread that it is called on: once run."""
    try:
        for owner in owners():
            for name, value in tuple(vars(owner).items()):
                bad, count = _bad_in(backend, value, nan)
                line = _given(_file_of(type(owner)), name, type(owner).__name__) if bad else None
                if line is not None:
                    return (
                        f"{type(owner).__name__}.{name}, {bad:,} {'NaN' if nan else 'infinite'} of {count:,} elements",
                        line,
                    )
    finally:
        forget_stack()
    return None


def maker_of_bad_array(backend: Backend, line: SourceLine | None, nan: bool) -> tuple[str, SourceLine] | None:
    """("x is made of 3 NaN of 800 elements", the line that computes it) where ``line`` makes a tensor of a variable of
    its function (``torch.from_numpy(x)``) that holds such an array; None where that is not so."""
    if line is None:
        return None
    try:
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and (frame.f_code.co_filename, frame.f_lineno) != (line.file, line.line):
            frame = frame.f_back
        variables = locals_of(frame) if frame is not None else {}
        for name in _taken(line) if variables else ():
            bad, count = _bad_in(backend, variables.get(name), nan)
            divided = made_bad(line, name, _finite(variables)) if bad else None
            made = divided[0] if divided is not None else _computed(line, name) if bad else None
            if made is not None:
                return f"{name}, {bad:,} {'NaN' if nan else 'infinite'} of {count:,} elements, is computed", made
    finally:
        frame, variables = None, {}
        forget_stack()
    return None


def variable_of_bad_data(backend: Backend, nan: bool) -> tuple[str, SourceLine] | None:
    """("x, 40 NaN of 240 elements, comes from a division", the line that divides) of the first variable of the running
    functions that is such a tensor, and whose way back in the source leads to a line that divides or the like."""
    try:
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            line = source_line(frame) if is_users(frame) else None
            for name, value in locals_of(frame).items() if line is not None else ():
                if line is None or not backend.is_tensor(value) or backend.meta(value).requires_grad:
                    continue
                bad, count = _bad_in(backend, value, nan)
                made = made_bad(line, name) if bad else None
                if made is not None:
                    return f"{name}, {bad:,} {'NaN' if nan else 'infinite'} of {count:,} elements, comes from", made[0]
            frame = frame.f_back
    finally:
        frame, value = None, None
        forget_stack()
    return None


def _finite(variables: Mapping[str, Any]) -> set[str]:
    """The names of arrays and numbers that are finite."""
    found = {name for name, each in variables.items() if isinstance(each, (int, float)) and math.isfinite(each)}
    for name, each in variables.items():
        numbers = _numbers_in(each) if _is_array(each) else None
        if numbers is not None and all(map(math.isfinite, numbers)):
            found.add(name)
    return found


def _taken(line: SourceLine) -> list[str]:
    """The variables that calls on a line make tensors of, as they are or moved: ``from_numpy(x.astype("float32"))``."""
    scope = scope_at(line.file, line.line)
    given = [
        _unmoved(node.args[0])
        for node in (inside(scope) if scope is not None else ())
        if isinstance(node, ast.Call) and node.args and node.lineno <= line.line <= (node.end_lineno or 0)
        and called_name(node) in _TAKERS
    ]  # fmt: skip
    return [each.id for each in given if isinstance(each, ast.Name)]


def _unmoved(value: ast.AST | None) -> ast.AST | None:
    """The array of which an expression is only a copy, or one that is turned."""
    while isinstance(value, ast.Call) and called_name(value) in _MOVERS:
        owner = value.func.value if isinstance(value.func, ast.Attribute) else None
        library = isinstance(owner, ast.Name) and owner.id in ("np", "numpy")
        value = value.args[0] if value.args and (library or owner is None) else owner
    return value


def _computed(line: SourceLine, name: str) -> SourceLine | None:
    """The last line above that gives a variable its numbers: what only copies or turns another one leads on to that.
    None where they come from elsewhere: an argument, an attribute, an element."""
    at = line.line
    for _ in range(5):
        found = assigned_before(line.file, at, name)
        if found is None or found[0] >= at:
            return None
        at, statement = found
        value = _unmoved(getattr(statement, "value", None))
        if isinstance(statement, ast.AugAssign) or isinstance(value, (ast.BinOp, ast.UnaryOp, ast.Call)):
            return SourceLine(line.file, at, line.function)
        if not isinstance(value, ast.Name):
            return None
        name = value.id
    return None


def owners() -> Iterator[Any]:
    """Objects of the user's classes that variables lead to, the nearest first, and what loaders read from."""
    frame: types.FrameType | None = sys._getframe(1)
    found: list[tuple[Any, int]] = []
    while frame is not None:
        if is_users(frame):
            found += [(value, 0) for value in locals_of(frame).values()]
        elif isinstance(kept := getattr(local(frame, "self"), "__dict__", None), dict):
            found += [(kept[name], 1) for name in _SETS if name in kept]  # of a loader that no variable has
        frame = frame.f_back
    seen: set[int] = set()
    while found and len(seen) < _MOST:
        value, depth = found.pop(0)
        if id(value) in seen or isinstance(value, (type, types.ModuleType, types.FunctionType)):
            continue
        seen.add(id(value))
        inner = getattr(value, "__dict__", None)
        if type(inner) is not dict:
            continue
        own = bool(_file_of(type(value)))
        if own:
            yield value
        if depth < _DEPTH:
            wanted = tuple(inner.values()) if own else tuple(map(inner.get, _SETS))
            found += [(each, depth + 1) for each in wanted if each is not None]


def _given(file: str, name: str, kind: str) -> SourceLine | None:
    """Where an attribute of a class gets its numbers: the only line that appends to it, else where it is assigned."""
    found = [
        node.lineno
        for each in nodes_of(file)
        if isinstance(each, ast.ClassDef) and each.name == kind
        for node in ast.walk(each)
        if isinstance(node, ast.Call) and called_name(node) in ("append", "extend")
        and isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == f"self.{name}"
    ]  # fmt: skip
    if len(found) != 1:
        return assigned(file, name, kind)
    return SourceLine(file, found[0], getattr(scope_at(file, found[0]), "name", "<module>"))


def _file_of(kind: type) -> str:
    """The file of a class of the user's; "" of any other."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return os.path.abspath(file) if file and is_programs(file) and kind.__module__ != "builtins" else ""


def _bad_in(backend: Backend, value: Any, nan: bool) -> tuple[int, int]:
    """(elements that are NaN, or plus infinity; elements) of an array of numpy or a tensor; (0, 0) of anything else."""
    numbers = _numbers_in(value) if _is_array(value) else None
    if numbers is None and not _is_array(value):
        found = values.numbers(backend, value)
        numbers = found.flat if found is not None and found.dtype in values.LARGEST else None
    if nan:
        return sum(1 for each in numbers or () if each != each), len(numbers or ())
    return sum(1 for each in numbers or () if each == math.inf), len(numbers or ())


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"


def _numbers_in(value: Any) -> Sequence[float] | None:
    """Of an array of numpy; None where they are not of the usual types, or too many."""
    kind = getattr(value.dtype, "char", "")
    if kind not in "fd" or not 0 < value.size <= _LARGEST or value.dtype.byteorder not in "=|":
        return None
    numbers: Any = array(kind)
    with suppress(Exception):
        numbers.frombytes(value.tobytes())
    return numbers  # type: ignore[no-any-return]

"""Data that a loop gets from a data set of the program's: the line that makes it there, or in what joins the items to
a batch."""

from __future__ import annotations

import ast
import functools
import linecache
import os
import re
import types
from typing import Any

from adbg.engine.diagnosis.source import (
    assigned_names,
    function_named,
    inside,
    line_of_result,
    returns_of,
    tree_of,
)
from adbg.engine.diagnosis.values import Step, attribute, codes_of, value_of
from adbg.engine.own_files import is_library
from adbg.engine.types import SourceLine

#: What chooses a type; ``tensor(x)`` and ``array(x)`` keep that of an array.
_CHOOSES = re.compile(
    r"dtype|astype|\.(?:double|float|half|bfloat16|long|int)\(\)|\b(?:zeros|ones|full|empty)\(|LongTensor|FloatTensor"
)


def item_line(steps: list[Step], line: SourceLine, name: str) -> SourceLine | None:
    """Where ``__getitem__`` of the program's own class makes what ``for x, y in loader`` on ``line`` calls ``name``, or
    its ``collate_fn``, where that chooses a type. None: that is no such loop, or what it runs over is not known."""
    tree = tree_of(line.file)
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For) and node.lineno == line.line] if tree else []
    frame = next((each for each, _ in steps if _runs(each.f_code, line)), None)
    if len(loops) != 1 or frame is None:
        return None
    target, over = loops[0].target, loops[0].iter
    while isinstance(over, ast.Call) and isinstance(over.func, ast.Name) and over.func.id in ("enumerate", "tqdm"):
        counted = over.func.id == "enumerate" and isinstance(target, ast.Tuple) and len(target.elts) == 2
        target, over = target.elts[1] if isinstance(target, ast.Tuple) and counted else target, over.args[0]
    place = _place(target, name)
    joined = _joined_line(frame, over, place) if place is not None else None
    if joined is not None and _chooses(joined):
        return joined
    kinds = _data_set(frame, over).__mro__
    method = next((vars(each)["__getitem__"] for each in kinds if "__getitem__" in vars(each)), None)
    if place is None or not isinstance(method, types.FunctionType) or is_library(method.__code__.co_filename):
        return joined
    file = os.path.abspath(method.__code__.co_filename)
    function = function_named(file, method.__code__.co_firstlineno)
    return SourceLine(file, line_of_result(file, function, place), "__getitem__") if function is not None else None


def _joined_line(frame: types.FrameType, over: ast.expr, place: int) -> SourceLine | None:
    """Where the ``collate_fn`` of a loader, which is the program's own, makes its ``place``-th result."""
    collate = attribute(value_of(frame, over), "collate_fn")
    while isinstance(collate, functools.partial):
        collate = collate.func
    if isinstance(collate, types.MethodType):
        collate = collate.__func__
    for _, code in codes_of(collate):
        file = os.path.abspath(code.co_filename)
        function = function_named(file, code.co_firstlineno)
        if function is not None:
            line = SourceLine(file, line_of_result(file, function, place), code.co_name)
            made = (SourceLine(file, each, code.co_name) for each in _given_at(function, place))
            return next(filter(_chooses, made), line)
    return None


def _given_at(function: ast.AST, place: int) -> list[int]:
    """Lines that give the variable its value which a function returns at that place; what fills it is none."""
    returned = returns_of(function)
    value = returned[-1].value if returned else None
    if isinstance(value, (ast.Tuple, ast.List)):
        value = value.elts[place] if place < len(value.elts) else None
    while isinstance(value, ast.Call) and value.args and not value.keywords:  # torch.tensor(x)
        value = value.args[0]
    name = value.id if isinstance(value, ast.Name) else ""
    return [node.lineno for node in inside(function)
            if isinstance(node, ast.Assign) and name in assigned_names(node)] if name else []  # fmt: skip


def _chooses(line: SourceLine) -> bool:
    return _CHOOSES.search(linecache.getline(line.file, line.line)) is not None


def _runs(code: types.CodeType, line: SourceLine) -> bool:
    return os.path.abspath(code.co_filename) == line.file and any(each == line.line for _, _, each in code.co_lines())


def _place(target: ast.expr, name: str) -> int | None:
    if isinstance(target, (ast.Tuple, ast.List)):
        names = [ast.unparse(each) for each in target.elts]
        return names.index(name) if name in names else None
    return 0 if ast.unparse(target) == name else None


def _data_set(frame: types.FrameType, over: ast.expr) -> type:
    """The class of the data set that a loader has: a variable, or made right there as ``DataLoader(Data(…))``."""
    if isinstance(over, ast.Call):
        given = over.args[0] if over.args else over
        found: Any = value_of(frame, given.func if isinstance(given, ast.Call) else given)
        return found if isinstance(found, type) else type(found)
    found = value_of(frame, over)
    for _ in range(5):  # a part of another one has that too
        inner = attribute(found, "dataset")
        if type(inner) is object:
            break
        found = inner
    return type(found)

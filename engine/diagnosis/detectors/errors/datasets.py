"""Data that a loop gets from a data set of the program's: the line that makes it there."""

from __future__ import annotations

import ast
import os
import types
from typing import Any

from adbg.engine.diagnosis.source import function_named, line_of_result, tree_of
from adbg.engine.diagnosis.values import Step, attribute, value_of
from adbg.engine.own_files import is_library
from adbg.engine.types import SourceLine


def item_line(steps: list[Step], line: SourceLine, name: str) -> SourceLine | None:
    """Where ``__getitem__`` of the program's own class makes what ``for x, y in loader`` on ``line`` calls ``name``.
    None: that is no such loop, or what it runs over is not known."""
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
    kinds = _data_set(frame, over).__mro__
    method = next((vars(each)["__getitem__"] for each in kinds if "__getitem__" in vars(each)), None)
    if place is None or not isinstance(method, types.FunctionType) or is_library(method.__code__.co_filename):
        return None
    file = os.path.abspath(method.__code__.co_filename)
    function = function_named(file, method.__code__.co_firstlineno)
    return SourceLine(file, line_of_result(file, function, place), "__getitem__") if function is not None else None


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

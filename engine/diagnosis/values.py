"""Values of the program's variables at a frame, read without running its code, and where they were made."""

from __future__ import annotations

import ast
import re
import types
from collections.abc import Iterator, Sequence
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.diagnosis.source import assigned_before, expression_at, function_named, parameters_of
from adbg.engine.frames import local, locals_of
from adbg.engine.outside import own, suppress
from adbg.engine.own_files import is_library
from adbg.engine.python.user_code import USER, framework_roots, owner_of, source_line
from adbg.engine.types import SourceLine

_MISSING = object()
_OF_VALUES = re.compile(
    r"\b(?:nans?|infs?)\b|\bfinite\b|invalid value|constraint|converge|positive[- ](?:semi-?)?definite|singular|"
    r"between 0 and 1|\[0, ?1\]", re.I
)  # fmt: skip
Step = tuple[types.FrameType, int]  # a frame of a traceback, and the instruction in it


def is_users(frame: types.FrameType) -> bool:
    """Code that the user wrote: no framework's, no library's."""
    return owner_of(frame, framework_roots()) == USER and not is_library(frame.f_code.co_filename)


def is_of_values(text: str) -> bool:
    """An exception says that numbers are not finite, or out of a range: nothing of shapes or types."""
    return _OF_VALUES.search(text) is not None


def steps_of(error: BaseException) -> list[Step]:
    """The frames that an exception came through, the outermost first, without adbg's own."""
    found = []
    trace = error.__traceback__
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] != "adbg":
            found.append((trace.tb_frame, trace.tb_lasti, trace.tb_lineno))
        trace = trace.tb_next
    return [(frame, lasti) for frame, lasti, _ in found]


def line_in(error: BaseException, frame: types.FrameType) -> SourceLine | None:
    """Where the exception came through ``frame``: that goes on to be somewhere else while it is handled."""
    found = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame is frame:
            at = source_line(frame)
            found = SourceLine(at.file, trace.tb_lineno, at.function) if at is not None else None
        trace = trace.tb_next
    return found


def value_of(frame: types.FrameType, expression: ast.AST) -> Any:
    """What a name, an attribute of one or an item with a constant index is; ``_MISSING`` where code
    would have to run."""
    if isinstance(expression, ast.Name):
        value = local(frame, expression.id)
        return frame.f_globals.get(expression.id, _MISSING) if value is None else value
    if isinstance(expression, ast.Attribute):
        holder = value_of(frame, expression.value)
        return attribute(holder, expression.attr) if holder is not _MISSING else _MISSING
    if isinstance(expression, ast.Subscript) and isinstance(expression.slice, ast.Constant):
        holder = value_of(frame, expression.value)
        if type(holder) in (list, tuple, dict):
            with suppress(Exception):
                return holder[expression.slice.value]
    return _MISSING


def attribute(holder: Any, name: str) -> Any:
    """Of an object's dict, or of the dicts in which modules and layers keep parameters and parts."""
    own_dict = getattr(holder, "__dict__", None)
    if type(own_dict) is not dict:
        return _MISSING
    if name in own_dict:
        return own_dict[name]
    for kept in ("_parameters", "_buffers", "_modules", "_sub_layers"):
        inner = own_dict.get(kept)
        if isinstance(inner, dict) and name in inner:
            return inner[name]
    return _MISSING


def tensors_at(backend: Backend, step: Step, operands: list[ast.expr]) -> list[tuple[str, Any]]:
    """(source text, tensor) of the operands that can be read."""
    found = []
    for each in operands:
        value = value_of(step[0], each)
        if value is not _MISSING and backend.is_tensor(value):
            found.append((ast.unparse(each), value))
    return found


def tensor_locals(backend: Backend, frame: types.FrameType) -> list[tuple[str, Any]]:
    values = locals_of(frame)
    return [(name, value) for name, value in values.items() if backend.is_tensor(value)]


def made_at(steps: list[Step], place: int, name: str, error: BaseException) -> SourceLine | None:
    """The line that gave variable ``name`` of ``steps[place]`` its value; where it was handed in, the line that the
    caller gave what it handed in its value."""
    for _ in range(20):
        frame, _lasti = steps[place]
        line = line_in(error, frame)
        if line is None or not is_users(frame):
            return None
        made = assigned_before(line.file, line.line, name)
        if made is not None:
            return SourceLine(line.file, made[0], line.function)
        handed = given_for(steps, place, name)
        if handed is None:
            return None
        caller, given = handed
        if not isinstance(given, (ast.Name, ast.Attribute)):
            return line_in(error, steps[caller][0])
        place, name = caller, ast.unparse(given)
    return None


def given_for(steps: list[Step], place: int, name: str) -> tuple[int, ast.expr] | None:
    """(the place in ``steps`` of the caller's, what it hands in) for argument ``name`` of the function ``steps[place]``
    of the user's; None where ``name`` is none, or the call does not say."""
    code = steps[place][0].f_code
    function = function_named(code.co_filename, code.co_firstlineno)
    parameters = parameters_of(function) if function is not None else ()
    caller = next((each for each in range(place - 1, -1, -1) if is_users(steps[each][0])), None)
    if name not in parameters or caller is None:
        return None
    call = expression_at(steps[caller][0].f_code, steps[caller][1])
    given = argument_for(call, parameters, name) if isinstance(call, ast.Call) else None
    return (caller, given) if given is not None else None


def argument_for(call: ast.Call, parameters: Sequence[str], name: str) -> ast.expr | None:
    """What a call hands in for one of the parameters; None where ``*arguments`` come before it."""
    given = next((each.value for each in call.keywords if each.arg == name), None)
    if given is None:
        number = list(parameters).index(name) - (parameters[0] in ("self", "cls"))
        starred = any(isinstance(each, ast.Starred) for each in call.args[: number + 1])
        given = call.args[number] if 0 <= number < len(call.args) and not starred else None
    return given


def made_by_node(backend: Backend, tensor: Any) -> tuple[SourceLine | None, str]:
    """The forward line of the node that made a tensor, and its name; (None, "") for one without."""
    try:
        if not backend.has_graph(tensor):
            return None, ""
        graph = backend.graph_of([tensor])
    except own(Exception):
        return None, ""
    if graph is None:
        return None, ""
    try:
        info = graph.describe(graph.roots()[0])
        return info.forward, info.unique_name
    finally:
        release = getattr(graph, "release", None)
        if release is not None:
            release()


def method_code(owner: Any, name: str) -> types.CodeType | None:
    """Of the program's own."""
    for kind in type(owner).__mro__:
        found = vars(kind).get(name)
        if isinstance(found, types.FunctionType):
            return found.__code__ if not is_library(found.__code__.co_filename) else None
    return None


def codes_of(value: Any, depth: int = 2) -> Iterator[tuple[Any, types.CodeType]]:
    """Of a transformation, with its owner: a function, an object with ``__call__``, a module, or several of them in one
    (``Compose``)."""
    if isinstance(value, types.FunctionType):
        if not is_library(value.__code__.co_filename):
            yield None, value.__code__
        return
    method = method_code(value, "__call__") or method_code(value, "forward")
    if method is not None:
        yield value, method
    parts = getattr(value, "__dict__", {}).get("transforms") if depth else None
    for each in parts if isinstance(parts, (list, tuple)) else value if isinstance(value, (list, tuple)) else ():
        if depth:
            yield from codes_of(each, depth - 1)

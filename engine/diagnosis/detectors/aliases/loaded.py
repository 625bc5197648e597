"""What a line that loads weights is given, followed through the functions that run to the line that kept it."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator
from dataclasses import dataclass

from adbg.engine.diagnosis.detectors.earlier.holding import is_of, running_frames
from adbg.engine.diagnosis.source import (
    assigned_before,
    called_name,
    function_called,
    inside,
    nodes_of,
    parameters_of,
    returns_of,
    scope_at,
)
from adbg.engine.diagnosis.values import Step, argument_for, given_for
from adbg.engine.types import SourceLine

LOADS = frozenset({"load_state_dict", "set_state_dict", "set_dict", "load_dict"})
_DEEP = 8  # functions that hand it on


class StepAt:
    """Where the last step was called: the line of each of the program's functions that ran. Known by addresses: what
    runs still has its own."""

    def __init__(self) -> None:
        self.lines = {(id(each), id(each.f_code)): each.f_lineno for each in running_frames()}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A variable of a function that runs: ``name`` at line ``at`` of ``frame``, which is what is loaded, or was handed
    on to what loads it."""

    frame: types.FrameType
    at: int
    name: str

    @property
    def file(self) -> str:
        return self.frame.f_code.co_filename

    def statement(self) -> tuple[int, ast.AST] | None:
        """That gave it its value, and its line."""
        return assigned_before(self.file, self.at, self.name)

    def kept(self) -> SourceLine | None:
        """The line that asked for the ``state_dict()`` that it is, if need be in a function of the file."""
        made = self.statement()
        return keeping(self.file, made, self.frame.f_code.co_name) if made is not None else None

    def taken_before(self, step: StepAt) -> bool:
        """Whether the last step came between the statement that gave it its value and this line. In a loop it may come
        ahead of that statement, where that is run in some turns only."""
        made = self.statement()
        if made is None:
            return True
        at = step.lines.get((id(self.frame), id(self.frame.f_code)))
        if at is None:
            return False
        return at > made[0] or made[0] > self.at or self._is_conditional(made[0])

    def _is_conditional(self, line: int) -> bool:
        """Whether a statement stands in an ``if`` in which this line does not."""
        scope = scope_at(self.file, self.at)
        for node in inside(scope) if scope is not None else ():
            if isinstance(node, ast.If) and node.lineno < line <= (node.end_lineno or 0):
                if not node.lineno <= self.at <= (node.end_lineno or 0):
                    return True
        return False

    def differences(self) -> Iterator[tuple[SourceLine, str, str]]:
        """Lines of ``after[...] - before[...]`` up to this one, and the names of both in ``frame``: in its function, or
        in the one that computes the variable."""
        scope = scope_at(self.file, self.at)
        for line, later, earlier in _subtracted(scope, self.at):
            yield SourceLine(self.file, line, self.frame.f_code.co_name), later, earlier
        made = self.statement()
        call = getattr(made[1], "value", None) if made is not None else None
        function = function_called(self.file, call) if isinstance(call, ast.Call) else None
        if function is None or not isinstance(call, ast.Call):
            return
        parameters = parameters_of(function)
        for line, later, earlier in _subtracted(function, function.end_lineno or 0):
            given = [argument_for(call, parameters, each) if each in parameters else None for each in (later, earlier)]
            if given[0] is not None and given[1] is not None:
                yield SourceLine(self.file, line, function.name), ast.unparse(given[0]), ast.unparse(given[1])


def what_is_loaded(line: SourceLine) -> Loaded | None:
    """On the thread that runs ``line``, a call of ``load_state_dict`` or the like; None where it is given no variable.
    ``forget_stack`` is for the caller to be called."""
    frames = list(running_frames())
    place = next((at for at, frame in enumerate(frames) if is_of(frame, line)), None)
    given = _given(line)
    if place is None or given is None:
        return None
    steps: list[Step] = [(frame, frame.f_lasti) for frame in frames[place:]][::-1]
    at, name = len(steps) - 1, given
    for _ in range(_DEEP):
        frame = steps[at][0]
        number = line.line if at == len(steps) - 1 else frame.f_lineno
        handed = given_for(steps, at, name) if assigned_before(frame.f_code.co_filename, number, name) is None else None
        if handed is None or not isinstance(handed[1], (ast.Name, ast.Attribute)):
            return Loaded(frame, number, name)
        at, name = handed[0], ast.unparse(handed[1])
    return None


def keeping(file: str, made: tuple[int, ast.AST], function: str) -> SourceLine | None:
    """Of the statement that gave a variable its value: its line, or that of the return of the function of the file
    which it calls; None where neither asks for a ``state_dict()``."""
    value = getattr(made[1], "value", None)
    if value is None:
        return None
    if "state_dict(" in ast.unparse(value):
        return SourceLine(file, made[0], function)
    called = function_called(file, value) if isinstance(value, ast.Call) else None
    returned = returns_of(called) if called is not None else []
    if called is None or len(returned) != 1 or returned[0].value is None:
        return None
    result = returned[0].value
    if isinstance(result, ast.Name):
        inner = assigned_before(file, returned[0].lineno, result.id)
        return keeping(file, inner, called.name) if inner is not None else None
    return SourceLine(file, returned[0].lineno, called.name) if "state_dict(" in ast.unparse(result) else None


def _given(line: SourceLine) -> str | None:
    """The variable that the call on a line loads: the only call there, where it goes by a name of the program's."""
    calls = [
        each for each in nodes_of(line.file)
        if isinstance(each, ast.Call) and each.lineno <= line.line <= (each.end_lineno or 0)
    ]  # fmt: skip
    named = [each for each in calls if called_name(each) in LOADS]
    for call in named or (calls if len(calls) == 1 else []):
        given = [*call.args, *(each.value for each in call.keywords)][:1]
        if given and isinstance(given[0], (ast.Name, ast.Attribute)):
            return ast.unparse(given[0])
    return None


def _subtracted(scope: ast.AST | None, before: int) -> Iterator[tuple[int, str, str]]:
    for node in inside(scope) if scope is not None else ():
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub) or node.lineno > before:
            continue
        names = [ast.unparse(each.value) for each in (node.left, node.right) if isinstance(each, ast.Subscript)]
        if len(names) == 2 and names[0] != names[1]:
            yield node.lineno, names[0], names[1]

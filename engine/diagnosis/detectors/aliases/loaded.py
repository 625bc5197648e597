"""What a line that loads weights is given, followed through the functions that run to the line that kept it."""

from __future__ import annotations

import ast
import os
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

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


class Kept(NamedTuple):
    """A line that asked for a ``state_dict()`` which a variable holds, and the last line of that statement."""

    line: SourceLine
    last: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """A variable of a function that runs: ``name`` at line ``at`` of ``frame``, which is what is loaded, or was handed
    on to what loads it."""

    frame: types.FrameType
    at: int
    name: str

    @property
    def file(self) -> str:
        return os.path.abspath(self.frame.f_code.co_filename)

    def statement(self) -> tuple[int, ast.AST] | None:
        """That gave it its value, and its line."""
        return assigned_before(self.file, self.at, self.name)

    def kept(self) -> list[Kept]:
        """What may have given it a ``state_dict()``, in its function or in one that is called for it."""
        function = self.frame.f_code.co_name
        found = (keeping(self.file, each, function) for each in self._statements())
        return [each for each in found if each is not None]

    def _statements(self) -> Iterator[ast.Assign]:
        scope = scope_at(self.file, self.at)
        for node in inside(scope) if scope is not None else ():
            if isinstance(node, ast.Assign) and any(ast.unparse(each) == self.name for each in _each(node.targets)):
                yield node

    def differences(self) -> Iterator[tuple[SourceLine, str, str]]:
        """Lines of ``after[...] - before[...]`` up to this one, and the names of both in ``frame``: in its function, or
        in the one that computes the variable. Not where a name was given another value since."""
        scope = scope_at(self.file, self.at)
        for line, later, earlier in _subtracted(scope, self.at):
            if self._is_still(later, line) and self._is_still(earlier, line):
                yield SourceLine(self.file, line, self.frame.f_code.co_name), later, earlier
        made = self.statement()
        call = getattr(made[1], "value", None) if made is not None else None
        function = function_called(self.file, call) if isinstance(call, ast.Call) else None
        if function is None or not isinstance(call, ast.Call):
            return
        parameters = parameters_of(function)
        for line, later, earlier in _subtracted(function, function.end_lineno or 0):
            given = [argument_for(call, parameters, each) if each in parameters else None for each in (later, earlier)]
            names = [ast.unparse(each) for each in given if each is not None]
            if len(names) == 2 and all(self._is_still(each, call.lineno) for each in names):
                yield SourceLine(self.file, line, function.name), names[0], names[1]

    def _is_still(self, name: str, line: int) -> bool:
        """A variable has the value that it had at an earlier line."""
        here, there = (assigned_before(self.file, each, name) for each in (self.at, line))
        return (here and here[0]) == (there and there[0])


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


def keeping(file: str, made: ast.AST, function: str, depth: int = _DEEP) -> Kept | None:
    """Of the statement that gave a variable its value: its line, or that of the return of the function of the file
    which it calls; None where neither asks for a ``state_dict()``."""
    value = getattr(made, "value", None)
    if value is None or not depth:  # a function may call itself
        return None
    if "state_dict(" in ast.unparse(value):
        return Kept(SourceLine(file, value.lineno, function), value.end_lineno or value.lineno)
    called = function_called(file, value) if isinstance(value, ast.Call) else None
    returned = returns_of(called) if called is not None else []
    if called is None or len(returned) != 1:
        return None
    result = returned[0].value
    if isinstance(result, ast.Name):
        inner = assigned_before(file, returned[0].lineno, result.id)
        return keeping(file, inner[1], called.name, depth - 1) if inner is not None else None
    return keeping(file, returned[0], called.name, depth - 1) if "state_dict(" in ast.unparse(returned[0]) else None


def _each(targets: list[ast.expr]) -> Iterator[ast.expr]:
    for target in targets:
        yield from target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]


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

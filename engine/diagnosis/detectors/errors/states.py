"""A state of another batch than the one that a recurrent layer is given it with: the last batch is smaller, and the
state has the number of rows of a setting. The layer and its call are right; the line is named that says how many rows
the state has, as far as the source tells which one that is."""

from __future__ import annotations

import ast
import os
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.diagnosis.detectors.errors.foreign import given_to
from adbg.engine.diagnosis.detectors.errors.layers import self_of
from adbg.engine.diagnosis.source import (
    assigned_before,
    called_name,
    expression_at,
    function_named,
    inside,
    nodes_of,
    parameters_of,
    returns_of,
    scope_at,
)
from adbg.engine.diagnosis.values import Step, attribute, is_users, line_in, made_at, made_by_node, value_of
from adbg.engine.frames import local
from adbg.engine.outside import suppress
from adbg.engine.own_files import is_library
from adbg.engine.types import SourceLine

_STATES = (("input", "hx"), ("inputs", "initial_states"))  # what frameworks call the input and the state
_MOST = 12  # expressions that are followed
#: Methods and functions that give what they take, in another form.
_PASS = frozenset({
    "detach", "to", "contiguous", "clone", "cuda", "cpu", "float", "double", "half", "requires_grad_", "astype", "type",
    "zeros_like", "ones_like", "randn_like", "detach_", "tuple", "list", "Parameter", "Variable", "cast",
})  # fmt: skip
_MISSING = object()


@dataclass(frozen=True, slots=True)
class StateOf:
    """``shape``: of the state; ``rows`` of it and of the ``batch`` differ. ``line``: that says how many it has, by
    ``count``, if that is known."""

    shape: tuple[int, ...]
    rows: int
    batch: int
    given: str
    line: SourceLine | None
    count: str
    turned: bool = (
        False  # its rows are the steps that the layer sees: the two axes of the input are the other way round
    )


@dataclass(slots=True)
class _Scope:
    """A function as it was called: by its source, for it may have returned."""

    file: str
    name: str
    values: dict[str, Any]  # of its arguments, as far as they are known
    lines: dict[str, tuple[SourceLine, str]] = field(default_factory=dict)  # where the caller gives each of them
    frame: types.FrameType | None = None

    def value(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if self.frame is not None:
            return value_of(self.frame, node)
        if isinstance(node, ast.Name):
            return self.values.get(node.id, _MISSING)
        if isinstance(node, ast.Attribute):
            holder = self.value(node.value)
            return attribute(holder, node.attr) if holder is not _MISSING else _MISSING
        return _MISSING


def state_of(backend: Backend, steps: list[Step], place: int, error: BaseException, began: bool) -> StateOf | None:
    """Of the layer that the user's function ``steps[place]`` calls. ``began``: earlier batches went well; else a state
    that has as many rows as the layer sees steps shows that the two axes of its input are taken for each other."""
    found = _shapes(backend, steps[place + 1 :])
    call = expression_at(steps[place][0].f_code, steps[place][1])
    if found is None or not isinstance(call, ast.Call):
        return None
    shape, at, tensor, batch, others = found
    given = next((each.value for each in call.keywords if each.arg in ("hx", "initial_states")), None)
    given = given or (call.args[1] if len(call.args) > 1 else None)
    if given is None:
        return None
    if shape[1] == others and not began:
        return StateOf(shape, shape[1], batch, ast.unparse(given), None, "", True)
    line, count = _Follow(steps, place, error, shape[1]).from_here(given, at)
    if line is None:
        line = made_by_node(backend, tensor)[0]
    return StateOf(shape, shape[1], batch, ast.unparse(given), line, count)


def _shapes(backend: Backend, steps: list[Step]) -> tuple[tuple[int, ...], int, Any, int, int] | None:
    """(shape of the state that does not fit, its place in the states, the state, rows of the batch, steps)."""
    for frame, _ in steps:
        layer = self_of(frame)
        for name, kept in _STATES:
            given, states = local(frame, name), local(frame, kept)
            if states is None or layer is None or not backend.is_tensor(given):
                continue
            sizes = tuple(backend.meta(given).shape or ())
            first = attribute(layer, "batch_first") is True or attribute(layer, "time_major") is False
            if len(sizes) != 3:
                return None
            batch, others = (sizes[0], sizes[1]) if first else (sizes[1], sizes[0])
            every = states if isinstance(states, (tuple, list)) else (states,)
            for at, each in enumerate(every):
                shape = tuple(backend.meta(each).shape or ()) if backend.is_tensor(each) else ()
                if len(shape) == 3 and shape[1] != batch:
                    return shape, at, each, batch, others
            return None
    return None


class _Follow:
    def __init__(self, steps: list[Step], place: int, error: BaseException, rows: int) -> None:
        self._steps = steps
        self._place = place
        self._error = error
        self._rows = rows
        self._left = _MOST

    def from_here(self, given: ast.expr, at: int) -> tuple[SourceLine | None, str]:
        """(the line that says how many rows, the expression there that does) of what a call is given as its state."""
        frame = self._steps[self._place][0]
        here = line_in(self._error, frame)
        if here is None:
            return None, ""
        scope = _Scope(here.file, here.function, {}, frame=frame)
        return self._follow(given, at, here.line, scope)

    def _follow(self, node: ast.AST | None, at: int, line: int, scope: _Scope) -> tuple[SourceLine | None, str]:
        self._left -= 1
        if node is None or self._left < 0:
            return None, ""
        if isinstance(node, (ast.Tuple, ast.List)):
            return self._follow(node.elts[min(at, len(node.elts) - 1)], at, line, scope) if node.elts else (None, "")
        if isinstance(node, ast.Name):
            return self._variable(node.id, at, line, scope)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, at, scope)
        if isinstance(node, ast.Call):
            return self._call(node, at, line, scope)
        if isinstance(node, ast.BinOp):
            return self._follow(node.left, at, line, scope)
        if isinstance(node, ast.ListComp):
            return self._follow(node.elt, at, line, scope)
        return None, ""

    def _variable(self, name: str, at: int, line: int, scope: _Scope) -> tuple[SourceLine | None, str]:
        made = assigned_before(scope.file, line, name)
        if made is not None and made[0] < line:
            value = getattr(made[1], "value", None)
            place = _place_of(made[1], name)
            found = self._follow(value, at if place is None else place, made[0], scope)
            return found if found[0] is not None else (SourceLine(scope.file, made[0], scope.name), "")
        return self._handed_in(name, at, scope) if scope.frame is not None else scope.lines.get(name, (None, ""))

    def _handed_in(self, name: str, at: int, scope: _Scope) -> tuple[SourceLine | None, str]:
        """The line of the caller that made what is handed in, and what that is made of in turn."""
        line = made_at(self._steps, self._place, name, self._error)
        if line is None:
            return None, ""
        frames = [each for each, _ in self._steps if is_users(each)]
        caller = next((each for each in frames if each.f_code.co_name == line.function), None)
        known = scope_at(line.file, line.line)
        if caller is None or known is None:
            return line, ""
        value = next((each.value for each in inside(known) if isinstance(each, ast.Assign) and each.lineno == line.line
                      and not isinstance(each.targets[0], (ast.Tuple, ast.List))), None)  # fmt: skip
        inner = _Scope(line.file, line.function, {}, frame=caller)
        found = self._follow(value, at, line.line, inner) if isinstance(value, ast.Call) else (None, "")
        return found if found[0] is not None else (line, "")

    def _attribute(self, node: ast.Attribute, at: int, scope: _Scope) -> tuple[SourceLine | None, str]:
        """Where its class makes it, if that is at one place, before it is used: a state that is carried on is not."""
        holder = scope.value(node.value)
        line = given_to(type(holder), node.attr) if holder is not _MISSING and holder is not None else None
        if line is None or line.function != "__init__" or _times_assigned(line.file, type(holder), node.attr) > 1:
            return None, ""
        known = scope_at(line.file, line.line)
        made = [each for each in inside(known) if getattr(each, "lineno", 0) == line.line] if known is not None else []
        value = next((each.value for each in made if isinstance(each, (ast.Assign, ast.AnnAssign))), None)
        own = _Scope(line.file, line.function, {"self": holder})
        found = self._follow(value, at, line.line, own) if isinstance(value, (ast.Tuple, ast.List, ast.Call)) else None
        return found if found is not None and found[0] is not None else (line, "")

    def _call(self, node: ast.Call, at: int, line: int, scope: _Scope) -> tuple[SourceLine | None, str]:
        name = called_name(node)
        entered = self._entered(node, line, scope)
        if entered is not None:
            function, inner = entered
            returns = returns_of(function)
            return self._follow(returns[-1].value, at, returns[-1].lineno, inner) if returns else (None, "")
        if name not in _PASS:
            return self._maker(node, line, scope)
        holder = node.func.value if isinstance(node.func, ast.Attribute) else None
        if holder is None or isinstance(scope.value(holder), types.ModuleType) or name in ("Parameter", "Variable"):
            return self._follow(node.args[0], at, line, scope) if node.args else (None, "")
        return self._follow(holder, at, line, scope)

    def _maker(self, node: ast.Call, line: int, scope: _Scope) -> tuple[SourceLine | None, str]:
        """A call of the framework's, with the sizes of what it makes."""
        own = SourceLine(scope.file, node.lineno, scope.name)
        for size, where in self._sizes(node, line, scope):
            value = scope.value(size)
            if type(value) is not int or value != self._rows:
                continue
            above = self._above(size, scope)
            if above is not None:
                return above
            return SourceLine(scope.file, where, scope.name), ast.unparse(size)
        return own, ""

    def _sizes(self, node: ast.Call, line: int, scope: _Scope) -> Iterator[tuple[ast.expr, int]]:
        """The sizes that it is told, and the line on which each stands: a list of them may have a name."""
        for given in (*node.args, *[each.value for each in node.keywords]):
            one, where = given, node.lineno
            if isinstance(one, ast.Starred):
                one = one.value
            if isinstance(one, ast.Name):
                made = assigned_before(scope.file, line, one.id)
                if made is not None and made[0] < line and isinstance(
                    value := getattr(made[1], "value", None), (ast.Tuple, ast.List)
                ):  # fmt: skip
                    one, where = value, made[0]
            for each in one.elts if isinstance(one, (ast.Tuple, ast.List)) else (one,):
                yield each, where

    def _entered(self, node: ast.Call, line: int, scope: _Scope) -> tuple[ast.AST, _Scope] | None:
        """The function of the user's that it calls, and what that is given."""
        function, me = self._function(node.func, scope)
        if function is None or is_library(function.__code__.co_filename):
            return None
        code = function.__code__
        tree = function_named(code.co_filename, code.co_firstlineno)
        if tree is None:
            return None
        names = list(parameters_of(tree))
        inner = _Scope(os.path.abspath(code.co_filename), code.co_name, {})
        if me is not _MISSING and names:
            inner.values[names.pop(0)] = me
        here = SourceLine(scope.file, node.lineno, scope.name)
        given = [*zip(names, node.args, strict=False), *((each.arg or "", each.value) for each in node.keywords)]
        for name, value in given:
            inner.values[name] = scope.value(value)
            above = self._above(value, scope)
            inner.lines[name] = above or (here, ast.unparse(value))
        with suppress(Exception):
            defaults = function.__defaults__ or ()
            for name, value in zip(reversed(parameters_of(tree)), reversed(defaults), strict=False):
                inner.values.setdefault(name, value)
        return tree, inner

    def _above(self, node: ast.AST, scope: _Scope) -> tuple[SourceLine, str] | None:
        """The line of the caller that gives a function that argument."""
        if not isinstance(node, ast.Name):
            return None
        frame = scope.frame
        if frame is None:
            return scope.lines.get(node.id)
        code = frame.f_code
        known = next((at for at, each in enumerate(self._steps) if each[0] is frame), 0)
        given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        here = line_in(self._error, frame)
        if here is None or node.id not in given or assigned_before(here.file, here.line, node.id) is not None:
            return None
        caller = next((each for each, _ in reversed(self._steps[:known]) if is_users(each)), None)
        line = line_in(self._error, caller) if caller is not None else None
        return (line, node.id) if line is not None else None

    def _function(self, node: ast.expr, scope: _Scope) -> tuple[types.FunctionType | None, Any]:
        """What is called, and the object whose method it is."""
        found: Any = None
        me: Any = _MISSING
        if isinstance(node, ast.Attribute):
            me = scope.value(node.value)
            kinds = type(me).__mro__ if me is not _MISSING and not isinstance(me, types.ModuleType) else ()
            found = next((vars(kind)[node.attr] for kind in kinds if node.attr in vars(kind)), None)
        elif isinstance(node, ast.Name):
            known = [each.f_globals for each, _ in self._steps if node.id in each.f_globals]
            found = known[0][node.id] if known else None
        if isinstance(found, (staticmethod, classmethod)):
            me = _MISSING if isinstance(found, staticmethod) else type(me)
            found = found.__func__
        return found if isinstance(found, types.FunctionType) else None, me


def _times_assigned(file: str, kind: type, name: str) -> int:
    return sum(
        isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store)
        for each in nodes_of(file)
        if isinstance(each, ast.ClassDef) and each.name == kind.__name__
        for node in ast.walk(each)
    )


def _place_of(statement: ast.AST, name: str) -> int | None:
    """Of a variable among those that one statement gives a value: 1 of c in ``h, c = …``."""
    for target in getattr(statement, "targets", ()):
        if isinstance(target, (ast.Tuple, ast.List)):
            return next((at for at, each in enumerate(target.elts) if ast.unparse(each) == name), None)
    return None

"""What the running functions of the program call a tensor, before and after a statement that changes it."""

from __future__ import annotations

import ast
import functools
import os
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from adbg.engine.diagnosis.source import (
    assigned_before,
    assigned_names,
    called_name,
    expression_at,
    inside,
    operands_of,
    returns_of,
    scope_at,
)
from adbg.engine.frames import locals_of
from adbg.engine.own_files import is_programs
from adbg.engine.types import SourceLine

_FRAMES = 12  # functions of the program's, from the innermost one outwards
_ITEMS = 64  # of a list


@dataclass(frozen=True, slots=True)
class Before:
    """What a running function called the tensor as a statement of its own had it overwritten."""

    frame: int
    code: types.CodeType
    instruction: int
    caller: tuple[int, ...]  # and what it has: another call in the same memory is made with something else
    overwriting: ast.stmt
    names: frozenset[str]
    holders: frozenset[str]  # lists and dicts that had it


def running() -> Iterator[types.FrameType]:
    """The functions of the program's on this thread, innermost first."""
    frame: types.FrameType | None = sys._getframe(1)
    found = 0
    while frame is not None and found < _FRAMES:
        if is_programs(frame.f_code.co_filename):
            found += 1
            yield frame
        frame = frame.f_back


def standing_at(frame: types.FrameType) -> SourceLine:
    """Its line now."""
    return SourceLine(os.path.abspath(frame.f_code.co_filename), frame.f_lineno, frame.f_code.co_name)


def _caller(frame: types.FrameType) -> tuple[int, ...]:
    caller = frame.f_back
    if caller is None:
        return ()
    return id(caller), caller.f_lasti, *(id(value) for value in locals_of(caller).values())


def _is_of(frame: types.FrameType, before: Before) -> bool:
    return before.frame == id(frame) and before.code is frame.f_code and before.caller == _caller(frame)


def names_before(operand: Any) -> Iterator[Before]:
    """Of the running functions those whose statement at hand does more than change ``operand``, and that have it under
    a name which that statement does not give."""
    for frame in running():
        statement = _statement(frame)
        if statement is None or isinstance(statement, ast.Expr) or _says_so(statement):
            continue
        names, holders = _names(frame, operand)
        given = _given(statement)
        if names - given or holders - given:
            yield Before(
                id(frame), frame.f_code, frame.f_lasti, _caller(frame), statement, names - given, holders - given
            )


def read_as(operand: Any, known: Iterable[Before], bends: bool) -> tuple[str, SourceLine] | None:
    """(name, line), where the expression that runs reads ``operand`` under a name of before. ``bends``: what changed it
    gave it back, else it counts only where that statement gave it a name."""
    for frame in running():
        before = next((one for one in known if _is_of(frame, one)), None)
        if before is None or frame.f_lasti == before.instruction:
            continue  # what changed it there has not come back yet
        name = _stale_name(frame, before, operand, bends)
        return (name, standing_at(frame)) if name else None
    return None


def innermost() -> ast.stmt | None:
    """The statement that the innermost running function is at."""
    frame = next(running(), None)
    return _statement(frame) if frame is not None else None


def _statement(frame: types.FrameType) -> ast.stmt | None:
    """The innermost statement that the function is at; of a loop or a branch its head."""
    return _statement_at(os.path.abspath(frame.f_code.co_filename), frame.f_lineno)


@functools.lru_cache(4096)
def _statement_at(file: str, line: int) -> ast.stmt | None:
    scope = scope_at(file, line)
    best: ast.stmt | None = None
    for node in inside(scope) if scope is not None else ():
        here = isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
        if here and isinstance(node, ast.stmt) and (best is None or node.lineno >= best.lineno):
            best = node
    return best


def _given(statement: ast.stmt) -> frozenset[str]:
    """The names that it gives a value, or writes through: "x" of ``x[mask] = 0``."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    through = {
        each.value.id for each in targets if isinstance(each, ast.Subscript) and isinstance(each.value, ast.Name)
    }
    return frozenset(through | set(assigned_names(statement)))


def second_name(before: Before) -> tuple[str, SourceLine] | None:
    """Of a function that wrote through one name: another one that it gave that tensor by ``other = one`` before, where
    it returns both, with the line of that."""
    file = os.path.abspath(before.code.co_filename)
    here, given = before.overwriting.lineno, _given(before.overwriting)
    scope = scope_at(file, here)
    if scope is None:
        return None
    for name in sorted(before.names):
        made = assigned_before(file, here, name)
        value = getattr(made[1], "value", None) if made is not None else None
        if made is None or not isinstance(value, ast.Name) or value.id not in given or made[0] > here:
            continue
        for node in returns_of(scope):
            parts = node.value.elts if isinstance(node.value, ast.Tuple) else []
            returned = {each.id for each in parts if isinstance(each, ast.Name)}
            if (
                node.lineno > here
                and {name, value.id} <= returned
                and not _given_again(file, before, name, node.lineno)
            ):
                return name, SourceLine(file, made[0], before.code.co_name)
    return None


def _given_again(file: str, before: Before, name: str, until: int) -> bool:
    """Whether the variable may have been given the tensor anew between the overwriting and a line below: by an
    assignment in between, or by one of the loop around it that only hands on another variable (``x = out``)."""
    here = before.overwriting.lineno
    scope, loop = scope_at(file, here), _loop_at(file, here)
    for node in inside(scope) if scope is not None else ():
        if not isinstance(node, ast.stmt) or node is before.overwriting or name not in assigned_names(node):
            continue
        within = loop is not None and loop.lineno < node.lineno <= (loop.end_lineno or 0)
        handed_on = isinstance(getattr(node, "value", None), (ast.Name, ast.Attribute, ast.Subscript))
        if here < node.lineno <= until or (within and (node.lineno > here or handed_on)):
            return True
    return False


@functools.lru_cache(4096)
def _loop_at(file: str, line: int) -> ast.For | ast.While | None:
    """The innermost loop of a function around a line."""
    scope = scope_at(file, line)
    best: ast.For | ast.While | None = None
    for node in inside(scope) if scope is not None else ():
        here = isinstance(node, (ast.For, ast.While)) and node.lineno < line <= (node.end_lineno or 0)
        if here and isinstance(node, (ast.For, ast.While)) and (best is None or node.lineno > best.lineno):
            best = node
    return best


_MOST_EXPRESSIONS = 4096
_EXPRESSIONS: dict[tuple[int, int], tuple[types.CodeType, ast.expr | None]] = {}


def _expression(code: types.CodeType, instruction: int) -> ast.expr | None:
    """Known by the address of the code, which is held: equal code may be of several files."""
    known = _EXPRESSIONS.get((id(code), instruction))
    if known is None:
        if len(_EXPRESSIONS) >= _MOST_EXPRESSIONS:
            _EXPRESSIONS.clear()
        known = _EXPRESSIONS[id(code), instruction] = code, expression_at(code, instruction)
    return known[1]


def _says_so(statement: ast.stmt) -> bool:
    """``clean = normalize_(x)``: a function whose name ends with an underscore works in place."""
    value = getattr(statement, "value", None)
    name = called_name(value) if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else ""
    return name.endswith("_")


def _names(frame: types.FrameType, operand: Any) -> tuple[frozenset[str], frozenset[str]]:
    names, holders = set(), set()
    for name, value in list(locals_of(frame).items()):
        if value is operand:
            names.add(name)
        elif type(value) in (list, tuple, dict) and len(value) <= _ITEMS and _holds(value, operand):
            holders.add(name)
    return frozenset(names), frozenset(holders)


def _holds(values: Any, operand: Any) -> bool:
    return any(each is operand for each in (values.values() if type(values) is dict else values))


def _stale_name(frame: types.FrameType, before: Before, operand: Any, bends: bool) -> str:
    """What the expression that runs calls the tensor, where it is a name, or a list, of before; else ""."""
    expression = _expression(frame.f_code, frame.f_lasti)
    if expression is None:
        return ""
    bound, _ = _names(frame, operand)
    given = _given(before.overwriting)
    if not bends and not given & bound:  # what overwrote it did not return it: it may have been meant to
        return ""
    taken: list[ast.AST] = list(operands_of(expression))
    used = {each.id for each in taken if isinstance(each, ast.Name) and each.id in bound}
    file = os.path.abspath(frame.f_code.co_filename)
    stale = [name for name in sorted(used & before.names) if not _given_again(file, before, name, frame.f_lineno)]
    if stale:
        return stale[0]
    if used & (given | before.names):
        return ""
    for name in used:
        taken += [made[1] for made in [assigned_before(file, frame.f_lineno, name)] if made is not None]
    said = {node.id for each in taken for node in _parts(each) if isinstance(node, ast.Name)}
    loop = _loop_at(file, before.overwriting.lineno)
    if isinstance(loop, ast.For):  # each of the list is overwritten in turn
        said -= {node.id for node in ast.walk(loop.iter) if isinstance(node, ast.Name)}
    held = sorted(said & before.holders)
    return f"an element of {held[0]}" if held else ""


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """Of a statement its head alone."""
    if isinstance(node, (ast.For, ast.AsyncFor)):
        yield from ast.walk(node.iter)
    elif isinstance(node, ast.expr) or hasattr(node, "value"):
        yield from ast.walk(node)

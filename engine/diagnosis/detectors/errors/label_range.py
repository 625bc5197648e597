"""Labels that count from 1 where classes count from 0: only the largest of them is refused, and all others are taken
for the class beside theirs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.diagnosis.detectors.errors.loaders import every_loader, is_set
from adbg.engine.diagnosis.detectors.numbers.values import numbers
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import assigned_before, called_name, expression_at
from adbg.engine.diagnosis.values import Step, attribute, given_for, is_users, line_in
from adbg.engine.frames import locals_of
from adbg.engine.types import SourceLine

# torch; of Paddle's cross_entropy and of its nll_loss
_OUTSIDE = re.compile(
    r"\btarget -?\d+ is out of bounds|\btarget out of range|\blabel value should less than|"
    r"\blabel should not be out of bounds", re.I
)  # fmt: skip
_LOGITS, _LABELS = ("input", "logits"), ("target", "label", "labels")
_CHANCE = 0.05  # that a batch has none of the first of so many classes, where each is as frequent
_LISTED = 1 << 20  # elements of a list
#: Methods that give the same labels in another form.
_SAME = frozenset({
    "to", "cuda", "cpu", "long", "int", "view", "reshape", "flatten", "squeeze", "unsqueeze", "contiguous", "detach",
    "clone", "astype", "cast", "type", "ravel", "permute", "transpose", "pin_memory",
})  # fmt: skip


def from_one(facts: Facts, error: Exception, steps: list[Step], place: int, text: str) -> tuple[SourceLine, str] | None:
    """(the line to change, what is said of it) where the labels of a loss that refused one are 1 to the number of
    classes. None where they are otherwise out of range, or the batch may have none of class 0 by chance."""
    given = _given(facts.backend, steps[place + 1 :]) if _OUTSIDE.search(text) else None
    line = line_in(error, steps[place][0])
    if given is None or line is None:
        return None
    low, high, count, classes = given
    if low < 1 or high != classes or classes < 2:
        return None
    others = [(one, number) for one, last, number in _elsewhere(facts.backend, steps) if last == classes and one >= 0]
    most = max([count, *[number for _, number in others]])
    if any(one == 0 for one, _ in others) or (classes / (classes + 1)) ** most > _CHANCE:
        return None
    name = _named(steps, place)
    shown = ast.unparse(name) if name is not None else "the target"
    why = f"{shown} has labels from {low} to {high}, of {classes} classes"
    made = _assigned(steps, place, error, name) if name is not None else None
    return made or line, f"{why}: labels count from 1, and classes from 0 (subtract 1)"


def _given(backend: Backend, steps: list[Step]) -> tuple[int, int, int, int] | None:
    """(smallest, largest, how many labels, classes) that the framework's function has."""
    for frame, _ in reversed(steps):
        values = locals_of(frame)
        labels = next((values[name] for name in _LABELS if backend.is_tensor(values.get(name))), None)
        logits = next((values[name] for name in _LOGITS if backend.is_tensor(values.get(name))), None)
        if labels is None or logits is None:
            continue
        shape = tuple(backend.meta(logits).shape or ())
        axis = values.get("axis")
        axis = axis if type(axis) is int else min(1, len(shape) - 1)
        read = numbers(backend, labels) if backend.meta(labels).dtype[:1] in "iu" else None
        ignored = values.get("ignore_index")
        if read is None or not -len(shape) <= axis < len(shape) or ignored == 0:  # 0 may be what is left out
            return None
        flat = [int(each) for each in read.flat if each != ignored]
        return (min(flat), max(flat), len(flat), shape[axis]) if flat else None
    return None


def _elsewhere(backend: Backend, steps: list[Step]) -> Iterator[tuple[int, int, int]]:
    """(smallest, largest, how many) of whole numbers that the program's functions or its data sets have together."""
    values = [each for frame, _ in steps if is_users(frame) for each in locals_of(frame).values()]
    known = [each for each in values if is_set(each)]
    known += [attribute(loader, "dataset") for _, loader in every_loader(steps)]
    for data in {id(each): each for each in known}.values():
        for _ in range(5):  # a part of another one has that too
            own = getattr(data, "__dict__", None)
            values += list(own.values()) if type(own) is dict else []
            data = attribute(data, "dataset")
    for value in values:
        for each in value if type(value) is tuple else (value,):  # those of a TensorDataset
            found = _bounds(backend, each)
            if found is not None:
                yield found


def _bounds(backend: Backend, value: Any) -> tuple[int, int, int] | None:
    if backend.is_tensor(value):
        read = numbers(backend, value) if backend.meta(value).dtype in ("i64", "i32") else None
        return (int(min(read.flat)), int(max(read.flat)), len(read.flat)) if read is not None else None
    if type(value) is list and 0 < len(value) <= _LISTED and all(type(each) is int for each in value):
        return min(value), max(value), len(value)
    if type(value).__module__ == "numpy" and type(value).__name__ == "ndarray" and value.dtype.kind in "iu":
        return (int(value.min()), int(value.max()), int(value.size)) if value.size else None
    return None


def _named(steps: list[Step], place: int) -> ast.expr | None:
    """The variable that the user's call is given as the labels."""
    call = expression_at(steps[place][0].f_code, steps[place][1])
    if not isinstance(call, ast.Call):
        return None
    given: ast.AST | None = next((each.value for each in call.keywords if each.arg in _LABELS), None)
    if given is None and len(call.args) > 1 and not any(isinstance(each, ast.Starred) for each in call.args[:2]):
        given = call.args[1]
    given = _same(given)
    return given if isinstance(given, (ast.Name, ast.Attribute, ast.Subscript)) else None


def _same(value: ast.AST | None) -> ast.AST | None:
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and called_name(value) in _SAME:
        value = value.func.value
    return value


def _assigned(steps: list[Step], place: int, error: BaseException, name: ast.expr) -> SourceLine | None:
    """The last statement that gives that variable its value, in the function of the loss or, where it is handed in, in
    the caller. One that only puts it in another form is named where none is above it."""
    found = None
    for _ in range(20):
        line = line_in(error, steps[place][0])
        if line is None or not isinstance(name, ast.Name):
            return found
        before = line.line
        made = assigned_before(line.file, before, name.id)
        while made is not None and made[0] < before:
            value = _value_of(made[1], name.id)
            if value is None:
                return found
            at = SourceLine(line.file, made[0], line.function)
            inner = _same(value)
            if not isinstance(inner, ast.Name) or inner.id != name.id:
                return at
            found, before = found or at, made[0]
            made = assigned_before(line.file, before, name.id)
        handed = given_for(steps, place, name.id)
        if handed is None:
            return found
        inner = _same(handed[1])
        if not isinstance(inner, ast.Name):
            return found
        place, name = handed[0], inner
    return found


def _value_of(statement: ast.AST, name: str) -> ast.expr | None:
    """What an assignment gives a variable; None of a loop, of ``with``, and of parts of what is not written out."""
    if isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
        return statement.value
    if not isinstance(statement, ast.Assign):
        return None
    for target in statement.targets:
        if isinstance(target, ast.Name) and target.id == name:
            return statement.value
        parts, values = getattr(target, "elts", []), getattr(statement.value, "elts", [])
        if len(parts) == len(values):
            for part, value in zip(parts, values):
                if isinstance(part, ast.Name) and part.id == name:
                    return value if isinstance(value, ast.expr) else None
    return None

"""Where a tensor of a wrong type came into the program: an array of NumPy's, which computes in double precision, is
made a tensor far from the layer that refuses it. Followed back in the source, through variables, arguments, results of
the program's functions, and what loaders go through."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.diagnosis.detectors.errors.layers import self_of
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import (
    assigned,
    assigned_before,
    called_name,
    expression_at,
    function_called,
    inside,
    returns_of,
    scope_at,
    tree_of,
)
from adbg.engine.diagnosis.values import Step, given_for, line_in, made_by_node, tensor_locals
from adbg.engine.types import SourceLine

_MOST = 40  # expressions that are followed
MAKERS = frozenset({"from_numpy", "tensor", "as_tensor", "asarray", "to_tensor", "DoubleTensor", "frombuffer"})
#: Methods that give what they are called on, in another form.
_SAME = frozenset({
    "to", "cuda", "cpu", "view", "reshape", "unsqueeze", "squeeze", "permute", "transpose", "t", "contiguous", "clone",
    "detach", "flatten", "expand", "index_select", "pin_memory", "requires_grad_", "gather", "split", "chunk", "repeat",
})  # fmt: skip
_LOADERS = frozenset({"DataLoader", "random_split", "Subset", "enumerate", "tqdm", "iter", "next", "zip"})
_SETS = frozenset({"TensorDataset"})


def table_of(
    facts: Facts, steps: list[Step], place: int, error: BaseException, wrong: Any
) -> tuple[str, SourceLine] | None:
    """(name, the line that makes it of numbers from outside) of the first tensor of the floating type of ``wrong`` that
    the failing expression of ``steps[place]`` names, or the lines that made what it names."""
    backend = facts.backend
    dtype = backend.meta(wrong).dtype
    values = dict(tensor_locals(backend, steps[place][0])) if dtype in ("f64", "f32", "f16") else {}
    every = {name: each for name, each in values.items() if backend.meta(each).dtype == dtype}
    for name in _names_at(backend, steps, place, every):
        value = every.get(name)
        if value is None or backend.has_graph(value) or facts.is_named(value):
            continue
        line = _Way(steps, error).from_variable(name, place)
        if line is not None:
            return name, line
    return None


def _names_at(backend: Backend, steps: list[Step], place: int, every: dict[str, Any]) -> Iterator[str]:
    """The variables of the failing expression; then those of the statements that made them, where they have a graph."""
    failing = expression_at(steps[place][0].f_code, steps[place][1])
    names = [each.id for each in ast.walk(failing) if isinstance(each, ast.Name)] if failing is not None else []
    yield from names
    for name in names:
        line = made_by_node(backend, every[name])[0] if name in every else None
        scope = scope_at(line.file, line.line) if line is not None else None
        for node in inside(scope) if scope is not None else ():
            if line is not None and isinstance(node, ast.Name) and node.lineno == line.line:
                yield node.id


class _Way:
    def __init__(self, steps: list[Step], error: BaseException) -> None:
        self._steps = steps
        self._error = error
        self._left = _MOST

    def from_variable(self, name: str, place: int) -> SourceLine | None:
        line = line_in(self._error, self._steps[place][0])
        return self._variable(name, line, place, 0) if line is not None else None

    def _follow(self, node: ast.AST | None, line: SourceLine, place: int | None, at: int) -> SourceLine | None:
        """``place``: of the function in ``steps`` while it runs; None of one that has returned. ``at``: which of
        several values, or of what a data set gives."""
        self._left -= 1
        while isinstance(node, (ast.Subscript, ast.Starred, ast.Call)):
            if not isinstance(node, ast.Call):
                node = node.value
            elif _is_same(node) and isinstance(node.func, ast.Attribute):
                node = node.func.value
            else:
                break
        if node is None or self._left < 0:
            return None
        if isinstance(node, (ast.Tuple, ast.List)):
            return self._follow(node.elts[at], line, place, 0) if at < len(node.elts) else None
        if isinstance(node, ast.Name):
            return self._variable(node.id, line, place, at)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, line, place, at)
        if isinstance(node, ast.Call):
            return self._call(node, line, place, at)
        return None

    def _variable(self, name: str, line: SourceLine, place: int | None, at: int) -> SourceLine | None:
        made = assigned_before(line.file, line.line, name)
        if made is None:
            handed = given_for(self._steps, place, name) if place is not None else None
            here = line_in(self._error, self._steps[handed[0]][0]) if handed is not None else None
            if handed is not None and here is not None:
                return self._follow(handed[1], here, handed[0], at)
            outer = _of_module(line, name)
            return self._follow(outer[1], outer[0], None, at) if outer is not None else None
        statement, here = made[1], SourceLine(line.file, made[0], line.function)
        if isinstance(statement, (ast.For, ast.AsyncFor)):
            target, over = statement.target, statement.iter
            if called_name(over) == "enumerate" and isinstance(target, ast.Tuple) and len(target.elts) == 2:
                target = target.elts[1]
            found = _place_in(target, name)
            return self._follow(over, here, place, at if found is None else found)
        places = [_place_in(each, name) for each in getattr(statement, "targets", [])]
        found = next((each for each in places if each is not None), None)
        value = getattr(statement, "value", None) if not isinstance(statement, ast.AugAssign) else None
        return self._follow(value, here, place, at if found is None else found)

    def _attribute(self, node: ast.Attribute, line: SourceLine, place: int | None, at: int) -> SourceLine | None:
        if not isinstance(node.value, ast.Name) or node.value.id != "self":
            return None
        owner = self_of(self._steps[place][0]) if place is not None else None
        made = assigned(line.file, node.attr, type(owner).__name__ if owner is not None else _class_at(line))
        scope = scope_at(made.file, made.line) if made is not None else None
        for each in inside(scope) if scope is not None else ():
            if made is not None and isinstance(each, ast.Assign) and each.lineno == made.line:
                places = [_place_in(target, ast.unparse(node)) for target in each.targets]
                found = next((number for number in places if number is not None), at)
                return self._follow(each.value, made, None, found)
        return None

    def _call(self, node: ast.Call, line: SourceLine, place: int | None, at: int) -> SourceLine | None:
        name, here = called_name(node), SourceLine(line.file, node.lineno, line.function)
        if name in MAKERS:
            return here
        if name in _LOADERS and node.args:
            return self._follow(node.args[0], here, place, at)
        if name in _SETS:
            given = node.args[0].elts if node.args and isinstance(node.args[0], (ast.List, ast.Tuple)) else node.args
            return self._follow(given[at], here, place, 0) if at < len(given) else None
        function = function_called(line.file, node) or _item_of(line.file, name)
        returns = returns_of(function) if function is not None else []
        if function is None or not returns:
            return None
        return self._follow(returns[-1].value, SourceLine(line.file, returns[-1].lineno, function.name), None, at)


def _is_same(node: ast.Call) -> bool:
    named = [each.arg for each in node.keywords]
    return isinstance(node.func, ast.Attribute) and node.func.attr in _SAME and "dtype" not in named


def _place_in(target: ast.expr, name: str) -> int | None:
    if isinstance(target, (ast.Tuple, ast.List)):
        return next((at for at, each in enumerate(target.elts) if ast.unparse(each) == name), None)
    return None


def _of_module(line: SourceLine, name: str) -> tuple[SourceLine, ast.expr] | None:
    """The only statement of a file, outside of functions, that gives ``name`` a value."""
    tree = tree_of(line.file)
    found = [
        (SourceLine(line.file, each.lineno, "<module>"), each.value)
        for each in (inside(tree) if tree is not None else ())
        if isinstance(each, ast.Assign) and any(ast.unparse(target) == name for target in each.targets)
    ]
    return found[0] if len(found) == 1 else None


def _class_at(line: SourceLine) -> str:
    tree = tree_of(line.file)
    every = [each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)] if tree is not None else []
    return next((each.name for each in every if each.lineno <= line.line <= (each.end_lineno or 0)), "")


def _item_of(file: str, kind: str) -> ast.FunctionDef | None:
    """``__getitem__`` of the data set class of that name."""
    tree = tree_of(file)
    every = [each for each in ast.walk(tree) if isinstance(each, ast.ClassDef) and each.name == kind] if tree else []
    body = every[0].body if len(every) == 1 else []
    return next((each for each in body if isinstance(each, ast.FunctionDef) and each.name == "__getitem__"), None)

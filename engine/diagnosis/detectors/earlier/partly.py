"""A state of several parts that is put together for the next iteration, some of them detached and others not:
``self.carry = (hidden.detach(), memory)``. That line is the one to change, wherever the parts were computed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import Backend, BackwardCall
from adbg.engine.diagnosis.detectors.earlier.carried import as_they_are, handed_to, in_order, parts_of, unpacked
from adbg.engine.diagnosis.detectors.earlier.holding import holds, running_frames, value_in
from adbg.engine.diagnosis.source import scope_at, tree_of
from adbg.engine.diagnosis.variables import UNDEFINED
from adbg.engine.frames import forget_stack
from adbg.engine.types import SourceLine

_CUTS = re.compile(r"\bdetach_?\(|\.data\b|\.item\(|\.numpy\(")
_DEEP = 2  # functions that hand it on


@dataclass(frozen=True, slots=True)
class Partly:
    """``left``: the parts that keep their graphs, ``target``: what gets them, "" of what a function returns."""

    line: SourceLine
    target: str
    left: tuple[str, ...]


def partly(backend: Backend, call: BackwardCall, older: int, line: SourceLine, names: Sequence[str]) -> Partly | None:
    """Behind a line that gave ``names`` their values: where they are put together so, in what holds a tensor that node
    ``older`` made now; where that cannot be read, the only such line."""
    found = [
        each for each in _put_together(line.file, scope_at(line.file, line.line), line.line, set(names), _DEEP)
        if _is_taken(line.file, each.target)
    ]  # fmt: skip
    if not found:
        return None
    frames = list(running_frames())
    forget_stack()
    unread = []
    for each in found:
        values = [value for frame in frames if (value := _read(each.target, frame)) is not UNDEFINED]
        if any(holds(backend, value, call.address(older)) for value in values):
            return each
        if not values:
            unread.append(each)
    return unread[0] if len(unread) == len(found) == 1 else None


def _read(target: str, frame: Any) -> Any:
    """What a variable holds, the whole of it where the target is an item. None is nothing yet."""
    value = value_in(target.partition("[")[0], frame) if target else UNDEFINED
    return UNDEFINED if value is None else value


def _is_taken(file: str, target: str) -> bool:
    """Whether anything reads that variable or attribute: what only keeps a record carries nothing on."""
    name, tree = target.partition("[")[0].rpartition(".")[2], tree_of(file)
    return any(
        name in (getattr(node, "id", ""), getattr(node, "attr", ""))
        and isinstance(getattr(node, "ctx", None), ast.Load)
        for node in (ast.walk(tree) if tree is not None else ())
    )


def _put_together(file: str, scope: ast.AST | None, above: int, known: set[str], depth: int) -> Iterator[Partly]:
    """In the statements of a function below line ``above``."""
    cut: set[str] = set()  # variables that have no graph any more
    for node in in_order(scope):
        if node.lineno <= above:
            continue
        value = getattr(node, "value", None)
        if isinstance(node, ast.Return) and value is not None:
            left = _left(value, known, cut)
            if left and depth < _DEEP:
                yield Partly(_line(file, node, scope), "", left)
        elif isinstance(node, ast.Assign):
            yield from _assigned(file, scope, node, known, cut, depth)
            targets = {each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)}
            if _CUTS.search(ast.unparse(node.value)) and not as_they_are(node.value) & known:
                cut |= targets
                known -= targets
            else:
                known |= unpacked(node, known)
        elif isinstance(node, ast.Expr) and isinstance(value, ast.Call) and depth:
            function, inner = handed_to(file, value, known)
            if function is not None:
                yield from _put_together(file, function, 0, inner, depth - 1)


def _assigned(
    file: str, scope: ast.AST | None, node: ast.Assign, known: set[str], cut: set[str], depth: int
) -> Iterator[Partly]:
    left, target = _left(node.value, known, cut), node.targets[0]
    if left:
        yield Partly(_line(file, node, scope), ast.unparse(_of(target, node.value, known)), left)
    elif isinstance(node.value, ast.Call) and depth:
        function, inner = handed_to(file, node.value, known)
        for each in _put_together(file, function, 0, inner, depth - 1) if function is not None else ():
            yield each if each.target else Partly(each.line, ast.unparse(target), each.left)


def _of(target: ast.expr, value: ast.expr, known: set[str]) -> ast.expr:
    """Of ``self.h, self.c = h.detach(), c`` the one that gets a graph."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return next((each for each, given in zip(target.elts, value.elts) if as_they_are(given) & known), target)
    return target


def _left(value: ast.expr, known: set[str], cut: set[str]) -> tuple[str, ...]:
    """Of a value that is put together the parts that keep their graphs, where others were cut off from theirs."""
    parts = parts_of(value)
    left = [each for each in parts if as_they_are(each) & known]
    off = [each for each in parts if as_they_are(each) & cut or _CUTS.search(ast.unparse(each))]
    return tuple(ast.unparse(each) for each in left) if off else ()


def _line(file: str, node: ast.stmt, scope: ast.AST | None) -> SourceLine:
    return SourceLine(file, node.lineno, getattr(scope, "name", "<module>"))

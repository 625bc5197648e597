"""Tensors that were made under ``inference_mode``: autograd may take none of them, whatever else would fit."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from adbg.engine.diagnosis.detectors.graphs.switches import switch
from adbg.engine.diagnosis.source import called_name, nodes_of, tree_of
from adbg.engine.outside import suppress
from adbg.engine.types import SourceLine

_MODE = "inference_mode"
_REFUSED = re.compile(r"\binference tensors?\b", re.I)


def is_refused(text: str) -> bool:
    """An exception says that an operand was made under ``inference_mode``."""
    return _REFUSED.search(text) is not None


def is_inference(value: Any) -> bool:
    asked = getattr(value, "is_inference", None)
    with suppress(Exception):  # a tensor subclass of the program's that refuses
        return bool(asked is not None and asked())
    return False


def mode_of(made: SourceLine | None, file: str) -> SourceLine | None:
    """The line that switches it on where such a tensor was made: around that line, in the function that it calls, or
    the only one of the file that names it."""
    if made is not None:
        around = switch(made)
        if around is not None:
            return around
        called = next(_in_called(made), None)
        if called is not None:
            return called
    named = _named(file)
    return named[0] if len(named) == 1 else made


def _in_called(made: SourceLine) -> Iterator[SourceLine]:
    tree = tree_of(made.file)
    nodes = list(ast.walk(tree)) if tree is not None else []
    names = {
        called_name(node)
        for node in nodes
        if isinstance(node, ast.Call) and node.lineno <= made.line <= (node.end_lineno or 0)
    }
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and node.name in names:
            first = min([node.lineno, *[each.lineno for each in node.decorator_list]])
            yield from (each for each in _named(made.file) if first <= each.line <= (node.end_lineno or 0))


def _named(file: str) -> list[SourceLine]:
    lines = {
        node.lineno
        for node in nodes_of(file)
        if (isinstance(node, ast.Name) and node.id == _MODE) or (isinstance(node, ast.Attribute) and node.attr == _MODE)
    }
    return [SourceLine(file, line, "<module>") for line in sorted(lines)]


def refused(operands: list[tuple[str, Any]]) -> tuple[str, Any]:
    """(name, tensor) of the one that autograd does not take."""
    return next((each for each in operands if is_inference(each[1])), operands[0])


def told_of(name: str, made: SourceLine | None, file: str) -> tuple[SourceLine, str] | None:
    """The line that switched the mode on, and what is said of it; ``made``: the line that made the tensor."""
    line = mode_of(made, file)
    why = f"{name} was made under inference_mode, and autograd takes no such tensor (a clone() of it, or no_grad)"
    return (line, why) if line is not None else None

"""The functions that schedulers compute their factors with: where they stand, and what of their source gave a 0."""

from __future__ import annotations

import ast
import functools
import os
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from adbg.engine.diagnosis.detectors.training.source import place
from adbg.engine.diagnosis.source import Function, inside, nodes_of
from adbg.engine.outside import suppress
from adbg.engine.own_files import is_library
from adbg.engine.types import SourceLine

_WRAPS = 8  # partials of partials


@dataclass(frozen=True, slots=True)
class Factor:
    """A function of the program, by its file, first line and name."""

    file: str
    first: int
    name: str

    def gave_zero(self) -> tuple[SourceLine, str] | None:
        """The line to look at, and why: its only integer division, its only ``return`` that may give a 0, else where it
        begins."""
        function = self._source()
        if function is None:
            return None
        nodes = [function.body] if isinstance(function, ast.Lambda) else list(inside(function))
        divided = {
            each.lineno for node in nodes for each in ast.walk(node)
            if isinstance(each, ast.BinOp) and isinstance(each.op, ast.FloorDiv)
        }  # fmt: skip
        if len(divided) == 1:
            line = self._line(divided.pop())
            return line, f"the function of the scheduler divides integers, in {place(line)}"
        if isinstance(function, ast.Lambda):
            line = self._line(function.body.lineno)
            return line, f"the function of the scheduler is {ast.unparse(function)}, in {place(line)}"
        returns = [node for node in nodes if isinstance(node, ast.Return) and not _is_other_number(node.value)]
        if len(returns) == 1:
            line = self._line(returns[0].lineno)
            return line, f"{self.name}, the function of the scheduler, gives its factor in {place(line)}"
        line = self._line(function.lineno)
        return line, f"the factor comes from {self.name}, in {place(line)}"

    def _line(self, number: int) -> SourceLine:
        return SourceLine(self.file, number, self.name)

    def _source(self) -> Function | None:
        found = [
            node for node in nodes_of(self.file)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            and getattr(node, "name", "<lambda>") == self.name
            and self.first in (node.lineno, *[each.lineno for each in getattr(node, "decorator_list", ())])
        ]  # fmt: skip
        return found[0] if len(found) == 1 else None


def factor_of(scheduler: Any) -> Factor | None:
    """The only function of the program's that a scheduler was given, or that its class computes the rates with. None of
    them is called."""
    found: set[Factor] = set()
    with suppress(Exception):
        values = list(vars(scheduler).values())
        for value in [item for each in values for item in (each if isinstance(each, (list, tuple)) else (each,))]:
            if callable(value):
                found.update(_written_at(value))
        if not found:
            found.update(_written_at(type(scheduler).get_lr))
    return found.pop() if len(found) == 1 else None


def _written_at(value: Any) -> Iterator[Factor]:
    for _ in range(_WRAPS):
        if isinstance(value, functools.partial):
            value = value.func
        elif isinstance(value, types.MethodType):
            value = value.__func__
        elif isinstance(value, types.FunctionType):
            break
        else:
            value = type(value).__call__
    if isinstance(value, types.FunctionType):
        code = value.__code__
        file = os.path.abspath(code.co_filename)
        if not is_library(file) and not code.co_filename.startswith("<"):
            yield Factor(file, code.co_firstlineno, code.co_name)


def _is_other_number(value: ast.expr | None) -> bool:
    """A number other than 0 that is written out."""
    return isinstance(value, ast.Constant) and bool(value.value)

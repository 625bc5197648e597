"""A number of parts where their size was meant, or the other way round: ``split`` takes the one on Paddle, the other on
torch."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from adbg.engine.diagnosis.source import assigned_names, called_name, function_called, inside, nodes_of, scope_at
from adbg.engine.types import SourceLine

_SPLITS = frozenset({"split", "split_with_sizes"})
_NAMES = ("num_or_sections", "split_size_or_sections", "split_size")
_WORDS = {"paddle": "takes how many parts to make, not their size", "torch": "takes the size of a part, not how many"}


def odd_sizes(one: Sequence[int], other: Sequence[int]) -> tuple[int, int] | None:
    """(of one, of the other) at the last axis where two shapes cannot be broadcast."""
    for mine, theirs in zip(reversed(one), reversed(other)):
        if mine != theirs and 1 not in (mine, theirs):
            return mine, theirs
    return None


def is_swapped(framework: str, given: int, sizes: tuple[int, int]) -> bool:
    """Whether a split that was given that number may have made an operand of size ``sizes[0]`` where the other one's
    says that ``sizes[1]`` was meant: of 24 hours, ``split(x, 4)`` makes 4 parts of 6 on Paddle, 6 of 4 on torch."""
    return given == (sizes[0] if framework == "paddle" else sizes[1])


def words(framework: str) -> str:
    return f"split {_WORDS.get(framework, _WORDS['torch'])}"


def splits_of(file: str, line: int, name: str) -> Iterator[SourceLine]:
    """Lines with ``split`` of which a variable of the function at a line is made, by the source: in the statements that
    give it a value, and in functions of the file that these call. Of data no graph tells that it was split."""
    scope = scope_at(file, line)
    for node in inside(scope) if scope is not None else ():
        if not isinstance(node, (ast.Assign, ast.AugAssign)) or name not in assigned_names(node):
            continue
        called = (function_called(file, each) for each in ast.walk(node) if isinstance(each, ast.Call))
        for part in (node, *filter(None, called)):
            for each in ast.walk(part):
                if isinstance(each, ast.Call) and called_name(each) in _SPLITS:
                    yield SourceLine(file, each.lineno, getattr(scope_at(file, each.lineno), "name", ""))


def splits_at(file: str, line: int, known: Mapping[str, Any]) -> Iterator[int]:
    """The numbers that calls of ``split`` at a line are given, as far as the source or a global name tells."""
    for node in nodes_of(file):
        if not isinstance(node, ast.Call) or node.lineno != line or called_name(node) not in _SPLITS:
            continue
        value = next((each.value for each in node.keywords if each.arg in _NAMES), None)
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        of_module = owner is None or (isinstance(owner, ast.Name) and type(known.get(owner.id)) is types.ModuleType)
        if value is None and len(node.args) > of_module:  # ``x.split(4, 1)``, ``torch.split(x, 4, 1)``
            value = node.args[of_module]
        found = known.get(value.id) if isinstance(value, ast.Name) else getattr(value, "value", None)
        if type(found) is int:
            yield found

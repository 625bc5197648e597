"""Calls that clear gradients, and whose they clear."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from adbg.engine.diagnosis.detector import OptimizerEvent
from adbg.engine.diagnosis.ledger import Moment
from adbg.engine.diagnosis.source import nodes_of
from adbg.engine.diagnosis.variables import UNDEFINED, frame_at, value_of
from adbg.engine.frames import locals_of
from adbg.engine.outside import suppress
from adbg.engine.python.user_code import source_line, user_frame
from adbg.engine.types import SourceLine

_CLEARS = frozenset({"zero_grad", "clear_grad", "clear_gradients"})
_MOST = 16  # lines that clear


@dataclass(frozen=True, slots=True)
class Clearing:
    """The innermost line of the program that cleared the gradients of an optimizer. ``holds``: ids of all that the
    object has which it asked to do so: one that hands the call on, or gave the optimizer's method as its own.
    ``caller``: who called the method of that object."""

    line: SourceLine
    caller: SourceLine | None
    holds: frozenset[int]


class Clearings:
    """Of each optimizer, as it is cleared for the first time from a line; and of the modules that a line asks."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, SourceLine], Clearing] = {}
        self._modules: dict[SourceLine, set[int]] = {}  # lines that ask modules -> ids of all that they clear

    def note(self, event: OptimizerEvent) -> None:
        """On the thread that clears, while it does."""
        line, key = event.line, id(event.optimizer)
        if event.optimizer is None:
            if line is not None and (line in self._modules or len(self._modules) < _MOST):
                self._modules.setdefault(line, set()).update(map(id, event.tensors))
            return
        if line is None or (key, line) in self._known or len(self._known) >= _MOST:
            return
        frame = frame_at(line)
        if frame is None:
            return
        asked, caller = _named(frame, line), None
        if frame.f_code.co_name in _CLEARS:
            asked, caller = locals_of(frame).get("self"), source_line(user_frame(frame.f_back))
        holds = frozenset(_ids(asked)) if asked is not event.optimizer else frozenset[int]()
        self._known[key, line] = Clearing(line, caller, holds)

    def of(self, optimizer: int, line: SourceLine | None) -> Clearing | None:
        return self._known.get((optimizer, line)) if line is not None else None

    def beside(self, left: Collection[int], cleared: Collection[int]) -> SourceLine | None:
        """The only line that asks modules, where it clears all of ``cleared`` and nothing of ``left`` (ids)."""
        if len(self._modules) != 1 or not cleared:
            return None
        line, reached = next(iter(self._modules.items()))
        return line if reached.issuperset(cleared) and reached.isdisjoint(left) else None


def in_vain(moments: Iterable[Moment], stepped: int) -> SourceLine | None:
    """The only line that clears the gradients of an optimizer which never steps before it is cleared again, while
    ``stepped`` does: the wrong one of two was asked."""
    open_: dict[int, tuple[SourceLine | None, set[int]]] = {}  # an optimizer -> where it was cleared, who stepped since
    lines: dict[SourceLine | None, bool] = {}
    for moment in moments:
        if moment.what == "step":
            for _, since in open_.values():
                since.add(moment.optimizer)
        elif moment.what == "zeroed" and moment.optimizer not in (0, stepped):
            line, since = open_.pop(moment.optimizer, (None, set()))
            if line is not None:
                idle = moment.optimizer not in since and stepped in since
                lines[line] = idle and lines.get(line, True)
            open_[moment.optimizer] = moment.line, set()
    found = [line for line, idle in lines.items() if idle]
    return found[0] if len(found) == 1 else None


def _ids(value: Any) -> Iterator[int]:
    """Of what an object holds, itself or in a container."""
    with suppress(Exception):
        for each in list(vars(value).values()):
            yield id(each)
            if isinstance(each, (list, tuple, dict)):
                yield from map(id, list(each.values() if isinstance(each, dict) else each)[:_MOST])


def _named(frame: Any, line: SourceLine) -> Any:
    """The object whose method the line calls, where it is a variable or an attribute; nothing of the program runs."""
    found = [
        node.func.value
        for node in nodes_of(line.file)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CLEARS
        and node.lineno <= line.line <= (node.end_lineno or node.lineno)
    ]  # fmt: skip
    if len(found) != 1:
        return UNDEFINED
    return value_of(found[0], frame)

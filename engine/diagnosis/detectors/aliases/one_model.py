"""A copy of a model that is the model itself."""

from __future__ import annotations

import ast
import functools
import os
from typing import Any

from adbg.engine.diagnosis.detector import Detector, Need, OperatorCall, detector
from adbg.engine.diagnosis.detectors.aliases.stale_names import running
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place
from adbg.engine.diagnosis.source import assigned, assigned_before, called_name, nodes_of
from adbg.engine.diagnosis.variables import UNDEFINED, value_of
from adbg.engine.own_files import is_programs
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_OWNERS = frozenset({"parameters", "named_parameters", "state_dict", "buffers", "trainable_weights"})
_LINES = 256  # at which the running functions were looked through


@detector("silent-overwrite")
class OneModel(Detector):
    """A loop brings the weights of one model near to those of another (``for e, p in zip(ema.parameters(),
    net.parameters())``), and both names stand for one model: ``ema = net`` makes no copy, nor does ``copy.copy``. The
    average, or the target network, is the model itself at all times.

    Evidence: the loop in the source, that what both names stand for has the same weights, and the line that made one of
    the other.
    Mistaken for: models that share some layers on purpose (not told: the first weights have to be the same, and as
    many).
    Cost: in sampled iterations a look at the source of each line that calls an operator, once.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._looked: set[SourceLine] = set()
        self._told: set[tuple[str, int]] = set()
        self._any = False

    def applied(self) -> bool:
        return self._any

    def operator(self, call: OperatorCall) -> None:
        line = line_of(call.lines)
        if line is None or line in self._looked or len(self._looked) >= _LINES or call.in_backward:
            return
        self._looked.add(line)
        for loop in _loops(line.file):
            if (
                loop.lineno <= line.line <= (loop.end_lineno or loop.lineno)
                and (line.file, loop.lineno) not in self._told
            ):
                self._any = True
                self._look(loop, line)

    def _look(self, loop: ast.For, line: SourceLine) -> None:
        pair = _owners(loop)
        frame = next((each for each in running() if os.path.abspath(each.f_code.co_filename) == line.file
                      and each.f_lineno == line.line), None)  # fmt: skip
        if pair is None or frame is None:
            return
        one, other = (value_of(each, frame) for each in pair)
        if one is UNDEFINED or other is UNDEFINED or not _is_one(one, other):
            return
        self._told.add((line.file, loop.lineno))
        at = SourceLine(line.file, loop.lineno, line.function)
        found = next(
            (each for each in (_made_of(line.file, loop.lineno, a, b) for a, b in (pair, pair[::-1])) if each), None
        )
        cause = SourceLine(line.file, found, line.function) if found else at
        names = [ast.unparse(each) for each in pair]
        facts = self.facts
        facts.tell(
            Finding(
                0, "silent-overwrite", "error", 0.92,
                f"{names[0]} and {names[1]} are one model: {place(cause)} makes no copy, so that {place(at)} gives its "
                "weights what they have; copy.deepcopy makes one",
                iteration=facts.iteration + 1, forward=at, cause=facts.cause(cause),
                evidence=[
                    f"{place(at)}: {facts.text_of(at)}",
                    "the weights of both are the same objects",
                    *([f"{place(cause)}: {facts.text_of(cause)}"] if found else []),
                ],
                next=[f"b {place(at)}", "info params"],
            )
        )  # fmt: skip


def _is_one(one: Any, other: Any) -> bool:
    if not callable(getattr(one, "parameters", None)) or not callable(getattr(other, "parameters", None)):
        return False
    first, second = list(one.parameters()), list(other.parameters())
    return bool(first) and len(first) == len(second) and all(a is b for a, b in zip(first, second))


@functools.lru_cache(256)
def _loops(file: str) -> tuple[ast.For, ...]:
    nodes = nodes_of(file) if is_programs(file) else ()
    return tuple(each for each in nodes if isinstance(each, ast.For) and _owners(each) is not None)


def _owners(loop: ast.For) -> tuple[ast.expr, ast.expr] | None:
    """``ema`` and ``net`` of ``zip(ema.parameters(), net.parameters())``."""
    if called_name(loop.iter) != "zip" or not isinstance(loop.iter, ast.Call) or len(loop.iter.args) != 2:
        return None
    owners = []
    for each in loop.iter.args:
        function = each.func if isinstance(each, ast.Call) else None
        if isinstance(function, ast.Attribute) and function.attr in ("values", "items"):
            function = getattr(function.value, "func", None)
        if isinstance(function, ast.Attribute) and function.attr in _OWNERS:
            owners.append(function.value)
    if len(owners) != 2 or ast.unparse(owners[0]) == ast.unparse(owners[1]):
        return None
    return owners[0], owners[1]


def _made_of(file: str, line: int, one: ast.expr, other: ast.expr) -> int | None:
    """The line that gives ``one`` the other model, or a shallow copy of it."""
    name, source = ast.unparse(one), ast.unparse(other)
    for node in nodes_of(file):
        if isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets):
            value = node.value
            if called_name(value) == "copy" and isinstance(value, ast.Call) and value.args:
                value = value.args[0]
            if ast.unparse(value).rpartition(".")[2] == source.rpartition(".")[2]:
                return node.lineno
    made = assigned_before(file, line, name)
    if isinstance(one, ast.Attribute):
        found = assigned(file, one.attr)
        return found.line if found is not None and not _calls(file, found.line) else None
    return made[0] if made is not None and not _calls(file, made[0]) else None


def _calls(file: str, line: int) -> bool:
    """Whether the statement makes something: a call."""
    return any(
        isinstance(node, ast.Assign) and node.lineno == line and isinstance(node.value, ast.Call)
        for node in nodes_of(file)
    )  # fmt: skip

"""A tensor that is overwritten in place under one name and then read under another, as if it still were what it was."""

from __future__ import annotations

import ast
import os
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, writes
from adbg.engine.diagnosis.detectors.graphs.marks import Marked, Marks
from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import (
    assigned_before,
    assigned_names,
    called_name,
    expression_at,
    inside,
    operands_of,
    scope_at,
)
from adbg.engine.frames import locals_of
from adbg.engine.own_files import is_programs
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_BENDS = frozenset({
    "relu", "relu6", "leaky_relu", "elu", "celu", "selu", "silu", "mish", "hardtanh", "hardswish", "hardsigmoid",
    "threshold", "dropout", "alpha_dropout", "feature_dropout", "sigmoid", "tanh", "softmax",
})  # fmt: skip
_FRAMES = 12  # functions of the program's, from the innermost one outwards
_ITEMS = 64  # of a list
_MOST = 1000  # operators that overwrite, of one iteration


@dataclass(frozen=True, slots=True)
class _Before:
    """What a running function called the tensor as a statement of its own had it overwritten."""

    frame: int
    code: types.CodeType
    instruction: int
    caller: tuple[int, ...]  # that of a function that runs stands still: another call in the same memory has another
    overwriting: ast.stmt
    names: frozenset[str]
    holders: frozenset[str]  # lists and dicts that had it


@dataclass(frozen=True, slots=True)
class _Written:
    bends: bool
    before: tuple[_Before, ...]
    line: SourceLine
    second: tuple[str, SourceLine] | None  # another name of the function that wrote, used below, and where it was given


@detector("silent-overwrite")
class TwoNames(Detector):
    """``out = self.relu(x)`` with ``inplace=True`` and ``out + x`` after it: the sum takes the activated ``x``, and
    autograd says nothing of it, since the activation keeps its result alone. The same of a list of skip connections
    whose tensors the next layer overwrites, and of a function that changes what it was given and returns it
    (``noisy = corrupt(x)``), while the caller goes on to use both.

    Evidence: the line that overwrote it, what it is called there, the line that reads it under the name of before.
    A function that gives two names to one tensor (``labels = ids``), writes through one of them (``ids[mask] = MASK``)
    and goes on to use the other is told of when an operator that takes gradients reads either.

    Mistaken for: an activation that overwrites the name itself (``x = relu(x)``), a statement that does nothing but
    overwrite (``x.clamp_(0, 1)``, ``update(x)``), a function whose name ends with ``_``, ``out=``, an activation that
    changed no element, what is read where no gradients are recorded (all not told).
    Cost: in sampled iterations a look at the version of what operators return, and, of the first 1,000 that overwrite,
    at the variables of up to 12 functions of the program's: some 20 us. Before Python 3.11, which does not tell which
    expression runs, only two names of one function are told of.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._written: Marks[_Written] = Marks()
        self._any = False
        self._left = _MOST
        self._told: set[SourceLine] = set()

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or call.in_backward or self.facts.stepping:
            return
        if self._any and call.grad_mode:
            for operand in call.operands:
                known = self._written.of(operand)
                if known is not None and known.what.line not in self._told:
                    self._read(call, operand, known)
        if "out" in call.keywords:
            return
        named = writes(call)
        for operand, version in zip(call.operands, call.versions):
            if version is not None and any(operand is one for one in (*named, *call.results)):
                now = self.facts.backend.version_of(operand)
                if now is not None and now > version:
                    self._write(call, operand)
                return

    def iteration_end(self) -> None:
        self._left = _MOST

    # ---- the overwriting

    def _write(self, call: OperatorCall, operand: Any) -> None:
        line, name = line_of(call.lines), plain(call.name)
        self._left -= 1
        if self._left < 0 or line is None or self.facts.is_named(operand) or not self._changes(name, operand):
            return
        before = tuple(_before(operand))
        if before:
            self._any = True
            known = self._written.of(operand)
            second = next((each for one in before[:1] if (each := _second(one)) is not None), None)
            if known is not None and known.what.second is not None:  # it was written through that one before
                name, line, second = known.name, known.what.line, known.what.second
            self._written.put(operand, _Written(name in _BENDS, before, line, second), name, line)

    def _changes(self, name: str, operand: Any) -> bool:
        """A ReLU without a zero in its result left all as it was."""
        if "relu" not in name or name in ("leaky_relu", "relu6"):
            return True
        read = values.stats(self.facts.backend, operand)
        return read is not None and read.zero > 0

    # ---- the reading

    def _read(self, call: OperatorCall, operand: Any, known: Marked[_Written]) -> None:
        if not any(self.facts.backend.meta(each).requires_grad for each in (*call.operands, *call.results)):
            return
        for frame in _running():
            before = next((one for one in known.what.before if _is(frame, one)), None)
            if before is None or frame.f_lasti == before.instruction:
                continue  # what overwrote it there has not come back yet
            name = _stale(frame, before, operand, known.what.bends)
            if name:
                self._tell(plain(call.name), known, name, _line(frame))
                return
            break
        if known.what.second is not None:
            self._tell("", known, *known.what.second)

    def _tell(self, reader: str, known: Marked[_Written], name: str, at: SourceLine) -> None:
        """``at``: where ``reader`` reads it; without a reader: where it was given that name."""
        facts, line = self.facts, known.what.line
        self._told.add(line)
        if reader:
            message = (
                f"{known.name} at {place(line)} overwrites a tensor in place that {place(at)} still reads as {name}: "
                f"{reader} there takes the overwritten numbers, and no error tells of it"
            )
        else:
            message = (
                f"{name} is no copy: {place(at)} gives one tensor two names, and {place(line)} overwrites both: "
                f"what uses {name} after it takes the overwritten numbers"
            )
        evidence = [
            f"{name} is that tensor itself, and no copy was taken; its version went up at {place(line)}: "
            f"{facts.text_of(line)}",
            f"it is {'read' if reader else 'named'} at {place(at)}: {facts.text_of(at)}",
        ]
        facts.tell(
            Finding(
                0, "silent-overwrite", "warning", 0.85 if known.what.bends else 0.7, message,
                iteration=facts.iteration + 1, forward=line, cause=facts.cause(line if reader else at),
                evidence=evidence, next=[f"b {place(at)}", "info node"],
            )
        )  # fmt: skip


def _running() -> Iterator[types.FrameType]:
    """The functions of the program's on this thread, innermost first."""
    frame: types.FrameType | None = sys._getframe(1)
    found = 0
    while frame is not None and found < _FRAMES:
        if is_programs(frame.f_code.co_filename):
            found += 1
            yield frame
        frame = frame.f_back


def _line(frame: types.FrameType) -> SourceLine:
    return SourceLine(os.path.abspath(frame.f_code.co_filename), frame.f_lineno, frame.f_code.co_name)


def _caller(frame: types.FrameType) -> tuple[int, ...]:
    caller = frame.f_back
    if caller is None:
        return ()
    return id(caller), caller.f_lasti, *(id(value) for value in locals_of(caller).values())


def _is(frame: types.FrameType, before: _Before) -> bool:
    return before.frame == id(frame) and before.code is frame.f_code and before.caller == _caller(frame)


def _before(operand: Any) -> Iterator[_Before]:
    for frame in _running():
        statement = _statement(frame)
        if statement is None or isinstance(statement, ast.Expr) or _says_so(statement):
            continue
        names, holders = _names(frame, operand)
        given = _given(statement)
        if names - given or holders - given:
            yield _Before(
                id(frame), frame.f_code, frame.f_lasti, _caller(frame), statement, names - given, holders - given
            )


def _statement(frame: types.FrameType) -> ast.stmt | None:
    """The innermost statement that the function is at; of a loop or a branch its head."""
    line, file = frame.f_lineno, os.path.abspath(frame.f_code.co_filename)
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


def _second(before: _Before) -> tuple[str, SourceLine] | None:
    """Of a function that wrote through one name: another one that it gave that tensor by ``other = one`` before, and
    uses after, with the line of that."""
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
        loads = (node for node in inside(scope) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
        if any(node.id == name and node.lineno > here for node in loads):
            return name, SourceLine(file, made[0], before.code.co_name)
    return None


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


def _stale(frame: types.FrameType, before: _Before, operand: Any, bends: bool) -> str:
    """What the expression that runs calls the tensor, where it is a name, or a list, of before; else ""."""
    expression = expression_at(frame.f_code, frame.f_lasti)
    if expression is None:
        return ""
    bound, _ = _names(frame, operand)
    given = _given(before.overwriting)
    if not bends and not given & bound:  # what overwrote it did not return it: it may have been meant to
        return ""
    taken: list[ast.AST] = list(operands_of(expression))
    used = {each.id for each in taken if isinstance(each, ast.Name) and each.id in bound}
    if used & given:
        return ""
    stale = sorted(used & before.names)
    if stale:
        return stale[0]
    file = os.path.abspath(frame.f_code.co_filename)
    for name in used:
        taken += [made[1] for made in [assigned_before(file, frame.f_lineno, name)] if made is not None]
    said = {node.id for each in taken for node in _parts(each) if isinstance(node, ast.Name)}
    held = sorted(said & before.holders)
    return f"an element of {held[0]}" if held else ""


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """Of a statement its head alone."""
    if isinstance(node, (ast.For, ast.AsyncFor)):
        yield from ast.walk(node.iter)
    elif isinstance(node, ast.expr) or hasattr(node, "value"):
        yield from ast.walk(node)

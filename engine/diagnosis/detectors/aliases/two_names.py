"""A tensor that is overwritten in place under one name and then read under another, as if it still were what it was."""

from __future__ import annotations

import ast
import functools
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
from adbg.engine.diagnosis.facts import Facts
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
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_BENDS = frozenset({
    "relu", "relu6", "leaky_relu", "elu", "celu", "selu", "silu", "mish", "hardtanh", "hardswish", "hardsigmoid",
    "threshold", "dropout", "alpha_dropout", "feature_dropout", "sigmoid", "tanh", "softmax",
})  # fmt: skip
_LEAVES_POSITIVE = frozenset({"relu", "relu6", "leaky_relu", "threshold", "hardtanh"})  # as they are, mostly
_POSITIVE = frozenset(
    {"relu", "relu6", "sigmoid", "softmax", "square", "exp", "abs", "softplus", "hardsigmoid", "norm"}
)
_KEEPS = frozenset({
    "flatten", "reshape", "view", "dropout", "permute", "transpose", "contiguous", "mean", "sum", "interpolate", "pad",
    "squeeze", "unsqueeze", "clone", "detach", "max", "amax", "getitem",
})  # fmt: skip
_FRESH = frozenset({"zeros", "empty", "ones", "full", "zeros_like", "empty_like", "ones_like", "full_like", "new_zeros",
                    "new_empty", "new_ones", "new_full"})  # fmt: skip
# Of what they are given they take the shape alone, or nothing that is computed with.
_SHAPE_ALONE = frozenset({"view_as", "expand_as", "reshape_as", "type_as", "equal", "equal_all", "detach", "clone"})
_FRAMES = 12  # functions of the program's, from the innermost one outwards
_ITEMS = 64  # of a list
_MOST = 200  # operators that overwrite, of one iteration


@dataclass(frozen=True, slots=True)
class _Before:
    """What a running function called the tensor as a statement of its own had it overwritten."""

    frame: int
    code: types.CodeType
    instruction: int
    caller: tuple[int, ...]  # and what it has: another call in the same memory is made with something else
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

    A function that gives two names to one tensor (``labels = ids``), writes through one of them (``ids[mask] = MASK``)
    and returns both is told of when an operator that takes gradients reads either.

    Evidence: the line that overwrote it, what it is called there, the line that reads it under the name of before.
    Mistaken for: an activation that overwrites the name itself (``x = relu(x)``), a name that was given the tensor
    again since (``x = out``), a statement that does nothing but overwrite (``x.clamp_(0, 1)``, ``update(x)``), a
    function whose name ends with ``_``, ``out=``, a ReLU of what is positive already (a pooling of a ReLU), an
    activation under ``no_grad``, tensors that were made to be filled (``zeros``), a list whose tensors are activated
    one by one in a loop over it (all not told).
    Cost: in sampled iterations a look at the version of what operators return, and, of the first 200 that overwrite, at
    the variables of up to 12 functions of the program's: 70 us each in a module of 50 variables, 1 ms where an
    expression is met first. Before Python 3.11, which does not tell which expression runs, only what a function returns
    twice is told of.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._written: Marks[_Written] = Marks()
        self._kind: Marks[str] = Marks()  # "positive", "fresh"
        self._any = False
        self._left = _MOST
        self._told: set[SourceLine] = set()

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or call.in_backward or self.facts.stepping:
            return
        name = plain(call.name)
        self._note_kind(name, call)
        if self._any and call.grad_mode and name not in _SHAPE_ALONE and not name.endswith("_like"):
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

    def _note_kind(self, name: str, call: OperatorCall) -> None:
        """What a result is that may be overwritten later."""
        result = call.results[0] if call.results else None
        if result is None or any(result is each for each in call.operands):
            return
        first = self._kind.of(call.operands[0]) if call.operands else None
        if name in _FRESH:
            self._kind.put(result, "fresh", name, None)
        elif name in _POSITIVE or (
            (name in _KEEPS or "pool" in name) and first is not None and first.what == "positive"
        ):
            self._kind.put(result, "positive", name, None)

    def _write(self, call: OperatorCall, operand: Any) -> None:
        line, name = line_of(call.lines), plain(call.name)
        self._left -= 1
        kind = known.what if (known := self._kind.of(operand)) is not None else ""
        if name in _POSITIVE:
            self._kind.put(operand, "positive", name, None)
        bends = name in _BENDS
        unchanged = bends and (not call.grad_mode or (kind == "positive" and name in _LEAVES_POSITIVE))
        if self._left < 0 or line is None or unchanged or kind == "fresh" or self._is_weight(operand):
            return
        bends = bends and not isinstance(_innermost(), ast.Expr)  # a state that is advanced
        before = tuple(_before(operand))
        if before:
            self._any = True
            earlier = self._written.of(operand)
            second = next((each for one in before[:1] if (each := _second(one)) is not None), None)
            if earlier is not None and earlier.what.second is not None:  # it was written through that one before
                name, line, second = earlier.name, earlier.what.line, earlier.what.second
            self._written.put(operand, _Written(bends, before, line, second), name, line)

    def _is_weight(self, operand: Any) -> bool:
        """A step of the program's own overwrites it."""
        return self.facts.is_named(operand) or (operand.is_leaf and self.facts.backend.meta(operand).requires_grad)

    # ---- the reading

    def _read(self, call: OperatorCall, operand: Any, known: Marked[_Written]) -> None:
        if not any(self.facts.backend.meta(each).requires_grad for each in call.results):
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


def _innermost() -> ast.stmt | None:
    frame = next(_running(), None)
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


def _second(before: _Before) -> tuple[str, SourceLine] | None:
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


def _given_again(file: str, before: _Before, name: str, until: int) -> bool:
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


@functools.lru_cache(4096)
def _expression(code: types.CodeType, instruction: int) -> ast.expr | None:
    return expression_at(code, instruction)


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

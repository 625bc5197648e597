"""The variable of a loop over parameters that is given its new value, where the parameter was to get it."""

from __future__ import annotations

import ast
import functools
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.aliases.stale_names import running
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place
from adbg.engine.diagnosis.detectors.training.bits import hash_of
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import assigned_before, assigned_names, inside, scope_at
from adbg.engine.frames import locals_of
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_OWNERS = frozenset({"parameters", "named_parameters", "state_dict", "buffers", "named_buffers", "param_groups"})
_READERS = frozenset({"locals", "vars"})
_LINES = 64
_TENSORS = 8  # of one line, in one iteration
_ITERATIONS = 2
_TIMES = 2  # tensors, where it ran in one iteration alone
_Comprehension = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True, slots=True)
class _Statement:
    """``name = ... name ...`` in a loop that gives ``name`` its next value; nobody reads it in between. ``owned``: the
    loop itself says that it goes over parameters."""

    name: str
    first: int
    last: int
    loop: str
    owned: bool


@dataclass(slots=True)
class _Run:
    """One run of the statement: hashes of what the variable had before it, and of the last result that could be its
    new value."""

    ref: weakref.ref[Any]
    before: int
    owned: bool  # a parameter; else something that lives as long as one, as it turns out
    result: int | None = None
    made: weakref.ref[Any] | None = None  # that result
    kept: bool = False  # it has the same bits behind the statement, and nothing has the result any more


@dataclass(slots=True)
class _Line:
    statement: _Statement
    line: SourceLine
    runs: list[_Run] = field(default_factory=list)  # of the iteration at hand
    iterations: int = 0
    times: int = 0  # runs that lost another value than was there
    first: dict[int, int] = field(default_factory=dict)  # by the id of a tensor that lives on: its hash at first
    looks: dict[int, int] = field(default_factory=dict)  # runs that found it so
    names: list[str] = field(default_factory=list)
    stored: bool = False  # a tensor has changed by the end of the statement: it is written in place


@detector("lost-update")
class Rebound(Detector):
    """A loop over parameters gives its own variable the new value: ``for e, p in zip(ema.parameters(),
    net.parameters()): e = decay * e + (1 - decay) * p``. The name stands for a new tensor from there on, which the next
    round of the loop throws away; the parameter keeps what it had. Clamped weights, an update by hand and a mask are
    lost the same way; in Paddle ``p -= rate * p.grad`` as well, which works in place in torch alone.

    Evidence: the source, in which nothing reads the variable between that statement and the next round, nor behind the
    loop; the value that was computed is of the same shape and type as the parameter and has other bits, and is gone by
    the next round; the parameter has the same bits before and after the statement.
    Mistaken for: a new value that is stored (``new[name] = p``, ``e.copy_(p)``, ``p.data = ...``), sums and norms that
    are gathered under another name, a cast, a slice or a copy of what is read then, a function that writes in place,
    a variable that a function or a comprehension keeps (all not told).
    Cost: in sampled iterations a look at the line of each operator; where there is such a statement, two hashes of up
    to eight tensors.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._lines: dict[tuple[str, int], _Line] = {}
        self._told: set[tuple[str, int]] = set()
        self._open: _Line | None = None  # its last run may not be over

    def operator(self, call: OperatorCall) -> None:
        if call.in_backward or call.error is not None:
            return
        line = line_of(call.lines)
        statement = _statement_at(line.file, line.line) if line is not None else None
        if self._open is not None and statement is not self._open.statement:
            self._check(self._open, call)
            self._open = None
        if statement is None or line is None or len(self._lines) > _LINES:
            return
        key = (line.file, statement.first)
        if key not in self._told:
            known = self._lines.setdefault(key, _Line(statement, SourceLine(line.file, statement.first, line.function)))
            self._run(known, call)

    def _run(self, known: _Line, call: OperatorCall) -> None:
        if known.stored:
            return
        value, last = _value_of(known.line.file, known.statement), known.runs[-1] if known.runs else None
        if last is None or last.ref() is not value:
            if last is not None and self._open is known:
                self._check(known, call)
                # The loop's name has gone on: whatever has the result still was given it by the statement.
                known.stored = known.stored or (last.made is not None and last.made() is not None)
                self._open = None
            owned = self._is_owned(known.statement, value, call) if len(known.runs) < _TENSORS else None
            before = hash_of(self.facts, value) if owned is not None else None
            if owned is None or before is None or any(each.ref() is value for each in known.runs):
                return
            last = _Run(weakref.ref(value), before, owned)
            known.runs.append(last)
        self._open = known
        kind = (self.facts.shape(value), str(value.dtype))
        for each in call.results:
            if each is not value and (self.facts.shape(each), str(each.dtype)) == kind:
                last.result, last.made = hash_of(self.facts, each), weakref.ref(each)

    def _is_owned(self, statement: _Statement, value: Any, call: OperatorCall) -> bool | None:
        """None where it has nothing to do with parameters."""
        if value is None or not self.facts.backend.is_tensor(value):
            return None
        if statement.owned or "Param" in type(value).__name__ or self.facts.is_named(value):
            return True
        return False if any(self.facts.is_named(each) for each in call.operands) else None

    def _check(self, known: _Line, call: OperatorCall) -> None:
        """``call``: the next one, which has run already."""
        run = known.runs[-1]
        value = run.ref()
        if value is None or any(each is value for each in call.operands):
            return
        same = hash_of(self.facts, value) == run.before
        run.kept = same and run.made is not None and run.made() is None
        known.stored = known.stored or not same

    def iteration_end(self) -> None:
        self._open = None
        for key, known in self._lines.items():
            if key not in self._told:
                self._end(known)
            if known.iterations >= _ITERATIONS and not known.stored and key not in self._told:
                self._told.add(key)
                self._tell(known)

    def _end(self, known: _Line) -> None:
        """Note what the iteration has shown."""
        lost = 0
        for each in known.runs:
            if not each.kept or each.result in (None, each.before):
                continue
            value, looks = each.ref(), 1
            if value is not None:
                at, name = id(value), self.facts.title_of(value)
                if known.first.setdefault(at, each.before) == each.before:
                    looks = known.looks[at] = known.looks.get(at, 0) + 1
                if name and name not in known.names:
                    known.names.append(name)
            lost += each.owned or looks > 1
        known.iterations += lost > 0
        known.times += lost
        known.runs = []

    def end(self) -> None:
        for key, known in self._lines.items():
            if known.times >= _TIMES and not known.stored and key not in self._told:
                self._told.add(key)
                self._tell(known)

    def _tell(self, known: _Line) -> None:
        facts, said = self.facts, known.statement
        what = facts.some(known.names) if known.names else "what the loop goes over"
        verb = "keep what they have" if len(known.names) > 1 else "keeps what it has"
        store = f"{said.name}.copy_(...)" if facts.backend.name == "torch" else f"{said.name}.set_value(...)"
        message = (
            f"{place(known.line)} gives the loop's variable {said.name} a new tensor, which nothing reads: {what} "
            f"{verb}; write into it: {store}"
        )
        evidence = [
            f"{place(known.line)}: {facts.text_of(known.line)}",
            f"{said.name} is given its next value by `{said.loop}`, and nothing reads it in between",
            f"{known.times} times it was looked at: the parameter has the same bits before and behind that line, and "
            "the value that was computed has others, and is gone",
        ]
        looks = max(known.looks.values(), default=0)
        if looks > 1 and min(known.looks.values()) == looks:
            evidence.append(f"they have the same bits in each of the {looks} iterations that were looked at")
        facts.tell(
            Finding(
                0, "lost-update", "error", 0.93, message, None, None, facts.iteration, known.line,
                facts.cause(known.line), evidence, [f"b {place(known.line)}", "info params"],
            )
        )  # fmt: skip


def _value_of(file: str, statement: _Statement) -> Any:
    """What the variable has where the statement runs, which is what it had before."""
    for frame in running():
        if os.path.abspath(frame.f_code.co_filename) == file and (statement.first <= frame.f_lineno <= statement.last):
            return locals_of(frame).get(statement.name)
    return None


@functools.lru_cache(4096)
def _statement_at(file: str, line: int) -> _Statement | None:
    scope = scope_at(file, line)
    if scope is None:
        return None
    nodes = list(inside(scope))
    found = [each for each in nodes if isinstance(each, (ast.Assign, ast.AugAssign)) and _covers(each, line)]
    loops = [each for each in nodes if isinstance(each, (ast.For, ast.While)) and _covers(each, line)]
    if len(found) != 1 or not loops:
        return None
    node, loop = found[0], max(loops, key=lambda each: each.lineno)
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    name = getattr(targets[0], "id", "")
    if len(targets) != 1 or not isinstance(loop, ast.For) or node.lineno <= (loop.iter.end_lineno or 0):
        return None
    if not name or name not in assigned_names(loop):
        return None
    if isinstance(node, ast.Assign) and not any(each.id == name for each in _reads(node.value)):
        return None
    if _is_read(scope, loop, node, name):
        return None
    given = [assigned_before(file, loop.lineno, each.id) for each in _reads(loop.iter)]
    sources = [loop.iter, *(made[1] for made in given if made is not None and isinstance(made[1], ast.Assign))]
    owned = any(getattr(each, "attr", "") in _OWNERS for source in sources for each in ast.walk(source))
    head = f"for {ast.unparse(loop.target).strip('()')} in {ast.unparse(loop.iter)}"
    return _Statement(name, node.lineno, node.end_lineno or node.lineno, head, owned)


def _covers(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _reads(node: ast.AST) -> Iterator[ast.Name]:
    """Names that are read, those of ``name += value`` among them."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Store):
            yield each
        elif isinstance(each, ast.AugAssign) and isinstance(each.target, ast.Name):
            yield each.target


def _is_read(scope: ast.AST, loop: ast.For, statement: ast.stmt, name: str) -> bool:
    """Whether something may read what the statement gives the variable. What stands in the loop above it reads what the
    loop gives it; what another loop, a comprehension or a function binds anew is another one."""
    passed: set[int] = {id(each) for each in ast.walk(statement)}
    for node in ast.walk(scope):
        if isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names:
            return True
        if isinstance(node, ast.Call) and not node.args and getattr(node.func, "id", "") in _READERS:
            return True
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and node is not scope:
            if _binds(node, name):
                passed |= {id(each) for each in ast.walk(node)}
            elif any(each.id == name for each in _reads(node)):
                return True
        elif isinstance(node, _Comprehension) and any(_targets(each.target, name) for each in node.generators):
            passed |= {id(each) for each in ast.walk(node)}
        elif isinstance(node, ast.For) and name in assigned_names(node) and loop not in ast.walk(node):
            passed |= {id(each) for part in node.body for each in ast.walk(part)}
    above = {
        id(each) for part in loop.body for each in ast.walk(part)
        if getattr(each, "lineno", statement.lineno) < statement.lineno
    }  # fmt: skip
    kept = {id(each) for node in ast.walk(loop) if isinstance(node, _Comprehension) for each in ast.walk(node)}
    return any(
        each.id == name and id(each) not in passed and (id(each) not in above or id(each) in kept)
        for each in _reads(scope)
    )


def _binds(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, name: str) -> bool:
    arguments = function.args
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    if any(each is not None and each.arg == name for each in given):
        return True
    return not isinstance(function, ast.Lambda) and any(name in assigned_names(each) for each in ast.walk(function))


def _targets(target: ast.expr, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(target))

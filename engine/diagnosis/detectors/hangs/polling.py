"""Loops that only look whether something has changed: who goes round in one does nothing else. Read in the source, and
in the variables of the function; no code of the program runs."""

from __future__ import annotations

import ast
import bisect
import functools
import os
import signal
from collections.abc import Iterator, Mapping
from typing import Any

from adbg.engine.diagnosis.source import called_name, scope_at, tree_of
from adbg.engine.diagnosis.values import attribute
from adbg.engine.outside import suppress
from adbg.engine.own_files import own_folders
from adbg.engine.proc import Proc
from adbg.engine.types import SourceLine

# What asks a thread, a lock, a queue or a process of this program, where it is asked of one of these modules' things.
# Not what asks a clock, a file or a network, nor the program's own classes: these may change by themselves.
_ASKS = frozenset({
    "is_set", "is_alive", "empty", "full", "qsize", "locked", "done", "running", "ready", "wait", "acquire",
})  # fmt: skip
_OF = ("threading", "_thread", "queue", "_queue", "multiprocessing", "concurrent.futures", "torch.multiprocessing")
_COUNTS = frozenset({"len", "any", "all", "bool"})
_PLAIN = (bool, int, float, str, bytes, type(None))
_KEPT = (list, tuple, dict, set, frozenset)
_SAYS = frozenset({"sleep", "print", "debug", "info", "warning", "write", "flush"})
#: What a thread may do now and then without waking anybody.
_NOTES = _SAYS | {"append", "time", "monotonic", "perf_counter", "add_scalar", "log", "format", "round", "len", "float"}
_LITTLE = 2  # statements of a loop that only takes: what it takes, and where to
_GIVES = frozenset({"set_result", "set_exception"})
_PARTS = (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Constant)
_SIGNALS = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGHUP", "SIGINT")
_NOTHING = object()


# ---- loops


@functools.lru_cache(32)
def _loops(file: str) -> list[tuple[int, int, ast.AST]]:
    """(first line, last line, node) of every loop and function of a file, by first line."""
    tree = tree_of(file)
    kinds = (ast.While, ast.For, ast.FunctionDef, ast.Lambda)
    found = [each for each in ast.walk(tree) if isinstance(each, kinds)] if tree is not None else []
    return sorted(((each.lineno, each.end_lineno or 0, each) for each in found), key=lambda row: row[:2])


def _innermost(file: str, line: int) -> ast.AST | None:
    """The loop or the function that a line is in."""
    rows = _loops(file)
    around = reversed(rows[: bisect.bisect_right(rows, line, key=lambda row: row[0])])
    return next((node for first, last, node in around if first <= line <= last), None)


def _loop_at(file: str, line: int) -> ast.While | None:
    """The innermost loop around a line, where that is a ``while``."""
    node = _innermost(file, line)
    return node if isinstance(node, ast.While) and not node.orelse else None


def counted_at(file: str, line: int) -> int:
    """The first line of the innermost loop around that line, where it goes round a number of times that is fixed as it
    begins (``for _ in range(len(self))``), nothing in it ends it, and it does little else than take; 0 elsewhere."""
    loop = _innermost(file, line)
    if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Call) or called_name(loop.iter) != "range":
        return 0
    ends = any(isinstance(each, (ast.Break, ast.Return)) for each in ast.walk(loop))
    return 0 if ends or len(loop.body) > _LITTLE else loop.lineno


def polls_at(file: str, line: int, values: Mapping[str, Any]) -> int:
    """The first line of the innermost loop around that line, where all that it does is to look again; 0 elsewhere.
    ``values``: the variables of the function."""
    loop = _loop_at(file, line)
    if loop is None or isinstance(loop.test, ast.Constant) or not _asks(loop.test, values):
        return 0
    asked = {each.id for each in ast.walk(loop.test) if isinstance(each, ast.Name)}
    counts = (each.target for each in ast.walk(loop) if isinstance(each, ast.AugAssign))
    ends = any(isinstance(each, ast.Name) and each.id in asked for each in counts)  # by itself, after so many turns
    return 0 if ends or not all(_changes_nothing(each, values) for each in loop.body) else loop.lineno


def asks_again(file: str, line: int, values: Mapping[str, Any]) -> bool:
    """Whether a wait that ran out is begun anew: it stands in a ``try``, whose handlers do nothing, in a loop without
    end, or until a flag is set."""
    loop = _loop_at(file, line)
    if loop is None or not (isinstance(loop.test, ast.Constant) or _asks(loop.test, values)):
        return False
    for each in loop.body:
        if isinstance(each, ast.Try) and each.lineno <= line <= (each.body[-1].end_lineno or 0):
            return all(_changes_nothing(part, values) for handler in each.handlers for part in handler.body)
    return False


def wakes_nobody(file: str, line: int) -> bool:
    """Whether the loop around that line goes on for ever, and does nothing for which another thread could wait."""
    loop = _loop_at(file, line)
    if loop is None:
        return False
    for each in (part for statement in loop.body for part in ast.walk(statement)):
        if isinstance(each, (ast.Return, ast.Break, ast.Raise, ast.Await, ast.Yield, ast.Global, ast.Nonlocal)):
            return False
        if isinstance(each, ast.Call) and called_name(each) not in _NOTES:
            return False
        if isinstance(each, (ast.Attribute, ast.Subscript)) and isinstance(each.ctx, (ast.Store, ast.Del)):
            return False
    return True


def gives_results(line: SourceLine) -> bool:
    """Whether the function around that line gives futures their results."""
    function = scope_at(line.file, line.line)
    calls = (each for each in ast.walk(function) if isinstance(each, ast.Call)) if function is not None else ()
    return any(called_name(each) in _GIVES for each in calls)


# ---- expressions


def _asks(test: ast.expr, values: Mapping[str, Any]) -> bool:
    """Whether it asks nothing but flags and things of ``_OF``."""
    if isinstance(test, ast.Call):
        called = called_name(test)
        if isinstance(test.func, ast.Attribute):
            owner = value_in(test.func.value, values)
            return called in _ASKS and type(owner).__module__.startswith(_OF)
        return called in _COUNTS and all(_asks_of(each, values) for each in test.args)
    if isinstance(test, (ast.Name, ast.Attribute)):
        found = value_in(test, values)
        return type(found) in _PLAIN or type(found) in _KEPT
    return isinstance(test, _PARTS) and all(_asks(each, values) for each in _operands(test))


def _asks_of(value: ast.expr, values: Mapping[str, Any]) -> bool:
    """The same of what is counted: a list of things, or one question of each."""
    if not isinstance(value, (ast.GeneratorExp, ast.ListComp)):
        return type(value_in(value, values)) in _KEPT
    among = value_in(value.generators[0].iter, values)
    target = value.generators[0].target
    if len(value.generators) > 1 or type(among) not in (list, tuple) or not isinstance(target, ast.Name):
        return False
    return bool(among) and all(_asks(value.elt, {**values, target.id: each}) for each in among[:16])


def _operands(test: ast.expr) -> Iterator[ast.expr]:
    return (each for each in ast.iter_child_nodes(test) if isinstance(each, ast.expr))


def value_in(expression: ast.expr, values: Mapping[str, Any]) -> Any:
    """Of a variable, or of an attribute that an instance has itself, so of no property; an object of no use else."""
    if isinstance(expression, ast.Name):
        return values.get(expression.id, _NOTHING)
    if isinstance(expression, ast.Attribute):
        return attribute(value_in(expression.value, values), expression.attr)
    return _NOTHING


def _changes_nothing(statement: ast.stmt, values: Mapping[str, Any]) -> bool:
    """It waits, counts or prints."""
    if isinstance(statement, ast.If):
        calls = [each for each in ast.walk(statement.test) if isinstance(each, ast.Call)]
        inner = [*statement.body, *statement.orelse]
        harmless = all(called_name(each) in _NOTES for each in calls)
        return harmless and all(_changes_nothing(each, values) for each in inner)
    if isinstance(statement, ast.Expr):
        value = statement.value
        return isinstance(value, ast.Constant) or called_name(value) in _SAYS or _asks(value, values)
    if isinstance(statement, ast.AugAssign):
        return isinstance(statement.target, ast.Name) and isinstance(statement.value, (ast.Constant, ast.Name))
    return isinstance(statement, (ast.Pass, ast.Continue))


# ---- the system


def handles_signals() -> bool:
    """Whether the program has a function of its own for a signal: that may set what is waited for."""
    for name in _SIGNALS:
        known = signal.getsignal(getattr(signal, name, signal.SIGINT))
        code = getattr(getattr(known, "__func__", known), "__code__", None)
        if code is not None and not code.co_filename.startswith(own_folders()):
            return True
    return False


def spent(thread: int) -> float:
    """CPU seconds of a thread of this process so far, by its number of the system's; 0.0 where that does not tell."""
    with suppress(OSError, ValueError, IndexError):
        return Proc(os.getpid()).spent(thread)
    return 0.0


def woken(thread: int) -> int:
    """How often it has waited so far, by the system's count; 0 where that does not tell."""
    with suppress(OSError, ValueError):
        return int(Proc(os.getpid()).status(thread).get("voluntary_ctxt_switches", 0))
    return 0

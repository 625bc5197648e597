"""Who switched gradients off and never on again: ``set_grad_enabled(False)``, a ``no_grad`` that is entered by
hand. No operator of the framework has a part in it: it is the source that says so."""

from __future__ import annotations

import ast
import linecache
import re
import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from adbg.engine.backends.base import Backend
from adbg.engine.diagnosis.detectors.earlier.together import calls_now
from adbg.engine.diagnosis.detectors.graphs.calls import place
from adbg.engine.diagnosis.detectors.graphs.switches import switch
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.ledger import Ledger
from adbg.engine.diagnosis.source import called_name, inside, scope_at, tree_of
from adbg.engine.own_files import is_programs
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

_SWITCHES = re.compile(r"set_grad_enabled|no_grad|inference_mode|set_grad_mode")
_SETS = frozenset({"set_grad_enabled", "_set_grad_enabled", "set_grad_mode"})
_CONTEXTS = frozenset({"no_grad", "inference_mode", *_SETS})
_MOST = 200  # files that are searched


@dataclass(frozen=True, slots=True)
class Off:
    """``line``: that of the switch, None where nothing in the source says it; ``sure``: no other line could be it."""

    line: SourceLine | None
    sure: bool
    since: SourceLine | None  # the first forward that was seen to record nothing, since one that did


@dataclass(frozen=True, slots=True)
class _Candidate:
    line: SourceLine
    scope: ast.AST | None
    certain: bool  # it switches off, whatever the program's values are
    undone: bool  # its function switches them on again further down


def is_off(backend: Backend, running: Running) -> bool:
    """Whether a backward has no graph to go through, for autograd records nothing at this moment."""
    if backend.records():
        return False
    roots = running.call.root_values()
    if not roots:  # Paddle leaves those out that carry no gradient
        return not running.call.roots()
    return not any(backend.has_graph(each) or backend.meta(each).requires_grad for each in roots)


def tell_off(facts: Facts, running: Running) -> None:
    """On the thread of the backward, while it begins."""
    off, location = _who(Ledger.of(facts)), running.call.location
    at = f"at {place(off.line)}" if off.line is not None else "by something that no line of the program shows"
    evidence = [f"grad mode is off as the backward at {place(location)} begins, and its root has no graph"]
    if off.since is not None:
        evidence.append(f"{place(off.since)} is the first forward since that was seen to record nothing")
    if off.line is not None:
        evidence.append(f"it is switched off by: {facts.text_of(off.line)}")
    if not off.sure:
        evidence.append("other lines switch it off, too" if off.line is not None else "nothing names it")
    message = (
        f"gradients are switched off {at} and were not switched on again: nothing that the backward at "
        f"{place(location)} is to go through was recorded"
    )
    facts.tell(
        Finding(
            0, "no-gradient", "error", 0.95 if off.sure else 0.75, message, backward=running.call.number,
            forward=location, cause=facts.cause(off.line), evidence=evidence,
            next=[f"b {place(off.line or location)}", "info params"],
        )
    )  # fmt: skip


def _who(ledger: Ledger) -> Off:
    since = _since(ledger)
    for code, number in calls_now():
        found = switch(SourceLine(code.co_filename, number, code.co_name))
        if found is not None:
            return Off(found, True, since)
    candidates = [each for file in _files() for each in _candidates(file)]
    best = [each for each in candidates if each.certain and not each.undone] or candidates
    if since is not None and len(best) > 1:
        scope = scope_at(since.file, since.line)
        best = [each for each in best if each.scope is scope and each.line.line <= since.line] or best
    return Off(best[0].line if best else None, len(best) == 1, since)


def _since(ledger: Ledger) -> SourceLine | None:
    found = None
    for moment in reversed(ledger.moments):
        if moment.what == "forward":
            break
        if moment.what == "look" and moment.line is not None:
            found = moment.line
    return found


def _files() -> Iterator[str]:
    """The program's own, its script first."""
    modules = [module for module in list(sys.modules.values()) if type(module) is types.ModuleType]
    files = [module.__dict__.get("__file__") for module in modules]
    script = sys.modules["__main__"].__dict__.get("__file__")
    own = [each for each in (script, *files) if isinstance(each, str) and each.endswith(".py")]
    own = [each for each in dict.fromkeys(own) if is_programs(each)][:_MOST]
    yield from (each for each in own if any(map(_SWITCHES.search, linecache.getlines(each))))


def _candidates(file: str) -> Iterator[_Candidate]:
    tree = tree_of(file)
    if tree is None:
        return
    scoped = {id(each) for node in ast.walk(tree) for each in _left_by_itself(node)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or id(node) in scoped:
            continue
        name = called_name(node)
        if name not in _SETS and not (name in ("__enter__", "enter_context") and _enters(node)):
            continue
        value = node.args[0] if name in _SETS and node.args else None
        constant = value.value if isinstance(value, ast.Constant) else None
        if constant is True:
            continue
        scope = scope_at(file, node.lineno)
        line = SourceLine(file, node.lineno, getattr(scope, "name", "<module>"))
        certain = name not in _SETS or constant is False
        yield _Candidate(line, scope, certain, _is_undone(scope, node.lineno))


def _left_by_itself(node: ast.AST) -> Sequence[ast.expr]:
    """The contexts of a ``with`` and the decorators of a function, which put back what was."""
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return [item.context_expr for item in node.items]
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return node.decorator_list
    return []


def _enters(call: ast.Call) -> bool:
    """``no_grad().__enter__()``, ``stack.enter_context(no_grad())``."""
    entered = [*call.args, call.func.value] if isinstance(call.func, ast.Attribute) else call.args
    return any(isinstance(each, ast.Call) and called_name(each) in _CONTEXTS for each in entered)


def _is_undone(scope: ast.AST | None, line: int) -> bool:
    return scope is not None and any(
        isinstance(node, ast.Call) and node.lineno > line
        and (called_name(node) == "__exit__" or (called_name(node) in _SETS and not _is_false(node)))
        for node in inside(scope)
    )  # fmt: skip


def _is_false(call: ast.Call) -> bool:
    return bool(call.args) and isinstance(call.args[0], ast.Constant) and call.args[0].value is False


def tell_unwatched(facts: Facts, running: Running, error: BaseException) -> None:
    """A backward without a graph, at a stop that nobody watched the forward of."""
    script = "adbg diagnose --only no-gradient SCRIPT"
    call = running.call
    facts.tell(
        Finding(
            0, "no-gradient", "note", 0.45,
            f"backward at {place(call.location)} has no graph to go through; the forward was not watched",
            backward=call.number, forward=None, cause=None,
            evidence=[
                f"backward raised: {call.error_text(error).splitlines()[0][:160]}",
                f"`{script}` watches the forward from the start, and names the line that cuts the graph off",
            ],
            next=[script, "b error"],
        )
    )  # fmt: skip

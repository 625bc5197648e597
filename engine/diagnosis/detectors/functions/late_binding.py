"""Hooks that a loop registers and that share its variable: all of them see what it was in the last turn."""

from __future__ import annotations

import ast
import os
import types
import weakref
from typing import Any

from adbg.engine.backends.base import HookCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.source import assigned_names, inside, scope_at
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_LINES = 100  # that register hooks and are remembered
_HOOKS = 64  # of one line
_Loop = ast.For | ast.AsyncFor | ast.While | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class _Bound:
    """One hook as it was registered: what its variable was then."""

    def __init__(self, hook: types.FunctionType, target: int, values: dict[str, Any]) -> None:
        self.hook = weakref.ref(hook)
        self.target = target
        self.values = {name: _held(value) for name, value in values.items()}

    def changed(self, name: str) -> bool:
        """Whether the variable has another value now. False where the hook is gone."""
        hook = self.hook()
        now = _variables(hook).get(name, _GONE) if hook is not None else _GONE
        was = self.values[name]()
        return now is not _GONE and now is not was and not _equal(was, now)


@detector("late-binding")
class LateBinding(Detector):
    """A loop registers a hook for each layer or parameter, and the hook (a lambda, a function within the loop) uses a
    variable that the loop sets anew in each turn: Python looks it up when the hook runs, so that all of them compute
    with the value of the last turn (another layer's mask, another layer's name).

    Evidence: the hooks of that line share one variable, which was another object when all but the last were registered.
    Mistaken for: a variable of a loop that trains, or one that code after the loop sets (a step counter), which a hook
    is to see as it is then: only hooks that are registered between two backwards are compared. A default argument
    (``lambda g, mask=mask:``), ``functools.partial`` and a function that makes the hook bind it at once (not told).
    Cost: the variables of each hook that is registered, once.
    """

    needs = Need.HOOKS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._names: dict[tuple[SourceLine, types.CodeType], list[str]] = {}
        self._bound: dict[tuple[SourceLine, types.CodeType], list[_Bound]] = {}
        self._seen = False
        self._new: set[tuple[SourceLine, types.CodeType]] = set()  # with hooks that nobody looked at yet
        self._ran: set[SourceLine] = set()  # where hooks were registered that gave a gradient back
        self._told: dict[
            SourceLine, tuple[int, types.CodeType, str, int, int]
        ] = {}  # number of the finding, what it says

    def applied(self) -> bool:
        return self._seen

    def hook(self, call: HookCall) -> None:
        line, hook = call.registered, call.hook
        if line is None:
            return
        if call.what != "registered":
            if call.after is not None and call.after is not call.before:
                self._changes(line)
            return
        if not isinstance(hook, types.FunctionType):
            return
        key = (line, hook.__code__)
        names = self._names.get(key)
        if names is None:
            if len(self._names) >= _LINES:
                return
            names = self._names[key] = sorted(_looked_up(hook, line) & _set_by_loop(line))
        self._seen = True
        bound = self._bound.setdefault(key, []) if names else []
        if bound and bound[-1].hook() is hook:
            return  # told twice, as below a mode of torch's functions
        if names and len(bound) < _HOOKS:
            now = _variables(hook)
            bound.append(_Bound(hook, call.target, {name: now.get(name, _GONE) for name in names}))
            self._new.add(key)

    def _changes(self, line: SourceLine) -> None:
        if line in self._ran or len(self._ran) >= _LINES:
            return
        self._ran.add(line)
        if line in self._told:
            self._tell(line, *self._told[line][1:])

    def iteration_end(self) -> None:
        new, self._new = self._new, set()
        for line, code in new:
            # Those of later iterations are another loop's turns: a loop that trains may well use its own step.
            bound = self._bound.pop((line, code))
            if line in self._told or len({each.target for each in bound}) < 2:
                continue
            for name in self._names[line, code]:
                # The last one sees what it was registered with: else something after the loop set it.
                others = sum(each.changed(name) for each in bound)
                if others and not bound[-1].changed(name):
                    self._tell(line, code, name, len(bound), others)
                    break

    def end(self) -> None:
        self.iteration_end()

    def _tell(self, line: SourceLine, code: types.CodeType, name: str, count: int, others: int) -> None:
        facts = self.facts
        before = self._told[line][0] if line in self._told else 0
        changes = line in self._ran
        what = "a lambda" if code.co_name == "<lambda>" else f"{code.co_name}()"
        used = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"
        number = facts.tell(
            Finding(
                before, "late-binding", "error" if changes else "warning", 0.93 if changes else 0.88,
                f"the {count} hooks ({what}) that a loop registers share its variable {name!r}: each computes with the "
                f"value of the last turn; bind it as a default argument, {name}={name}",
                cause=facts.cause(line),
                evidence=[
                    f"{name!r} was another object when {others} of these {count} hooks were registered",
                    f"it is looked up when a hook runs, in the code at {used}",
                    *(["the hooks change gradients"] if changes else []),
                ],
                next=["info graph"],
            )
        )  # fmt: skip
        self._told[line] = (number, code, name, count, others)


_GONE: Any = object()


def _held(value: Any) -> Any:
    """Something to call for the value: nothing of the program's is kept alive but numbers and texts."""
    if isinstance(value, (int, float, str, bytes, bool, type(None))):
        return lambda: value
    try:
        return weakref.ref(value)
    except TypeError:  # a list or a tuple: it may be gone, and its place another one's
        return lambda: _GONE


def _equal(was: Any, now: Any) -> bool:
    return type(was) is type(now) and isinstance(was, (int, float, str, bytes, bool)) and was == now


def _looked_up(hook: types.FunctionType, line: SourceLine) -> set[str]:
    """The variables of the scope of that line that the hook's code may look up when it runs."""
    if isinstance(scope_at(line.file, line.line), ast.Module):
        return {*hook.__code__.co_names, *hook.__code__.co_freevars}  # a comprehension has a scope of its own
    return set(hook.__code__.co_freevars)


def _variables(hook: types.FunctionType) -> dict[str, Any]:
    """What they are now."""
    found = {name: hook.__globals__[name] for name in hook.__code__.co_names if name in hook.__globals__}
    for name, cell in zip(hook.__code__.co_freevars, hook.__closure__ or ()):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not set yet, or deleted
            found.pop(name, None)
    return found


def _set_by_loop(line: SourceLine) -> set[str]:
    """The variables that the loops around that line set: their own, and those of their bodies."""
    scope = scope_at(line.file, line.line)
    loops = [
        node for node in inside(scope) if isinstance(node, _Loop) and node.lineno <= line.line <= (node.end_lineno or 0)
    ] if scope is not None else []  # fmt: skip
    found: set[str] = set()
    for loop in loops:
        if isinstance(loop, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            targets = [each.target for each in loop.generators]
            found |= {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
        else:
            found |= {name for node in (loop, *inside(loop)) for name in assigned_names(node)}
    return found

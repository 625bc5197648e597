"""Hooks of the program's own that change gradients, or that pile up."""

from __future__ import annotations

import ast
import itertools
import math
import os
import weakref
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.backends.base import Backend, HookCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.diagnosis.source import called_name, function_named, inside, parameters_of, returns_of
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

_SLOW = 0.05  # a twentieth of the rate of the others is slow, and less is hardly trained
_SAME = 1e-5  # norms that differ by less, relative: of another layout, or of the same elements
_SUMS = ("Add", "Sub")
_NODES = 20_000  # of a graph that is looked through, once for each hook that may share a gradient
_GIVEN = 500  # hooks of which is remembered what they gave back
# What is computed for a statistic, and never to change a gradient by; clipping, scaling and masks are.
_STATISTICS = frozenset({
    "abs_", "absolute_", "square_", "pow_", "log_", "log2_", "log10_", "log1p_", "exp_", "sqrt_", "rsqrt_", "floor_",
    "ceil_", "isnan_", "logical_not_", "eq_", "ne_", "gt_", "lt_", "ge_", "le_",
})  # fmt: skip


@dataclass(slots=True)
class _Hook:
    """What the hooks of one line made of gradients: norms before and after, a look each."""

    name: str
    line: SourceLine | None
    code: str
    norms: list[tuple[float, float]] = field(default_factory=list)
    told: int = 0
    kind: str = ""
    element: str = ""  # where norms are equal: what differs
    again: bool = False  # it gives back what it gave back for another gradient


@dataclass(slots=True)
class _Given:
    """A tensor that a hook gave back. ``norms``: of another gradient that it gave it back for, and of itself then."""

    tensor: weakref.ref[Any]
    target: int
    iteration: int
    norms: tuple[float, float] | None = None


@detector("gradient-hook", "hooks-pile-up")
class GradientHook(Detector):
    """A hook that the program registered changes gradients: makes them zero, NaN, or scales them by a large factor;
    one that is to look at them only, and returns nothing, computes a statistic in their own memory (``abs_()``); one
    writes into a gradient that another branch is handed as well (of torch, where its uses are counted); one
    gives back the gradient of an earlier iteration (what ``setdefault`` returns, a cache); or the same hook, also one
    of a forward, is registered on the same object again in each iteration or epoch, so that it runs ever more often.

    Evidence: norms of the gradient before and after the hook; how many copies of the hook are registered, more each
    time at three times or more.
    Mistaken for: clipping, masks and small factors are meant that way: a note at most, also where a hook writes them in
    place and returns nothing. Parameters that are frozen by a hook which makes their gradient zero: a warning that says
    so. Hooks that are removed, or that each new model has of its own, do not become more (not told).
    Cost: two norms in the first three runs of each hook, then at every power of two.
    """

    needs = Need.HOOKS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._hooks: dict[tuple[SourceLine | None, str], _Hook] = {}
        # Of an object and a line: (iteration, hooks that were there then) of the last registrations.
        self._registered: dict[tuple[int, SourceLine | None], list[tuple[int, int]]] = {}
        self._targets: dict[SourceLine | None, set[int]] = {}  # ids of leaves and modules, by the line
        self._given: dict[int, _Given] = {}  # by id of the hook
        self._seen = False
        self._running: Running | None = None

    def applied(self) -> bool:
        return self._seen

    def hook(self, call: HookCall) -> None:
        self._seen = True
        if call.what == "registered":
            if call.target:
                self._targets.setdefault(call.registered, set()).add(call.target)
            self._pile_up(call)
            return
        if call.before is None or call.after is None:
            return
        if call.after is call.before and not call.changed_in_place:
            self._remember(call)
            return
        norm = self.facts.backend.norm
        before = call.norm_before if call.norm_before is not None else norm(call.before)
        after = norm(call.after)
        element = ""
        if call.after is not call.before and abs(before - after) <= _SAME * before:
            element = _first_changed(self.facts.backend, call.before, call.after)
            if not element:
                return  # a copy
        key = (call.registered, call.what)
        known = self._hooks.get(key)
        if known is None:
            code = getattr(call.hook, "__code__", None)
            place = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}" if code is not None else ""
            name = getattr(call.hook, "__name__", type(call.hook).__name__)
            known = self._hooks[key] = _Hook(
                "(a lambda)" if name == "<lambda>" else f"{name}()", call.registered, place
            )
        known.norms = [*known.norms[-7:], (before, after)]
        known.again = known.again or self._is_again(call, before, after)
        known.element = element or ("it changes them in place, and their norm stays" * (before == after))
        self._judge(known, call)

    def _judge(self, hook: _Hook, call: HookCall) -> None:
        before, after = hook.norms[-1]
        looks = call.after is call.before and _statistic(call.hook)
        changed = [(one, two) for one, two in hook.norms if one > 0 and math.isfinite(one)]
        if hook.again:
            self._tell_again(hook, call)
        elif math.isfinite(before) and not math.isfinite(after):
            self._tell(hook, call, "nan", "error", 0.92, "makes finite gradients NaN or infinite")
        elif looks:
            self._tell_looks(hook, call, looks)
        elif call.shared and call.changed_in_place and before != after and self._is_shared(hook, call):
            line, method = _writes(call.hook) or (None, "")
            what = (
                "writes into the gradient in place, which another branch is handed, too: a sum gives the same tensor "
                "to all that it adds, and theirs is changed with it; return a new one"
                f"{f', not {method}()' * bool(method)}"
            )
            self._tell(hook, call, "shared", "warning", 0.88, what, line)
        elif len(changed) >= 2 and all(two == 0 for _, two in changed):
            what = "makes every gradient that it is given zero"
            if self._names(hook):  # nothing below a parameter loses its gradient
                self._tell(hook, call, "zero", "warning", 0.6, f"{what}, which is right if they are to stay frozen")
            else:
                self._tell(hook, call, "zero", "warning", 0.85, what)
        elif len(changed) >= 3:
            ratios = [two / one for one, two in changed]
            steady = max(ratios) - min(ratios) <= 1e-3 * max(ratios)
            if steady and max(ratios) > 0 and not 0.3 <= ratios[-1] <= 3.3:
                what = f"multiplies gradients by {ratios[-1]:.3g}"
                if _SLOW <= ratios[-1] <= 1 / _SLOW:
                    why = "a rate of their own for some parameters" if self._names(hook) else "the weight of a branch"
                    self._tell(hook, call, "scale", "note", 0.4, f"{what}, as {why} does")
                else:
                    self._tell(hook, call, "scale", "warning", 0.6, what)
            elif hook.kind not in ("zero", "scale", "nan", "again", "shared"):
                self._tell(hook, call, "changes", "note", 0.3, "changes gradients, as clipping and masks do")

    def backward_begin(self, running: Running) -> None:
        self._running = running

    def backward_end(self, running: Running, error: BaseException | None) -> None:
        self._running = None

    def _is_shared(self, hook: _Hook, call: HookCall) -> bool:
        return hook.kind != "shared" and self._is_of_sum(call.node)

    def _is_of_sum(self, node: int) -> bool:
        """Whether a sum hands its own gradient to that node, and to another one: the caller of a backward, too, has the
        gradient that it begins with."""
        graph = self._running.call if self._running is not None and node else None
        if graph is None or graph.count() > _NODES:
            return False
        keys = list(graph.order())
        wanted = next((key for key in keys if graph.address(key) == node), None)
        for key in keys if wanted is not None else ():
            if graph.name(key).startswith(_SUMS):
                to = [edge.to for edge in graph.edges(key) if edge.to is not None]
                if wanted in to and len(to) > 1:
                    return True
        return False

    def _remember(self, call: HookCall) -> None:
        """What a hook gave back, or may have kept of what it was given."""
        if len(self._given) < _GIVEN or id(call.hook) in self._given:
            self._given[id(call.hook)] = _Given(weakref.ref(call.after), call.target, self.facts.iteration)

    def _is_again(self, call: HookCall, before: float, after: float) -> bool:
        """Whether it gives back the very tensor, of the same norm, that it gave back for another gradient in earlier
        iterations. A buffer that it updates has another norm each time; one of zeros is what clearing left of it."""
        given = self._given.get(id(call.hook))
        if given is None or given.tensor() is not call.after or given.target != call.target:
            self._remember(call)
            return False
        if given.iteration >= self.facts.iteration:
            return False
        known, given.norms = given.norms, (before, after)
        given.iteration = self.facts.iteration
        return known is not None and known[1] == after and abs(known[0] - before) > _SAME * before

    def _tell_again(self, hook: _Hook, call: HookCall) -> None:
        line = hook.line
        code = getattr(call.hook, "__code__", None)
        if code is not None:
            function = function_named(code.co_filename, code.co_firstlineno)
            made = returns_of(function) if function is not None else []
            at = made[0].lineno if len(made) == 1 else code.co_firstlineno
            line = SourceLine(os.path.abspath(code.co_filename), at, code.co_name)
        what = (
            "gives back one gradient of an earlier iteration again and again, in the place of what it is given: "
            "return None where it is to look only"
        )
        self._tell(hook, call, "again", "error", 0.92, what, line)

    def _tell_looks(self, hook: _Hook, call: HookCall, found: tuple[SourceLine, str]) -> None:
        line, method = found
        what = (
            f"looks at gradients, and returns nothing; but {method}() at {os.path.basename(line.file)}:{line.line} "
            f"writes into the gradient itself: use {method.rstrip('_')}(), or a clone() of it"
        )
        self._tell(hook, call, "looks", "warning", 0.88, what, line)

    def _tell(
        self, hook: _Hook, call: HookCall, kind: str, severity: str, confidence: float, what: str,
        cause: SourceLine | None = None,
    ) -> None:  # fmt: skip
        if hook.kind == kind or (hook.kind and kind == "changes"):
            return
        hook.kind = kind
        facts = self.facts
        where = f" (its code is at {hook.code})" if hook.code else ""
        hook.told = facts.tell(
            Finding(
                hook.told, "gradient-hook", severity, confidence,
                f"the hook {hook.name} on {self._on(hook, call)} {what}",
                cause=facts.cause(cause or hook.line),
                evidence=[
                    *[f"norm {one:.6g} before the hook, {two:.6g} after it" for one, two in hook.norms[-4:]],
                    *([hook.element] if hook.element else []),
                    f"registered at {hook.line.file}:{hook.line.line}{where}" if hook.line else "registered",
                ],
                next=["info graph"],
            )
        )  # fmt: skip

    def _on(self, hook: _Hook, call: HookCall) -> str:
        if call.what.startswith("module"):
            ids = self._targets.get(hook.line, set())
            return f"{len(ids)} modules" if len(ids) > 1 else "a module"
        names = self._names(hook)
        return self.facts.some(names) if names else "a tensor"

    def _names(self, hook: _Hook) -> list[str]:
        """Where it is on parameters alone."""
        ids = self._targets.get(hook.line, set())
        held = {id(value): value for _, value in self.facts.backend.parameters() if id(value) in ids}
        return [self.facts.title_of(value) for value in held.values()] if len(held) == len(ids) else []

    def _pile_up(self, call: HookCall) -> None:
        if not call.target:
            return
        when = self._registered.setdefault((call.target, call.registered), [])
        if when and when[-1] == (self.facts.iteration, call.alive):
            return  # told twice, as below a mode of torch's functions; or removed within the iteration
        if when and when[-1][1] >= call.alive:
            when.clear()  # removed in between; or another object lies where the one before lay
        if when and when[-1][0] == self.facts.iteration:
            when.pop()
        when.append((self.facts.iteration, call.alive))
        del when[:-6]
        if call.alive < 3 or len(when) < 3:
            return
        facts = self.facts
        for known in facts.findings.values():
            if known.kind == "hooks-pile-up" and known.cause == facts.cause(call.registered):
                return
        name = getattr(call.hook, "__name__", type(call.hook).__name__)
        iterations = [iteration for iteration, _ in when]
        gaps = {after - before for before, after in itertools.pairwise(iterations)}
        often = "in each iteration" if gaps == {1} else "again and again"
        if len(gaps) == 1 and gaps != {1}:
            often = f"every {gaps.pop()} iterations"
        facts.tell(
            Finding(
                0, "hooks-pile-up", "warning", 0.88,
                f"the hook {'a lambda' if name == '<lambda>' else name + '()'} is registered {often} and never "
                f"removed: {call.alive} copies of it run now; register it once, or keep the handle and remove() it",
                cause=facts.cause(call.registered),
                evidence=[
                    f"registered on the same {call.on or 'object'} in iterations {', '.join(map(str, iterations))}",
                    f"{call.alive} hooks of the same code are on it: each call of it runs them all",
                ],
                next=["info graph"],
            )
        )  # fmt: skip


def _statistic(hook: Any) -> tuple[SourceLine, str] | None:
    """The line, and the method, by which the source of a hook that returns nothing computes a number in the memory of
    what it is given, also through a view: ``m = grad.flatten().abs_().mean()``. None where it writes there otherwise.
    """
    code = getattr(hook, "__code__", None)
    function = function_named(code.co_filename, code.co_firstlineno) if code is not None else None
    if code is None or function is None or returns_of(function):
        return None
    known, nodes = _gradients_in(function)
    alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # nothing takes their result
    written = [node for node in nodes if _root(_written(node)) in known]
    found = [node for node in written if id(node) not in alone and _method(node) in _STATISTICS]
    if not found or len(found) < len(written):
        return None
    line = int(getattr(found[0], "lineno", 0))
    return SourceLine(os.path.abspath(code.co_filename), line, function.name), _method(found[0])


def _writes(hook: Any) -> tuple[SourceLine, str] | None:
    """The first line, and the method, by which the source of a hook writes into what it is given."""
    code = getattr(hook, "__code__", None)
    function = function_named(code.co_filename, code.co_firstlineno) if code is not None else None
    if code is None or function is None:
        return None
    known, nodes = _gradients_in(function)
    written = next((node for node in nodes if _root(_written(node)) in known), None)
    if written is None:
        return None
    line = int(getattr(written, "lineno", code.co_firstlineno))
    return SourceLine(os.path.abspath(code.co_filename), line, function.name), _method(written)


def _gradients_in(function: ast.AST) -> tuple[set[str], list[ast.AST]]:
    """The names of what a hook is given, and of views of that; its nodes, in order."""
    known = set(parameters_of(function)) - {"self"}
    nodes = sorted(inside(function), key=lambda node: getattr(node, "lineno", 0))
    for node in nodes:
        if isinstance(node, ast.Assign) and _root(node.value) in known and not _is_number(node.value):
            known |= {each.id for each in node.targets if isinstance(each, ast.Name)}
    return known, nodes


def _written(node: ast.AST) -> ast.AST | None:
    """What a node of the source writes into."""
    if isinstance(node, ast.Subscript):
        return node.value if isinstance(node.ctx, ast.Store) else None
    if isinstance(node, ast.AugAssign):
        return node.target
    if isinstance(node, ast.keyword):
        return node.value if node.arg == "out" else None
    return node if _method(node) else None


def _method(node: ast.AST) -> str:
    """Of a call ``x.abs_()``, or ``torch.abs_(x)``: its name, where it is one that writes in place."""
    name = called_name(node)
    return name if name.endswith("_") and not name.endswith("__") else ""


def _root(node: ast.AST | None) -> str:
    """The variable that an expression begins with: "x" of ``x.data.view(-1)[0]``, and of ``torch.ravel(x)``."""
    while node is not None:
        if isinstance(node, ast.Call):
            plain = isinstance(node.func, ast.Attribute) and _root(node.func) not in ("torch", "paddle", "F")
            node = node.func if plain else node.args[0] if node.args else None
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        else:
            return node.id if isinstance(node, ast.Name) else ""
    return ""


def _is_number(node: ast.AST) -> bool:
    return any(called_name(each) in ("item", "float", "tolist", "numpy") for each in ast.walk(node))


def _first_changed(backend: Backend, before: Any, after: Any) -> str:
    """The first element that the two have otherwise; "" where all are equal."""
    one, two = values.numbers(backend, before), values.numbers(backend, after)
    if one is None or two is None or one.shape != two.shape:
        return "its values cannot be compared"
    for at, (was, now) in enumerate(zip(one.flat, two.flat, strict=True)):
        if was != now and not (was != was and now != now):
            where = values.index_text(at, one.shape)
            return f"element {where or 'of the scalar'}: {was:.9g} before the hook, {now:.9g} after it"
    return ""

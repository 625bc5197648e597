"""Weights that change between two steps of their optimizer, in a program with code that only wants to look at them and
writes to what it looks at."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from adbg.engine.diagnosis.detector import OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.training.bits import hashes_of
from adbg.engine.diagnosis.detectors.training.frozen import files_of
from adbg.engine.diagnosis.detectors.training.loop import LoopDetector, weight_commands
from adbg.engine.diagnosis.detectors.training.source import place
from adbg.engine.diagnosis.ledger import Held, Optimizer
from adbg.engine.diagnosis.source import called_name, inside, parameters_of, tree_of
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

if TYPE_CHECKING:
    from adbg.engine.diagnosis.facts import Facts

_MOST, _LARGEST = 8, 1 << 20  # tensors, and elements of one
_SHARE = frozenset({"detach", "data", "numpy"})
_STILL = _SHARE | {"view", "reshape", "flatten", "ravel", "squeeze", "cpu", "t", "T"}  # the same memory, as a rule
# Who is called so writes on purpose.
_DELIBERATE = re.compile(
    r"prun|clip|clamp|mask|init|reset|apply|project|renorm|normali|quanti|ema|average|update|set_|load|zero|constrain|perturb|"
    r"noise|decay|scale|step|round|sparsif|shrink|threshold|restore|swap|mutat|copy|sync|freeze|tie|attack|write", re.I
)  # fmt: skip
_NO_GRAD = re.compile(r"no_grad|inference_mode|set_grad_enabled")


@dataclass(frozen=True, slots=True)
class _Look:
    """``line`` makes ``name`` of something's memory, ``written`` writes to it, and ``read`` takes it after that."""

    line: SourceLine
    name: str
    written: int
    read: int


@dataclass(slots=True)
class _Watched:
    looks: list[_Look]
    held: list[Held]
    after: dict[int, int] = field(default_factory=dict)
    stood: int = 0  # times that the next step found the weights as the last one had left them


@detector("silent-overwrite")
class LookedAt(LoopDetector):
    """Weights are changed between two steps by code that only wants to look at them: what ``detach()`` gives shares the
    memory of the weight, and is written to for a statistic (``w = p.detach(); w[w.abs() < 0.1] = 0``).

    Evidence: hashes of weights after a step and before the next one, and the only place of the source that writes to
    such a variable and computes something of it then.
    Mistaken for: weights that are clipped, pruned, averaged or loaded between steps: not told where the write is under
    ``no_grad``, of what is no weight by the source, its variable is returned, kept or not read again, or the function
    is called after such a job. Changes at every step (not told).
    Cost: none where the source has no such place; else hashes of up to eight weights of at most a million elements, two
    a step.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._watched: dict[int, _Watched] = {}
        self._told = False

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        if event.what == "loaded":
            for each in self._watched.values():
                each.after = {}
        if optimizer is None or self._told or event.what not in ("step", "stepped"):
            return
        watched = self._watched.get(optimizer.key)
        if event.what == "stepped" and optimizer.steps == 1:
            looks = [each for file in files_of(self.ledger, optimizer) for each in looks_in(file)]
            watched = self._watched[optimizer.key] = _Watched(looks, self._chosen(optimizer))
        if watched is None or len(watched.looks) != 1:
            return
        now = hashes_of(self.facts, (held.ref() for held in watched.held))
        if event.what == "stepped":
            watched.after = now
        elif watched.after:
            changed = [at for at, value in watched.after.items() if now.get(at) != value]
            watched.stood += not changed
            if changed and watched.stood >= 2:
                self._tell(optimizer, watched, changed, now)

    def _chosen(self, optimizer: Optimizer) -> list[Held]:
        few = [held for held in optimizer.held if held.shape and math.prod(held.shape) <= _LARGEST]
        return sorted(few, key=lambda held: len(held.shape) < 2)[:_MOST]

    def _tell(self, optimizer: Optimizer, watched: _Watched, changed: list[int], now: dict[int, int]) -> None:
        self._told = True
        look = watched.looks[0]
        names = self.facts.some([watched.held[at].name for at in changed])
        written = SourceLine(look.line.file, look.written, look.line.function)
        self.facts.tell(
            Finding(
                0, "silent-overwrite", "warning", 0.8,
                f"{names} changed between two steps of {optimizer.kind}: '{look.name}' of {place(look.line)} shares "
                f"the memory of what it is made of, and {place(written)} writes to it; make it of a clone() where it "
                "is only looked at",
                cause=self.facts.cause(look.line),
                evidence=[
                    *(f"hash of {watched.held[at].name}: {watched.after[at]:08x} after a step, {now[at]:08x} before "
                      "the next" for at in changed[:3]),
                    f"{look.line.function} writes to it (`{self.facts.text_of(written)}`), and takes it in line "
                    f"{look.read} then",
                    f"the weights stood as they were between {watched.stood} steps before",
                ],
                next=weight_commands(self, watched.held[changed[0]]),
            )
        )  # fmt: skip


def looks_in(file: str) -> Iterator[_Look]:
    tree = tree_of(file)
    for outer in ast.walk(tree) if tree is not None else ():
        kind = outer.name if isinstance(outer, ast.ClassDef) else ""
        for scope in outer.body if isinstance(outer, (ast.ClassDef, ast.Module)) else ():
            if not isinstance(scope, ast.FunctionDef) or _DELIBERATE.search(f"{kind} {scope.name}"):
                continue
            if tree is not None and not any(_NO_GRAD.search(ast.unparse(each)) for each in scope.decorator_list):
                yield from _of(file, tree, scope)


def _of(file: str, tree: ast.Module, scope: ast.FunctionDef) -> Iterator[_Look]:
    nodes = list(inside(scope))
    bare = _under_no_grad(nodes)
    for node in nodes:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1 or node.lineno in bare:
            continue
        target = node.targets[0]
        shared = _shared(node.value)
        if not isinstance(target, ast.Name) or shared is None or not _is_weight(shared, tree, scope):
            continue
        lines = sorted(getattr(each, "lineno", 0) for each in nodes if _writes(each, target.id))
        writes = [line for line in lines if line > node.lineno]
        last = max(writes, default=0)
        reads = [
            each.lineno for each in nodes
            if isinstance(each, ast.Name) and each.id == target.id and isinstance(each.ctx, ast.Load)
            and each.lineno > last
        ]  # fmt: skip
        if writes and reads and not bare & set(writes) and not _handed_on(nodes, target.id):
            yield _Look(SourceLine(file, node.lineno, scope.name), target.id, writes[0], min(reads))


def _under_no_grad(nodes: list[ast.AST]) -> set[int]:
    return {
        line for node in nodes if isinstance(node, ast.With)
        and any(_NO_GRAD.search(ast.unparse(each.context_expr)) for each in node.items)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }  # fmt: skip


def _shared(value: ast.expr) -> ast.expr | None:
    """Whose memory the result shares: ``weight`` of ``weight.detach()``, ``p`` of ``p.data.view(-1)``."""
    path: set[str] = set()
    while True:
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            value = value.func
        if not isinstance(value, ast.Attribute) or value.attr not in _STILL:
            break
        path.add(value.attr)
        value = value.value
    return value if path & _SHARE else None


def _is_weight(value: ast.expr, tree: ast.Module, scope: ast.FunctionDef | None) -> bool:
    """An attribute that is called so, the variable of a loop over parameters, or what a function is handed such."""
    if isinstance(value, ast.Attribute):
        return value.attr in ("weight", "bias")
    if not isinstance(value, ast.Name):
        return False
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.comprehension)) and "parameters(" in ast.unparse(node.iter):
            targets = [each.id for each in ast.walk(node.target) if isinstance(each, ast.Name)]
            if targets and targets[-1] == value.id:
                return True
    given = list(parameters_of(scope)) if scope is not None else []
    if scope is None or value.id not in given:
        return False
    at = given.index(value.id) - (given[0] == "self")
    return any(
        len(node.args) > at and _is_weight(node.args[at], tree, None)
        for node in ast.walk(tree) if isinstance(node, ast.Call) and called_name(node) == scope.name
    )  # fmt: skip


def _writes(node: ast.AST, name: str) -> bool:
    """A statement that writes to what the variable shares."""
    if isinstance(node, ast.Assign):
        return any(isinstance(each, ast.Subscript) and _is(each.value, name) for each in node.targets)
    if isinstance(node, ast.AugAssign):
        return _is(node.target, name) or (isinstance(node.target, ast.Subscript) and _is(node.target.value, name))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        called = node.func.attr
        return called.endswith("_") and not called.endswith("__") and _is(node.func.value, name)
    return False


def _handed_on(nodes: list[ast.AST], name: str) -> bool:
    """The variable itself is returned, kept, given another value or handed to what may write it back."""
    for node in nodes:
        value = getattr(node, "value", None)
        if isinstance(node, (ast.Return, ast.Yield)) and value is not None:
            if any(_is(each, name) for each in getattr(value, "elts", [value])):
                return True
        elif isinstance(node, ast.Assign) and any(_is(each, name) for each in getattr(value, "elts", [value])):
            return True
        elif isinstance(node, ast.Call) and any(_is(each, name) for each in node.args):
            called = getattr(node.func, "attr", "")
            if _is(getattr(node.func, "value", None), name):
                continue
            if called.endswith("_") or called in ("set_value", "append", "assign", "set"):
                return True
    return False


def _is(node: ast.AST | None, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name

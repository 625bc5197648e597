"""Parameters that make NaN or infinity of finite numbers: one that steps have taken out of the range in which an
operator is defined (``log`` of a scale below 0), and one that was initialised so large that what goes through it again
and again overflows."""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Sequence
from typing import Any

from adbg.engine.backends.base import Backend, Graph
from adbg.engine.diagnosis.detectors.earlier.holding import release
from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.diagnosis.detectors.training.leaves import assigned_in
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.ledger import Ledger
from adbg.engine.diagnosis.source import nodes_of, scope_at
from adbg.engine.outside import suppress
from adbg.engine.types import SourceLine

_DEEP = 4  # nodes between the operand and the parameter
_MOST = 400  # nodes of the graph that is walked
_ELEMENTS = 4096  # of the parameter
_LARGE = 3.0  # times; He's initialisation has 1.4
_PRODUCTS = frozenset({"matmul", "mm", "linear", "addmm", "einsum", "bmm"})
_MIXES = ("mm", "linear", "conv", "matmul", "einsum", "rnn", "lstm", "gru", "attention", "norm")
_BOUNDS = {"log": 0.0, "log2": 0.0, "log10": 0.0, "sqrt": 0.0, "rsqrt": 0.0, "log1p": -1.0}


def parameter_behind(facts: Facts, op: str, operands: Sequence[Any]) -> tuple[str, SourceLine | None] | None:
    """What is to be said of the parameter that made ``op`` give what is not finite, and the line that gives it to its
    module; None where it is none's doing."""
    stepped = any(each.steps for each in Ledger.of(facts).optimizers.values())
    if stepped:
        return _gone_below(facts, op, operands[0]) if operands else None
    return next((found for each in operands if (found := _too_large(facts, op, each)) is not None), None)


def _too_large(facts: Facts, op: str, operand: Any) -> tuple[str, SourceLine | None] | None:
    """A matrix before its first step: a usual initialisation keeps the size of what it is multiplied by (1 / sqrt of
    the inputs; He's, twice the variance)."""
    if op not in _PRODUCTS:
        return None
    for value in _parameters_near(facts.backend, operand)[:1]:
        shape = facts.shape(value)
        if len(shape) != 2 or min(shape) < 4 or not facts.is_named(value):
            return None
        gain = facts.backend.norm(value) / math.sqrt(max(shape))
        if gain > _LARGE:
            text = (
                f"{facts.title_of(value)} {list(shape)} makes what it is multiplied by about {gain:.3g} times as "
                "large, as it was initialised: where that is repeated, it grows by as much each time; divide by the "
                "root of the inputs, or initialise it as the identity"
            )
            return text, given_at(facts, value)
    return None


def _gone_below(facts: Facts, op: str, operand: Any) -> tuple[str, SourceLine | None] | None:
    """What is to be said of the parameter after an operand of ``op``, and the line that gives it to its module: of the
    nearest one that has elements below what ``op`` takes, with nothing but operators element by element in between.
    None where there is none."""
    bound = _BOUNDS.get(op)
    if bound is None:
        return None
    for value in _parameters_near(facts.backend, operand):
        found = values.stats(facts.backend, value)
        if found is None or not facts.is_named(value) or found.numel > _ELEMENTS or found.min >= bound:
            continue
        name = facts.title_of(value)
        text = (
            f"{name}, which it is computed of, has come down to {found.min:.4g} by the optimizer's steps, and nothing "
            f"keeps it above {bound:g}: train its logarithm, or take exp or softplus of it"
        )
        return text, given_at(facts, value)
    return None


def _parameters_near(backend: Backend, operand: Any) -> list[Any]:
    """The nearest first."""
    if not backend.has_graph(operand):
        return [operand] if backend.meta(operand).requires_grad else []
    graph = backend.graph_of([operand])
    if graph is None:
        return []
    try:
        if graph.count() > _MOST:
            return []
        found: list[Any] = []
        level, seen = list(graph.roots()), set(graph.roots())
        for _ in range(_DEEP + 1):
            below = []
            for key in level:
                if graph.is_accumulate(key):
                    found += [saved.value for saved in graph.saved(key) if saved.value is not None]
                else:
                    below += [each for each in _behind(graph, key) if each not in seen]
            seen.update(below)
            level = below
        return found
    finally:
        release(graph)


def _behind(graph: Graph, key: int) -> list[int]:
    """What an operator got its sign from: a sum of two has it of either."""
    name = graph.name(key).lower()
    found = [edge.to for edge in graph.edges(key) if edge.to is not None]
    mixes = any(part in name for part in _MIXES) or (len(found) > 1 and name.startswith(("add", "sub")))
    return [] if mixes else found


def given_at(facts: Facts, value: Any) -> SourceLine | None:
    """The line of the program's that gives it its values; of a framework's layer that of the last call that fills it
    (``nn.init.normal_(self.rec.weight)``), else where the layer is made."""
    for seen in Ledger.of(facts).modules.values():
        root: Any = seen.ref()
        with suppress(Exception):  # it is gone, or a property of the user's raises
            path = next((name for name, each in root.named_parameters() if each is value), "")
            if path:
                *parts, attribute = path.split(".")
                line = assigned_in(type(functools.reduce(getattr, parts, root)), attribute)
                if line is not None or not parts:
                    return line
                made = assigned_in(type(functools.reduce(getattr, parts[:-1], root)), parts[-1])
                return made and (_filled_in(made.file, f"{parts[-1]}.{attribute}") or made)
    return None


def _filled_in(file: str, name: str) -> SourceLine | None:
    """The last call that writes a parameter of that name: ``init.normal_(self.rec.weight)``,
    ``self.rec.weight.data.normal_()``."""
    found = None
    for node in nodes_of(file):
        called = node.func if isinstance(node, ast.Call) else None
        if not isinstance(node, ast.Call) or not isinstance(called, ast.Attribute) or not called.attr.endswith("_"):
            continue
        written = [ast.unparse(each) for each in (*node.args[:1], called.value)]
        if any(each.removesuffix(".data").endswith(f".{name}") for each in written):
            scope = getattr(scope_at(file, node.lineno), "name", "<module>")
            found = SourceLine(file, node.lineno, scope)
    return found

"""Products of two factors that are both zero: the gradient of each is the other one times what flows in, so that both
stay what they are. Both matrices of a low-rank adapter, for one."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from typing import Any

from adbg.engine.diagnosis.detectors.sizes.sizes import Origin, Size
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import assigned, assigned_before, assigned_names, called_name, scope_at, tree_of
from adbg.engine.graph.index import index_of
from adbg.engine.places import parsed
from adbg.engine.types import SourceLine

PRODUCTS = frozenset({"mm", "matmul", "bmm", "addmm", "linear", "mul", "multiply", "mv", "dot", "einsum"})
WHY = "both factors of this product are 0, and the gradient of each is the other one times what flows in: both stay 0"
# Nodes between a product and a parameter that a factor of it is made of: a transpose, a cast; of what is no matrix, the
# product before it between two views.
_NEAR = 6


def stops(size: Size) -> bool:
    """Gradients flow in and zeros leave, to both factors. To one alone is the other one's first step: a head that is
    initialised with zeros learns from there on."""
    leaving = [each for each in size.leaving if each is not None]
    return size.op in PRODUCTS and size.entering > 0 and len(leaving) >= 2 and not any(leaving)


def origin_of(facts: Facts, call: Any, key: int, forward: SourceLine | None) -> Origin:
    """The line that set the parameters below a product to zero, of several that of the last to get a gradient: what is
    upstream is meant to be random. No line where none of them is zero all over."""
    zero: list[tuple[str, SourceLine | None]] = []
    for leaf in reversed(list(_leaves_below(call, key))):
        for saved in call.saved(leaf):
            if saved.value is not None and facts.backend.norm(saved.value) == 0:
                name = facts.title_of(saved.value) or "a leaf without a name"
                path = name.split(".")
                line = facts.written(saved.value) or _set_to_zero(path, forward) or _assigned(path[-1], forward)
                zero.append((name, line or facts.born(saved.value) or _assigned("".join(path[-2:-1]), forward)))
    evidence = tuple(
        f"{name} is 0 all over" + (f", set so in {os.path.basename(line.file)}:{line.line}" if line is not None else "")
        for name, line in zero[:4]
    )
    return Origin(next((line for _, line in zero if line is not None), None), evidence)


def _set_to_zero(path: list[str], forward: SourceLine | None) -> SourceLine | None:
    """Where the file of the forward sets that parameter to zero once it is there: ``zeros_(self.down)``, ``zeros_(p)``
    in a loop over it. Asked where the program did that before it was watched."""
    tree = tree_of(forward.file) if forward is not None else None
    if forward is None or tree is None:
        return None
    found: dict[int, int] = {}  # line -> how much of the path it names
    loops = [each for each in ast.walk(tree) if isinstance(each, ast.For)]
    for node in ast.walk(tree):
        written = _zeroed(node, forward.file) if isinstance(node, ast.Call) else None
        if written is not None and isinstance(node, ast.Call):
            found[node.lineno] = max(_alike(each, path) for each in _meant(written, node, loops))
    if not any(found.values()):
        return None
    line = max(sorted(found), key=found.__getitem__)
    return SourceLine(forward.file, line, getattr(scope_at(forward.file, line), "name", "<module>"))


def _zeroed(call: ast.Call, file: str) -> ast.expr | None:
    """What a call sets to zero."""
    made, first = call.func, call.args[0] if call.args else None
    if isinstance(made, ast.Name) and (before := assigned_before(file, call.lineno, made.id)) is not None:
        made = getattr(before[1], "value", None) or made
    if isinstance(made, ast.Call):  # nn.initializer.Constant(0.0)(self.down)
        return first if called_name(made) == "Constant" and all(map(_is_zero, _values(made)[:1])) else None
    name = ast.unparse(made).rpartition(".")[2]  # of nn.init.zeros_, also where a variable is that
    of = call.func.value if isinstance(call.func, ast.Attribute) else None
    if name == "zeros_":
        return first
    if name == "constant_":
        return first if any(map(_is_zero, _values(call)[1:])) else None
    if name == "zero_" or (name == "fill_" and _is_zero(first)):
        return of
    return of if name in ("set_value", "copy_") and called_name(first or call).startswith("zeros") else None


def _values(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(each.value for each in call.keywords)]


def _is_zero(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value == 0


def _meant(written: ast.expr, call: ast.Call, loops: list[ast.For]) -> list[ast.expr]:
    """The expression, or those that its variable goes through in a loop."""
    path = ast.unparse(written).removesuffix(".data")
    first, _, rest = path.partition(".")
    for loop in loops:
        if loop.lineno <= call.lineno <= (loop.end_lineno or 0) and first in assigned_names(loop):
            every = loop.iter.elts if isinstance(loop.iter, (ast.Tuple, ast.List)) else []
            paths = [f"{ast.unparse(each)}.{rest}".rstrip(".") for each in every]
            return [parsed(each, mode="eval").body for each in paths] or [written]
    return [written]


def _alike(written: ast.expr, wanted: list[str]) -> int:
    """How many names at the end of a parameter's path an expression has: 2 of ``self.down.weight``."""
    path = ast.unparse(written).removesuffix(".data").split(".")
    alike = 0
    while alike < min(len(path), len(wanted)) and path[-1 - alike] == wanted[-1 - alike]:
        alike += 1
    return alike


def _assigned(attribute: str, forward: SourceLine | None) -> SourceLine | None:
    """Of a module's own, or of a layer that it has: ``self.down = nn.Parameter(zeros(…))``, where its forward has
    ``self.down``."""
    if forward is None or not attribute or f".{attribute}" not in Facts.text_of(forward):
        return None
    return assigned(forward.file, attribute)


def _leaves_below(call: Any, key: int) -> Iterator[int]:
    """Accumulate nodes of what the factors are made of, a few nodes below the product at most, in execution order."""
    found: set[int] = set()
    todo = [(key, 0)]
    while todo:
        at, far = todo.pop()
        for edge in call.edges(at):
            if edge.to is None or edge.to in found:
                continue
            found.add(edge.to)
            if not call.is_accumulate(edge.to) and far < _NEAR:
                todo.append((edge.to, far + 1))
    yield from (at for at in index_of(call).order if at in found and call.is_accumulate(at))

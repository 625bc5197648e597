"""Products of two factors that are both zero: the gradient of each is the other one times what flows in, so that both
stay what they are. Both matrices of a low-rank adapter, for one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from adbg.engine.diagnosis.detectors.sizes.sizes import Origin, Size
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import assigned
from adbg.engine.graph.index import index_of
from adbg.engine.types import SourceLine

PRODUCTS = frozenset({"mm", "matmul", "bmm", "addmm", "linear", "mul", "multiply", "mv", "dot", "einsum"})
WHY = "both factors of this product are 0, and the gradient of each is the other one times what flows in: both stay 0"
_NEAR = 3  # nodes between a product and a parameter that is a factor of it: a transpose, a cast


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
                line = facts.written(saved.value) or _assigned(name.rpartition(".")[2], forward)
                zero.append((name, line or facts.born(saved.value)))
    evidence = tuple(
        f"{name} is 0 all over" + (f", set so in {os.path.basename(line.file)}:{line.line}" if line is not None else "")
        for name, line in zero[:4]
    )
    return Origin(next((line for _, line in zero if line is not None), None), evidence)


def _assigned(attribute: str, forward: SourceLine | None) -> SourceLine | None:
    """Of a module's own: ``self.down = nn.Parameter(zeros(…))``, where its forward has ``self.down``."""
    if forward is None or f".{attribute}" not in Facts.text_of(forward):
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

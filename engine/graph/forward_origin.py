"""Which value of the forward pass was not finite first? Asked at a stop where a node made NaN of finite gradients.

Runs on the thread that stops. Saved tensors are read as ``Graph.saved`` gives them: nothing is unpacked that has an
effect. Only values that the node's own depend on are looked at: the leaves and nodes that its gradient flows to.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from adbg.engine.backends.base import Backend, BackwardCall, Graph, SavedValue
from adbg.engine.graph.index import index_of
from adbg.engine.outside import own, suppress
from adbg.engine.types import Evidence, Origin, Role, ValueState

SECONDS = 1.0  # of a search: a norm reads some 7 GB/s of one CPU core (586 us per 4M floats)
_MOST_ELEMENTS = 1 << 26  # of one tensor
_EXACT = 1 << 22  # elements whose infinite ones are counted by sign
LeafName = tuple[str, int]


def first_spoilt(backend: Backend, call: BackwardCall, key: int) -> Evidence | None:
    """The first value in forward order that is NaN or +inf, of those that came before node ``key``, itself included:
    leaves, then saved tensors. A tensor that holds -inf alone is a mask more often than not, and is passed over.

    Where the framework does not show what ``key`` saved, the roots are asked last: a loss that is not finite says that
    the forward pass was not.
    """
    order = index_of(call).order
    below = reached_from(call, key)
    until = time.monotonic() + SECONDS
    for at in (at for at in order if at in below and call.is_accumulate(at)):
        found = _first_of(backend, call.saved(at))
        if found is not None:
            path = call.describe(at).parameter or ""
            return _named(call, at, _evidence(backend, Role.LEAF, path, found, path))
    hidden = not backend.capabilities.saved_tensors
    for at in (at for at in reversed(order) if at in below and not call.is_accumulate(at)):
        if time.monotonic() > until:
            return None
        values = _saved_at(call, at)
        found = _first_of(backend, values)
        if found is not None:
            return _named(call, at, _evidence(backend, Role.SAVED, found.name, found, _parameter(backend, found.value)))
        hidden = hidden or (at == key and any(value.state is ValueState.UNREAD for value in values))
    roots = [SavedValue("", value) for value in call.root_values()] if hidden else []
    found = _first_of(backend, roots)
    return _evidence(backend, Role.ROOT, "", found) if found is not None else None


def reached_from(graph: Graph, key: int) -> set[int]:
    """``key`` and the nodes that its gradient flows to: what it was made from in the forward pass."""
    found = {key}
    work = [key]
    while work:
        for edge in graph.edges(work.pop()):
            if edge.to is not None and edge.to not in found:
                found.add(edge.to)
                work.append(edge.to)
    return found


class Leaves:
    """The leaves of one call by what names them (path and address: no tensor is kept), each fact found when first asked
    for. For breakpoints on values: numbers that come from a leaf which an earlier stop was about are no news."""

    def __init__(self, backend: Backend, call: BackwardCall) -> None:
        self._backend = backend
        self._call = call
        self._spoilt: dict[int, LeafName] | None = None  # by key

    def reached(self, key: int) -> frozenset[LeafName]:
        """Those that the gradient of ``key`` flows to."""
        return frozenset(name for at in reached_from(self._call, key) for name, _ in self._leaf(at))

    def spoilt(self, key: int) -> frozenset[LeafName]:
        """Those of them that are not finite themselves. A norm of each leaf of the graph, once a call."""
        if self._spoilt is None:
            leaves = ((at, *leaf) for at in self._call.order() for leaf in self._leaf(at))
            self._spoilt = {at: name for at, name, value in leaves if spoilt(self._backend, value)}
        if not self._spoilt:
            return frozenset()
        below = reached_from(self._call, key)
        return frozenset(name for at, name in self._spoilt.items() if at in below)

    def _leaf(self, key: int) -> list[tuple[LeafName, Any]]:
        if not self._call.is_accumulate(key):
            return []
        tensors = [saved.value for saved in _saved_at(self._call, key) if self._backend.is_tensor(saved.value)]
        return [((self._call.describe(key).parameter or "", id(value)), value) for value in tensors]


def spoilt(backend: Backend, value: Any) -> bool:
    """Whether some element of a tensor of the forward is NaN or +inf."""
    nan, inf = _counts(backend, value)
    return bool(nan or inf)


def _saved_at(graph: Graph, key: int) -> Sequence[SavedValue]:
    try:
        return graph.saved(key)
    except own(Exception):  # what cannot be read cannot be judged
        return ()


def _first_of(backend: Backend, values: Sequence[SavedValue]) -> SavedValue | None:
    usable = (v for v in values if v.state is ValueState.OK and backend.is_tensor(v.value))
    return next((value for value in usable if spoilt(backend, value.value)), None)


def _counts(backend: Backend, value: Any) -> tuple[int, int]:
    """(NaN, infinite) elements; of a tensor whose only bad elements are -inf none."""
    with suppress(Exception):  # sparse, quantised, on the meta device: nothing to say
        if backend.meta(value).numel > _MOST_ELEMENTS:
            return 0, 0
        nan, inf = backend.nonfinite(value)
        if inf and not nan and backend.meta(value).numel <= _EXACT:
            stats = backend.stats(value, exact=True, bins=1)
            return (0, inf) if stats.pos_inf else (0, 0)
        return nan, inf
    return 0, 0


def _evidence(backend: Backend, role: Role, name: str, found: SavedValue, parameter: str = "") -> Evidence:
    nan, inf = backend.nonfinite(found.value)
    meta = backend.meta(found.value)
    pos = neg = None
    if inf and meta.numel <= _EXACT:
        stats = backend.stats(found.value, exact=True, bins=1)
        pos, neg = stats.pos_inf, stats.neg_inf
    return Evidence(role, name, meta.numel, nan, inf, Origin.FORWARD, parameter=parameter, pos_inf=pos, neg_inf=neg)


def _named(graph: Graph, key: int, found: Evidence) -> Evidence:
    """``found`` with the node that has it, and its line."""
    info = graph.describe(key)
    position = index_of(graph).position.get(key)
    return replace(found, node=info.unique_name, index=position, forward=info.forward)


def _parameter(backend: Backend, value: Any) -> str:
    return next((path for path, parameter in backend.parameters() if parameter is value), "")

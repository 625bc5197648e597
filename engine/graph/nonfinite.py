"""Non-finite numbers at a stop, as values: how many, in what, and from where. Runs on the thread that stops."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from adbg.engine.backends.base import Backend, BackwardCall, Graph, Hidden
from adbg.engine.graph.forward_origin import first_spoilt
from adbg.engine.graph.index import index_of
from adbg.engine.outside import own, suppress
from adbg.engine.types import Evidence, Origin, Role, ValueState

Spoilt = Mapping[int, Sequence[tuple[int, int]]]  # node -> (NaN, infinite) elements of each gradient that it gave

_NAMED = 16  # nodes named of those that gave a gradient
_SAVED_TENSORS = 8  # looked at of one node
_ELEMENTS = 1 << 22  # of one tensor: its norm takes 0.6 ms on a CPU core, and exact counts a few more


def count_nonfinite(backend: Backend, values: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """(NaN, infinite) elements of each gradient; an undefined one has none."""
    return tuple((0, 0) if value is None else backend.nonfinite(value) for value in values)


def total(counts: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(nan for nan, _ in counts), sum(inf for _, inf in counts)


def evidence_at(
    backend: Backend,
    call: BackwardCall,
    key: int,
    outs: Sequence[Any],
    ins: Sequence[Any],
    given: tuple[int, int],
    screened: bool,
    spoilt: Spoilt = MappingProxyType({}),
) -> tuple[Evidence, ...]:
    """What is not finite at node ``key``: the gradients that leave it, then those that came in, then what the forward
    pass left: the first such value in its order, and those that the node saved.

    Args:
        ins: the gradients that leave the node, none before it ran.
        given: (NaN, infinite) elements that its consumers passed to it.
        screened: every gradient of this call was looked at, so ``given`` is all there was.
        spoilt: what nodes are known to have passed on.
    """
    arriving = _gradients(backend, Role.GRAD_OUTPUTS, outs)
    leaving = _gradients(backend, Role.GRAD_INPUTS, ins)
    if arriving:
        arriving = _placed(arriving, call, key, given, screened)
        arriving = _with_maker(arriving, call, key, spoilt)
        nan = any(found.nan for found in arriving)  # else what leaves as NaN was made here, of infinities
        left = (
            replace(found, origin=Origin.MADE_HERE if found.nan and not nan else Origin.PASSED_ON) for found in leaving
        )
        return (*left, *arriving)
    if leaving and any(isinstance(value, Hidden) for value in outs):
        origin = Origin.PASSED_ON if any(given) else Origin.UNKNOWN
        unknown = [replace(found, origin=origin, unseen=True) for found in leaving]
        return (*unknown, *(_left_by_forward(backend, call, key) if origin is Origin.UNKNOWN else ()))
    if leaving:
        made = [replace(found, origin=Origin.MADE_HERE) for found in leaving]
        return (*made, *_left_by_forward(backend, call, key))
    return ()


def maker_of(graph: Graph, key: int, spoilt: Collection[int]) -> int | None:
    """The first node to run among ``spoilt`` (those that passed on gradients that are not finite) from which a gradient
    flows to ``key``, which may be itself."""
    if not spoilt:
        return None
    return next((other for other in index_of(graph).ancestors(graph, key) if other in spoilt), None)


def _with_maker(arriving: list[Evidence], call: BackwardCall, key: int, spoilt: Spoilt) -> list[Evidence]:
    """``arriving`` with the node that made the numbers, where they were passed on: of NaN the first that gave NaN,
    which may have made it of infinities."""
    return [_made(found, call, key, spoilt) if found.origin is Origin.PASSED_ON else found for found in arriving]


def _made(found: Evidence, call: BackwardCall, key: int, spoilt: Spoilt) -> Evidence:
    kind = 0 if found.nan else 1
    givers = [other for other, counts in spoilt.items() if other != key and any(count[kind] for count in counts)]
    maker = maker_of(call, key, givers)
    if maker is None:
        return found
    info = call.describe(maker)
    return replace(found, node=info.unique_name, index=index_of(call).position.get(maker), forward=info.forward)


def _left_by_forward(backend: Backend, call: BackwardCall, key: int) -> list[Evidence]:
    """What node ``key`` saved and is not finite; before that the first such value of the forward pass, looked for where
    the saved ones can explain what leaves the node, or cannot be seen."""
    try:
        return _left(backend, call, key)
    except own(Exception):  # sparse, quantised: nothing to say, no harm
        return []


def _left(backend: Backend, call: BackwardCall, key: int) -> list[Evidence]:
    own = _saved(backend, call, key)
    unseen = not backend.capabilities.saved_tensors or any(
        value.state is ValueState.UNREAD for value in call.saved(key)
    )
    if not unseen and not any(found.nan or found.pos_inf != 0 for found in own):
        return own  # finite, or a mask of -inf
    first = first_spoilt(backend, call, key)
    if first is None:
        return own
    if first.node == call.describe(key).unique_name:
        first = replace(first, node="", index=None, forward=None)
        own = [found for found in own if found.name != first.name]
    return [first, *own]


def _gradients(backend: Backend, role: Role, values: Sequence[Any]) -> list[Evidence]:
    return [
        _counted(backend, Evidence(role, f"{role.value}[{slot}]", 0, nan, inf, slot=slot), values[slot])
        for slot, (nan, inf) in enumerate(count_nonfinite(backend, values))
        if nan or inf
    ]


def _counted(backend: Backend, found: Evidence, value: Any) -> Evidence:
    """``found`` with the number of elements, and the infinite ones by sign where that is not too much work."""
    numel = backend.meta(value).numel
    if found.inf and numel <= _ELEMENTS:
        with suppress(Exception):  # sparse, quantised
            stats = backend.stats(value, exact=True, bins=1)
            return replace(found, numel=numel, pos_inf=stats.pos_inf, neg_inf=stats.neg_inf)
    return replace(found, numel=numel)


def _placed(
    arriving: list[Evidence], call: BackwardCall, key: int, given: tuple[int, int], screened: bool
) -> list[Evidence]:
    """``arriving`` with its origin: the nodes that gave the gradients passed non-finite ones on, or they were made
    behind them (NaN of infinities alone: by their sum). Not known at a root (the gradient was given to backward), and
    where not every gradient was looked at.
    """
    known = screened and key not in call.roots()
    if any(given) and not (known and given[0] == 0 and any(found.nan for found in arriving)):
        return [replace(found, origin=Origin.PASSED_ON) for found in arriving]
    if not known:
        return arriving
    edges = index_of(call).consumers(call, key)
    consumers = list(dict.fromkeys(consumer for consumer, _ in edges))
    if not consumers:
        return arriving
    names = tuple(call.describe(consumer).unique_name for consumer in consumers[:_NAMED])
    summed = len({slot for _, slot in edges}) < len(edges)
    others = len(consumers) - len(names)
    unseen = any(call.ends_unseen(consumer) for consumer in consumers)
    return [
        replace(found, origin=Origin.BETWEEN, after=names, others=others, summed=summed, unseen=unseen)
        for found in arriving
    ]


def _saved(backend: Backend, call: BackwardCall, key: int) -> list[Evidence]:
    """The saved tensors that are not finite; tensors of more than 4M elements, and all but the first 8, are not looked
    at."""
    findings = []
    tensors = [(saved.name, saved.value) for saved in call.saved(key) if backend.is_tensor(saved.value)]
    for name, value in tensors[:_SAVED_TENSORS]:
        if backend.meta(value).numel > _ELEMENTS:
            continue
        nan, inf = backend.nonfinite(value)
        if nan or inf:
            path = next((path for path, parameter in backend.parameters() if parameter is value), "")
            found = Evidence(Role.SAVED, name, 0, nan, inf, Origin.FORWARD, parameter=path)
            findings.append(_counted(backend, found, value))
    return findings

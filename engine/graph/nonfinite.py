"""Where non-finite numbers at a stop come from: counts of gradients, and what the forward pass left (L4; runs on the
thread that stops).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adbg.engine.backends.base import Backend, Graph
from adbg.engine.graph.index import index_of
from adbg.engine.session.running_call import Running

_NAMES = 4  # nodes told of those that gave a gradient
_SAVED_TENSORS = 8  # looked at of one node
_SAVED_ELEMENTS = 1 << 22  # of one of them: its norm takes 0.6 ms on a CPU core, and exact counts a few more


def count_nonfinite(backend: Backend, values: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """(NaN, infinite) elements of each gradient; an undefined one has none."""
    return tuple((0, 0) if value is None else backend.nonfinite(value) for value in values)


def total(counts: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(nan for nan, _ in counts), sum(inf for _, inf in counts)


def between_evidence(running: Running, key: int) -> str:
    """Where the gradients that arrived at ``key`` were spoilt, when the nodes that gave them passed on none that was
    not finite: "made between MulBackward0#1 and here (a tensor hook, or an in-place change)".

    "" when one of those did, at a root (the gradient was given to backward), and where not every gradient was looked
    at.
    """
    call = running.call
    if not running.screened or any(running.given(key)) or key in call.roots():
        return ""
    given = index_of(call).consumers(call, key)
    names = [call.describe(consumer).unique_name for consumer in dict.fromkeys(consumer for consumer, _ in given)]
    if not names:
        return ""
    if len(names) > _NAMES:
        names[_NAMES - 1 :] = [f"{len(names) - _NAMES + 1} others"]
    summed = len({slot for _, slot in given}) < len(given)
    causes = "their sum, a tensor hook, or an in-place change" if summed else "a tensor hook, or an in-place change"
    return f"made between {', '.join(names)} and here ({causes})"


def saved_evidence(backend: Backend, graph: Graph, key: int) -> str:
    """What is not finite already among the tensors that the forward pass saved for a node; "" when all is finite.

    "saved tensor 'self' is already nan (16 of 16): the forward pass made it, this backward did not". A parameter is
    called by its name. Tensors of more than 4M elements, and all but the first 8, are not looked at.
    """
    try:
        spoilt, infinite = _findings(backend, graph, key)
        if len(spoilt) == 1:
            told = f"saved tensor {spoilt[0][0]} is already nan {spoilt[0][1]}: the forward pass made it"
            infinite.insert(0, f"{told}, this backward did not")
        elif spoilt:
            told = f"saved tensors {' and '.join(f'{name} {count}' for name, count in spoilt)} are already nan"
            infinite.insert(0, f"{told}: the forward pass made them, this backward did not")
        return "; ".join(infinite)
    except Exception:  # sparse, quantised: nothing to say, no harm
        return ""


def _findings(backend: Backend, graph: Graph, key: int) -> tuple[list[tuple[str, str]], list[str]]:
    """(name, "(3 of 16)") of every tensor with NaN; what to say of those that are infinite only."""
    spoilt: list[tuple[str, str]] = []
    infinite: list[str] = []
    tensors = [(saved.name, saved.value) for saved in graph.saved(key) if backend.is_tensor(saved.value)]
    for name, value in tensors[:_SAVED_TENSORS]:
        numel = backend.meta(value).numel
        if numel > _SAVED_ELEMENTS:
            continue
        nan, inf = backend.nonfinite(value)
        if nan:
            spoilt.append((_called(backend, name, value), f"({nan} of {numel})"))
        elif inf:
            infinite.append(f"saved tensor {_called(backend, name, value)} holds {inf} {_sign(backend, value)}")
    return spoilt, infinite


def _called(backend: Backend, name: str, value: Any) -> str:
    path = next((path for path, parameter in backend.parameters() if parameter is value), "")
    return f"{name!r}, parameter {path}," if path else repr(name)


def _sign(backend: Backend, value: Any) -> str:
    """ "inf", "-inf", or "inf and -inf"."""
    stats = backend.stats(value, exact=True, bins=1)
    return " and ".join(text for text, count in (("inf", stats.pos_inf), ("-inf", stats.neg_inf)) if count) or "inf"

"""Two losses of one iteration that share a graph: which optimizers train what is on either side of what they share."""

from __future__ import annotations

from adbg.engine.backends.base import BackwardCall
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.ledger import Ledger
from adbg.engine.graph.forward_origin import reached_from

TOGETHER, APART, CLEARED, TRAINED = "together", "apart", "cleared", "trained"


def parted_at(facts: Facts, call: BackwardCall, shared: int) -> str:
    """Of a generator and its critic, "apart": node ``shared`` was made of what one optimizer holds, and what other ones
    hold comes after it. "cleared": the former's gradients were cleared since the backward before, so that those of the
    first loss are of no use. "trained": it stepped since then, so that the first loss was for it. "together" where the
    same optimizer trains both sides, or none is known."""
    below = reached_from(call, shared)
    behind, before = _owners(facts, call, below), _owners(facts, call, set(call.order()) - below)
    if not behind or not before or behind & before:
        return TOGETHER
    if _between(facts, "stepped") & behind:
        return TRAINED
    return CLEARED if _between(facts, "zeroed") & behind else APART


def _owners(facts: Facts, call: BackwardCall, keys: set[int]) -> set[int]:
    """The optimizers that hold a leaf of these nodes."""
    saved = [each.value for key in keys if call.is_accumulate(key) for each in call.saved(key)]
    leaves = {id(value) for value in saved if value is not None}
    optimizers = Ledger.of(facts).optimizers
    return {key for key, each in optimizers.items() if any(id(held.ref()) in leaves for held in each.held)}


def _between(facts: Facts, what: str) -> set[int]:
    """The optimizers that did that between the last two backwards."""
    found: set[int] = set()
    begun = 0
    for moment in reversed(Ledger.of(facts).moments):
        begun += moment.what == "backward"
        if begun > 1:
            break
        if begun == 1 and moment.what == what:
            found.add(moment.optimizer)
    return found

"""Units of a layer that are switched off: all of their weights are exactly 0, as pruning and masks leave them."""

from __future__ import annotations

from typing import Any

from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.diagnosis.detectors.sizes.sizes import SHAPED
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.operator_names import plain_name

_MOST = 1 << 18  # elements of a weight that is read


def switched_off(facts: Facts, call: Any, layer: int, count: int) -> frozenset[int]:
    """Of the ``count`` units of the layer of that node; none where it is all of them, which is no pruning."""
    found: set[int] = set()
    for edge in call.edges(layer):
        key = edge.to
        if key is not None and not call.is_accumulate(key) and plain_name(call.name(key)) in SHAPED:
            key = next((each.to for each in call.edges(key) if each.to is not None), key)
        # The weight itself, or what it is multiplied with.
        if key is not None and (call.is_accumulate(key) or plain_name(call.name(key)) in ("mul", "multiply")):
            for saved in call.saved(key):
                found |= _zero_rows(facts, saved.value, count)
    return frozenset(found) if len(found) < count else frozenset()


def _zero_rows(facts: Facts, value: Any, count: int) -> set[int]:
    shape = facts.shape(value) if value is not None else ()
    size = 1
    for each in shape:
        size *= each
    if len(shape) < 2 or count not in (shape[0], shape[-1]) or size > _MOST:
        return set()
    read = values.numbers(facts.backend, value)
    if read is None:
        return set()
    # Paddle's linear layers have their units last.
    last = shape[0] != count or (facts.backend.name == "paddle" and len(shape) == 2)
    if last and shape[-1] != count:
        return set()
    inner = size // count
    rows = (read.flat[at::count] if last else read.flat[at * inner : (at + 1) * inner] for at in range(count))
    return {at for at, row in enumerate(rows) if not any(row)}

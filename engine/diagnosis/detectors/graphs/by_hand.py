"""Weights that get no gradient and change all the same: moving averages, codebooks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adbg.engine.diagnosis.detectors.training.bits import hash_of

if TYPE_CHECKING:
    from adbg.engine.diagnosis.facts import Facts

_MOST = 16  # tensors that are hashed in one look

IDLE = "their optimizer has not stepped yet, while another one has: right if they are trained later"
BY_HAND = (
    "their values change all the same, and no optimizer changes what has no gradient: right if they are updated by "
    "hand (a moving average, a codebook)"
)


@dataclass(slots=True)
class _Seen:
    hash: int
    looks: int = 1
    changes: int = 0

    @property
    def again(self) -> bool:
        """Weights that are loaded change once."""
        return self.changes >= 2 or self.changes == self.looks - 1 > 0


class ByHand:
    """``look`` at what has no gradient, at the end of a backward: an optimizer leaves it alone."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._seen: dict[int, _Seen] = {}  # by place

    def look(self, missing: Iterable[tuple[int, Any]]) -> None:
        for place, value in missing:
            known = self._seen.get(place)
            if known is None and len(self._seen) >= _MOST:
                continue
            now = hash_of(self._facts, value)
            if now is None:
                continue
            if known is None:
                self._seen[place] = _Seen(now)
                continue
            known.looks += 1
            known.changes += now != known.hash
            known.hash = now

    def changes(self, place: int) -> bool:
        """Of one among too many, whether the others do."""
        known = self._seen.get(place)
        return known.again if known is not None else any(each.again for each in self._seen.values())

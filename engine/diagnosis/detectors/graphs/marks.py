"""What the detectors of graphs remember of a tensor, for as long as it lives."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from adbg.engine.types import SourceLine

_MOST = 4000
What = TypeVar("What")


@dataclass(slots=True)
class Marked(Generic[What]):
    """What a tensor is: an outer difference, or the result of a softmax."""

    ref: Any
    what: What
    name: str
    line: SourceLine | None


class Marks(Generic[What]):
    def __init__(self) -> None:
        self._known: dict[int, Marked[What]] = {}
        self._most = _MOST

    def of(self, value: Any) -> Marked[What] | None:
        known = self._known.get(id(value))
        return known if known is not None and known.ref() is value else None

    def put(self, value: Any, what: What, name: str, line: SourceLine | None) -> None:
        if len(self._known) > self._most:
            self._known = {key: each for key, each in self._known.items() if each.ref() is not None}
            self._most = max(_MOST, 2 * len(self._known))  # of many that live: not looked through at each one more
        self._known[id(value)] = Marked(weakref.ref(value), what, name, line)

    def drop(self, value: Any) -> None:
        if self.of(value) is not None:
            del self._known[id(value)]

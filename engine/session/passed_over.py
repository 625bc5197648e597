"""Which backward calls have no node that a breakpoint can take, by the names of their nodes. Any thread."""

from __future__ import annotations

from collections.abc import Callable

_MOST = 256  # sets of names that are remembered: a training script has a few

Names = Callable[[str], bool]


class PassedOver:
    """Remembers which graphs have no node that breakpoints look for."""

    def __init__(self) -> None:
        self._names: Names | None = None
        self._known: set[frozenset[str]] = set()

    def look_for(self, names: Names | None) -> None:
        """What breakpoints take, where nothing but names matters; None: every call is looked into."""
        if names is not self._names:
            self._known = set()
            self._names = names

    @property
    def possible(self) -> bool:
        return self._names is not None

    def holds(self, kinds: frozenset[str]) -> bool:
        """Whether none of these names is looked for. 0.1 us for a set that was seen before."""
        names, known = self._names, self._known
        if kinds in known:
            return names is not None
        if names is None or any(map(names, kinds)):
            return False
        if len(known) < _MOST:
            known.add(kinds)
        return True

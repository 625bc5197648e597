"""Which backward calls have no node that a breakpoint can take, by the names of their nodes, or because one just like
them had none. Any thread."""

from __future__ import annotations

from collections.abc import Callable, Hashable

_MOST = 256  # sets of names that are remembered: a training script has a few

Names = Callable[[str], bool]


class PassedOver:
    """Remembers which graphs have no node that breakpoints look for."""

    def __init__(self) -> None:
        self._names: Names | None = None
        self._watching = False
        self._known: set[frozenset[str]] = set()
        self._plan: object = None
        self._alike: set[Hashable] = set()

    def look_for(self, names: Names | None, plan: object = None, watching: bool = False) -> None:
        """What breakpoints take, where nothing but names matters; None: every call is looked into. ``plan``: where what
        they take follows from a node's name, stack, module and leaf alone, what stands for it, until it changes.
        ``watching``: they also take gradients that are not finite, of any node."""
        if plan is not self._plan:
            self._alike = set()
            self._plan = plan
        self._watching = watching
        if names is not self._names:
            self._known = set()
            self._names = names

    def possible(self, watched: bool) -> bool:
        """``watched``: whoever asks looks for gradients that are not finite."""
        if self._watching:
            return watched
        return self._names is not None or self._plan is not None

    def holds(self, kinds: frozenset[str], alike: Hashable) -> bool:
        """Whether none of these names is looked for, or a call just like this one had nothing. 0.1 us for what was seen
        before."""
        names, known = self._names, self._known
        if names is None:
            return alike in self._alike if self._plan is not None else self._watching
        if kinds in known:
            return True
        if any(map(names, kinds)):
            return False
        if len(known) < _MOST:
            known.add(kinds)
        return True

    def learn(self, alike: Hashable, plan: object) -> None:
        """A call was looked into, and ``plan`` took no node of it."""
        found = self._alike  # before the question: another thread puts both in the place of those
        if plan is self._plan and alike is not None and len(found) < _MOST:
            found.add(alike)

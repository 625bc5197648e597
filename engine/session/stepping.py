"""Stepping as data: a ``Goal`` says where a thread is to stop next. Pure; any thread.

A goal is made from where the thread stands (``Place``), asked about every ``Arrival`` at a hook, and forgotten at the
first stop of any thread, whatever its reason. It also says which nodes must be hooked for it to be reached: nothing
else is hooked for stepping.

Calls are named by ``serial``, a number that the session gives to each backward call it sees. A *family* is an outermost
call with all that is nested in it; a nested call may run on another thread than its parent (torch changes thread past
depth 60), so the thread that counts is the one of the outermost call.
"""

from __future__ import annotations

import enum
import sys
from dataclasses import dataclass

from adbg.engine.types import Phase


class Kind(str, enum.Enum):
    """What was asked for."""

    STEP = "step"  # next node, into nested backward
    NEXT = "next"  # next node on this level or further out
    FINISH = "finish"  # after the node whose backward runs this call; at top level the end of this backward
    AFTER = "after"  # run the current node and stop behind it
    UNTIL = "until"  # a spec, matched by the session; here only the fallback


@dataclass(frozen=True, slots=True)
class Place:
    """Where a thread stands: in a call (``serial`` 0: in none, at a Python line), at ``key`` of it."""

    phase: Phase
    thread: int = 0  # of the outermost call
    serial: int = 0
    family: int = 0
    depth: int = 0
    key: int | None = None
    index: int = 0
    parent_serial: int = 0
    parent_key: int | None = None
    parent_index: int = 0


Arrival = Place  # at a hook; ``phase`` is BEGIN, BEFORE, AFTER or END


@dataclass(frozen=True, slots=True)
class Hooking:
    """What a goal needs hooked in one call: every node, or those at ``indices``."""

    every: bool = False
    indices: frozenset[int] = frozenset()


NOTHING = Hooking()
EVERY = Hooking(every=True)


@dataclass(frozen=True, slots=True)
class Goal:
    """Go on from ``start`` until ``kind`` is fulfilled."""

    kind: Kind
    start: Place

    def reached(self, at: Arrival) -> bool:
        """Whether the thread that arrived ``at`` a hook stops there."""
        if not self._mine(at):
            return False
        if self.kind is Kind.STEP:
            return at.phase is Phase.BEFORE
        if self.kind is Kind.NEXT:
            return at.phase is Phase.BEFORE and at.depth <= self.start.depth
        if self.kind is Kind.FINISH:
            return self._finished(at)
        if self.kind is Kind.AFTER:
            return self._behind(at)
        return False

    def hooking(self, at: Place) -> Hooking:
        """What must be hooked in the call of ``at``: one that runs when the goal is set, or a new one."""
        if not self._mine(at):
            return NOTHING
        if self.kind is Kind.STEP:
            return EVERY
        if self.kind is Kind.NEXT:
            return EVERY if at.depth <= self.start.depth else NOTHING
        if self.kind is Kind.FINISH:
            return self._hooking_finish(at)
        if self.kind is Kind.AFTER:
            return self._hooking_after(at)
        return NOTHING

    def _mine(self, at: Place) -> bool:
        """Other threads run freely; they count when the stepped thread ended, or the start was at a Python line."""
        start = self.start
        if start.serial == 0 or (start.family == at.family):
            return True
        return at.thread == start.thread or start.thread not in sys._current_frames()

    def _outside(self, at: Place) -> bool:
        """In a later backward call: the family of the start is over."""
        return at.family != self.start.family and at.phase is Phase.BEFORE

    def _inside(self) -> bool:
        """From a Python line in a node's own backward: its end is after the node, or, as torch takes no hook on a node
        that runs already, the next thing that its call does."""
        return self.start.phase is Phase.PYTHON and self.start.key is not None

    def _finished(self, at: Arrival) -> bool:
        start = self.start
        if self._inside():
            return self._behind(at)
        if start.depth == 0 or start.parent_key is None:
            return self._outside(at) or (at.phase is Phase.END and at.serial == start.serial)
        if at.serial == start.parent_serial:
            # Behind the parent node; should its hook not come, the next thing that its call does.
            return (at.phase is Phase.AFTER and at.key == start.parent_key) or at.phase in (Phase.BEFORE, Phase.END)
        return self._outside(at)

    def _behind(self, at: Arrival) -> bool:
        start = self.start
        if start.phase is not Phase.BEFORE and not self._inside():
            return at.phase is Phase.AFTER and (at.depth <= start.depth or at.family != start.family)
        if at.serial == start.serial:
            return (at.phase is Phase.AFTER and at.key == start.key) or at.phase in (Phase.BEFORE, Phase.END)
        return self._outside(at)

    def _hooking_finish(self, at: Place) -> Hooking:
        start = self.start
        if self._inside():
            return self._hooking_after(at)
        if at.family != start.family:
            return EVERY
        if at.serial == start.parent_serial and start.depth > 0:
            return Hooking(indices=frozenset((start.parent_index,))) if start.parent_index else EVERY
        return NOTHING

    def _hooking_after(self, at: Place) -> Hooking:
        start = self.start
        if self._inside() and at.family == start.family:
            return EVERY if at.serial == start.serial else NOTHING
        if start.phase is Phase.BEFORE and at.family == start.family:
            if at.serial != start.serial:
                return NOTHING
            return Hooking(indices=frozenset((start.index,))) if start.index else EVERY
        return EVERY if at.depth <= start.depth or at.family != start.family else NOTHING

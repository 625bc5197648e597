"""What the breakpoint table is offered and what it answers. On autograd threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from adbg.engine.errors import CommandError
from adbg.engine.outside import own
from adbg.engine.session.breakpoints.grammar import SpecKind
from adbg.engine.types import NodeInfo, Phase, SourceLine, StopReason

Evaluate = Callable[[str], Any]
_NOTHING = NodeInfo(key=0, name="", unique_name="")


LeafName = tuple[str, int]


class Leaves(Protocol):
    """The leaves of a call by name, as ``graph.forward_origin`` finds them."""

    def reached(self, key: int) -> frozenset[LeafName]: ...

    def spoilt(self, key: int) -> frozenset[LeafName]: ...


class HitEvent:
    """Something that happened, offered to the table. Costly facts are callables, asked at most once and when needed.

    ``phase`` says what it is: BEFORE/AFTER a node, BEGIN/END of a backward call, ERROR in one. ``nonfinite`` is
    (NaN, infinite) elements among the gradients that this event shows, ``inherited`` among those that these were made
    of: after a node its incoming ones, before it what its consumers gave. ``family``: numbers of the calls around, the
    outermost first, and ``backward`` itself. ``key`` names the node to ``leaves``.
    """

    __slots__ = (
        "_inherited", "_node", "_nonfinite", "_stack", "backward", "family", "index", "key", "leaves", "phase",
    )  # fmt: skip

    def __init__(
        self,
        phase: Phase,
        backward: int,
        index: int = 0,
        node: Callable[[], NodeInfo] | NodeInfo | None = None,
        stack: Callable[[], Sequence[SourceLine]] | Sequence[SourceLine] = (),
        nonfinite: Callable[[], tuple[int, int]] | tuple[int, int] = (0, 0),
        inherited: Callable[[], tuple[int, int]] | tuple[int, int] = (0, 0),
        family: tuple[int, ...] = (),
        leaves: Leaves | None = None,
        key: int | None = None,
    ) -> None:
        self.phase = phase
        self.backward = backward
        self.index = index
        self._node = node
        self._stack = stack
        self._nonfinite = nonfinite
        self._inherited = inherited
        self.family = family or (backward,)
        self.leaves = leaves
        self.key = key

    @property
    def node(self) -> NodeInfo:
        if callable(self._node):
            self._node = self._node()
        return self._node or _NOTHING

    @property
    def stack(self) -> Sequence[SourceLine]:
        if callable(self._stack):
            self._stack = self._stack()
        return self._stack

    @property
    def nonfinite(self) -> tuple[int, int]:
        if callable(self._nonfinite):
            self._nonfinite = self._nonfinite()
        return self._nonfinite

    @property
    def counted(self) -> bool:
        """Whether ``nonfinite`` was asked for."""
        return not callable(self._nonfinite)

    @property
    def inherited(self) -> tuple[int, int]:
        if callable(self._inherited):
            self._inherited = self._inherited()
        return self._inherited

    @property
    def spoilt_leaves(self) -> frozenset[LeafName]:
        """Leaves that are not finite, of those that the gradient of this node flows to."""
        return self.leaves.spoilt(self.key) if self.leaves is not None and self.key is not None else frozenset()

    @property
    def reached_leaves(self) -> frozenset[LeafName]:
        return self.leaves.reached(self.key) if self.leaves is not None and self.key is not None else frozenset()


@dataclass(frozen=True, slots=True)
class Hit:
    """One breakpoint that took an event. ``error``: the condition raised (one line), and that stops."""

    id: int
    spec: str
    reason: StopReason
    trace: bool = False
    temporary: bool = False  # and therefore removed now
    error: str = ""


def condition_holds(conditions: Sequence[str], evaluate: Evaluate) -> tuple[bool, str]:
    """(true, "") or (False, error). The truth of the value is taken here: of a tensor it may raise."""
    for text in conditions:
        try:
            if not evaluate(text):
                return False, ""
        except CommandError as error:
            return False, f"condition {text!r}: {error.message}"
        except own(Exception) as error:
            return False, f"condition {text!r}: {type(error).__name__}: {error}"
    return True, ""


_REASONS = {
    SpecKind.BACKWARD: StopReason.BACKWARD,
    SpecKind.BACKWARD_END: StopReason.BACKWARD,
    SpecKind.ERROR: StopReason.ERROR,
    SpecKind.NAN: StopReason.NAN,
    SpecKind.INF: StopReason.INF,
}


def stop_reason(kind: SpecKind, event: HitEvent) -> StopReason:
    if kind is SpecKind.NONFINITE:
        return StopReason.NAN if event.nonfinite[0] else StopReason.INF
    return _REASONS.get(kind, StopReason.BREAKPOINT)

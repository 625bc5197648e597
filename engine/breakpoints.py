"""The breakpoint table: which events of a backward pass are hits (L2, stdlib only).

Written by the reader thread (``replace``), read by autograd threads in their hooks (``armed``, ``plan``, ``check``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import Graph, HookPlan
from adbg.engine.protocol import BreakpointRequest, BreakpointState
from adbg.engine.specs import Spec
from adbg.engine.types import NodeInfo, Phase, SourceLine, StopReason

FILTER_IDS = {"error": -1, "nan": -2, "inf": -3, "nonfinite": -4, "backward": -5}

Evaluate = Callable[[str], Any]


class HitEvent:
    """Something that happened, offered to the table. Costly facts are callables, asked at most once and only when needed.

    ``phase`` says what it is: BEFORE/AFTER a node, BEGIN/END of a backward call, ERROR in one.
    """

    def __init__(
        self,
        phase: Phase,
        backward: int,
        index: int = 0,
        node: Callable[[], NodeInfo] | NodeInfo | None = None,
        stack: Callable[[], Sequence[SourceLine]] | Sequence[SourceLine] = (),
        nonfinite: Callable[[], tuple[int, int]] | tuple[int, int] = (0, 0),
    ) -> None:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Hit:
    """One breakpoint that took an event. ``error``: the condition raised (one line); it stops there."""

    id: int
    spec: str
    reason: StopReason
    trace: bool = False
    temporary: bool = False  # and therefore removed now
    error: str = ""


class BreakpointTable:
    """All breakpoints of one agent, thread-safe."""

    @property
    def armed(self) -> bool:
        """True while an enabled breakpoint needs backward calls to be reported (``error`` alone does not)."""
        raise NotImplementedError

    def replace(self, requests: Sequence[BreakpointRequest]) -> list[BreakpointState]:
        """Replace the whole list; hit counts survive by id. Bad specs come back ``verified`` False and are not armed."""
        raise NotImplementedError

    def set_filters(self, filters: Sequence[str]) -> list[BreakpointState]:
        """setExceptionBreakpoints: entries with the reserved ids FILTER_IDS. ``error`` is on until told otherwise."""
        raise NotImplementedError

    def plan(self, backward: int = 0) -> HookPlan:
        """What must be hooked for the enabled breakpoints (in call ``backward``; 0: in any)."""
        raise NotImplementedError

    def check(self, event: HitEvent, evaluate: Evaluate) -> list[Hit]:
        """Hits of ``event``. ``evaluate(text)`` gives the value of a condition at this point; it may raise."""
        raise NotImplementedError

    def match(self, graph: Graph) -> dict[int, int]:
        """Count the nodes of ``graph`` that each breakpoint takes (by id), kept for ``states``; a spec that takes none gets a
        message with the closest names. Walks the graph: not for the hot path."""
        raise NotImplementedError

    def matching_ids(
        self, info: NodeInfo, stack: Callable[[], Sequence[SourceLine]] | Sequence[SourceLine], index: int
    ) -> tuple[int, ...]:
        """Ids of the enabled breakpoints that take this node (to mark its row)."""
        raise NotImplementedError

    def states(self) -> list[BreakpointState]:
        """Of the client's list, in its order (filters not included)."""
        raise NotImplementedError

    def take_changed(self) -> list[BreakpointState]:
        """States whose hits, matches or message changed since they were last returned, for ``breakpoint`` events."""
        raise NotImplementedError

    def reset_hits(self, id: int = 0) -> None:
        """Hit counts back to 0, of one breakpoint or (0) of all."""
        raise NotImplementedError


def plan_for(specs: Sequence[Spec]) -> HookPlan:
    """The union of what ``specs`` need hooked (also for ``until``)."""
    raise NotImplementedError

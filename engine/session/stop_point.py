"""Where a thread is parked, and what is known of the backward calls around it. Owned by the parked thread."""

from __future__ import annotations

import types
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from adbg.engine.backends.base import Backend, BackwardCall, Graph
from adbg.engine.types import NodeStop

if TYPE_CHECKING:
    from adbg.engine.session.kept import KeptGradients


@dataclass(slots=True)
class Ran:
    """What was seen of one executed node while it was hooked."""

    us: float | None = None
    norm: float | None = None  # of grad_outputs[0]
    nonfinite: bool = False
    grad_inputs: tuple[str, ...] = ()  # "[2, 4] f32 norm 0.02134", texts only: no tensor is kept alive


@dataclass(slots=True)
class CallState:
    """The session's view of one running backward call."""

    call: BackwardCall
    ran: dict[int, Ran] = field(default_factory=dict)  # by key
    # key -> per outgoing gradient (NaN, infinite) elements, as they were passed on; only where there are some
    spoilt: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    position: int = 0  # index of the current node, or of the last one seen, 0 at begin
    started_ns: int = 0
    parked_ns: int = 0  # that its thread stood at stops that are over
    looked_at: bool = False  # a thread stopped while it ran
    stopped_ns: int = 0  # when the stop began at which it stands; 0 at none
    _index: dict[int, int] | None = None

    def ran_ns(self, now: int) -> int:
        """Since it began, without the time that its thread stood at stops."""
        return (self.stopped_ns or now) - self.started_ns - self.parked_ns

    def index_of(self, key: int) -> int:
        """Position (from 1) of ``key`` in the predicted execution order; 0 when it is not in it."""
        if self._index is None:
            self._index = {k: i for i, k in enumerate(self.call.order(), 1)}
        return self._index.get(key, 0)


@dataclass(slots=True)
class PausedPoint:
    """All that the answers at a stop are made of. ``grad_outputs``/``grad_inputs`` are lists: an edit replaces an
    entry, and the session hands the edited lists back to the engine. ``calls`` has the enclosing calls, outermost
    first, this one last."""

    stop: NodeStop
    thread: int
    backend: Backend | None
    graph: Graph | None  # the call, or the graph so far at adbg.breakpoint()
    calls: list[CallState] = field(default_factory=list)
    key: int | None = None
    grad_outputs: list[Any] | None = None
    grad_inputs: list[Any] | None = None
    edited: bool = False
    frame: types.FrameType | None = None  # innermost live frame of the user's code on this thread
    error: BaseException | None = None
    kept: KeptGradients | None = None  # gradients of earlier stops
    around: int | None = None  # at adbg.breakpoint() inside a node's Python code: that node, in the last of ``calls``

    @property
    def state(self) -> CallState | None:
        return self.calls[-1] if self.calls else None

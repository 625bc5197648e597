"""Breakpoints: what a client sets, and what the agent answers about each."""

from __future__ import annotations

from dataclasses import dataclass

from adbg.engine.protocol.messages.registry import event, request
from adbg.engine.types import SpecKind


@dataclass(frozen=True, slots=True)
class BreakpointRequest:
    """``name`` is a whole spec of cli.md with its suffixes ("Bmm* after if norm(grad_outputs[0]) > 1 every 2").

    ``condition`` and ``hitCondition`` come from DAP clients and from the ``condition``/``ignore`` commands and are
    applied on top; ``hitCondition`` is "N" (ignore the first N-1 hits), "% N" (every N).
    ``id`` is chosen by the client and kept across calls, so that hit counts survive a changed list.
    """

    name: str
    id: int = 0
    condition: str = ""
    hitCondition: str = ""
    enabled: bool = True
    temporary: bool = False
    trace: bool = False  # a tracepoint: emits adbg/trace, does not stop


@dataclass(frozen=True, slots=True)
class BreakpointState:
    """``verified`` false: the spec is bad (message says why). ``matches``: nodes matching in the current graph,
    None when there is none. A good spec that matches nothing is kept and ``message`` names the closest names.
    ``kind``: what the spec looks at, None of a bad one; ``file`` and ``line``: of the kind line. ``met``: some node so
    far was at its place, whatever its condition said; None until it was compared with a whole backward."""

    id: int
    verified: bool
    message: str = ""
    spec: str = ""  # normalised
    matches: int | None = None
    hits: int = 0
    enabled: bool = True
    temporary: bool = False
    trace: bool = False
    kind: SpecKind | None = None
    file: str = ""
    line: int = 0
    met: bool | None = None


@dataclass(frozen=True, slots=True)
class Breakpoints:
    breakpoints: list[BreakpointState]


@request("setFunctionBreakpoints", Breakpoints)
@dataclass(frozen=True, slots=True)
class SetFunctionBreakpoints:
    """Replaces the whole list (DAP); entries are matched by ``id`` to keep their hit counts. Works while running:
    a changed list acts from the next node hook at a stop, else from the next backward call."""

    breakpoints: list[BreakpointRequest]


@request("setExceptionBreakpoints", Breakpoints)
@dataclass(frozen=True, slots=True)
class SetExceptionBreakpoints:
    """filters among nan, inf, nonfinite, error, backward. ``error`` is on until a client says otherwise."""

    filters: list[str]


@event("breakpoint")
@dataclass(frozen=True, slots=True)
class BreakpointChanged:
    """Sent when matches, hits, message or enabled of a breakpoint changed (a temporary one that was hit: reason
    "removed"). "unmatched": after the first outermost backward that it was compared with, when no node of it was at its
    place; the message names the closest ones."""

    reason: str
    breakpoint: BreakpointState

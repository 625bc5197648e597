"""VLOG for frameworks that have none of their own (L2, stdlib only): records in glog's grammar, written by adbg itself.

Called on autograd threads, between the framework's nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adbg.engine.backends.base import Backend, BackwardCall

MODULES = ("calls", "backward", "nodes", "pylayer")


class Narrator:
    """Writes VLOG records through ``write`` (one record with its newline per call). Levels may change at any time."""

    enabled: bool  # any level of 3 or more is on: ask this before anything else

    def __init__(self, write: Callable[[str], None]) -> None:
        raise NotImplementedError

    def set_levels(self, text: str) -> dict[str, int]:
        """"6", "backward=6,nodes=5", "*=3", "off", "" to only ask. Returns the levels ("*" the global one). CommandError on bad text."""
        raise NotImplementedError

    @property
    def wants_nodes(self) -> bool:
        """True when node records are on, so that every node must be hooked."""
        raise NotImplementedError

    def backward_begin(self, call: BackwardCall) -> None:
        raise NotImplementedError

    def node_begin(
        self, call: BackwardCall, key: int, index: int, grad_outputs: tuple[Any, ...], backend: Backend | None
    ) -> None:
        raise NotImplementedError

    def node_end(
        self, call: BackwardCall, key: int, index: int, grad_inputs: tuple[Any, ...], backend: Backend | None,
        us: float | None = None,
    ) -> None:
        raise NotImplementedError

    def backward_end(self, call: BackwardCall, error: BaseException | None = None) -> None:
        raise NotImplementedError

    def note(self, level: int, module: str, text: str) -> None:
        """A record of adbg's own ("breakpoint 1 hit: ..."), at the depth of this thread."""
        raise NotImplementedError

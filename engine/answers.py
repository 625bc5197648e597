"""The answers at a stop: a registry from command to function over one ``PausedPoint`` (L4).

Everything here runs on the parked thread, called by the session; no thread, no socket, no framework. One ``Answers`` lives
from a stop until the program goes on, and with it the ids of its frames and the references of its variables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from adbg.engine.backends.base import Graph
from adbg.engine.errors import ProtocolError
from adbg.engine.point import PausedPoint
from adbg.engine.protocol import InfoBody

BreakpointsOf = Callable[[Graph, Sequence[int]], Mapping[int, tuple[int, ...]]]
"""(graph, keys of one page) -> breakpoint ids by key; keys without a breakpoint may be left out."""


class Answers:
    """Answers of one stop.

    Args:
        point: where the thread is parked. Edits replace entries of its ``grad_outputs`` / ``grad_inputs`` and set ``edited``.
        evaluator: evaluates expressions, executes statements and assigns names in a frame (default: ``adbg.engine.evaluate``).
        breakpoints: ids of the breakpoints at the nodes of a graph page.
        tables: ``adbg/info`` tables that the session owns ("breakpoints", "threads", ...): name -> function. They win over
            the tables made here.
    """

    def __init__(
        self,
        point: PausedPoint,
        evaluator: Any = None,
        breakpoints: BreakpointsOf | None = None,
        tables: Mapping[str, Callable[[], InfoBody]] | None = None,
    ) -> None:
        self.point = point

    @staticmethod
    def commands() -> frozenset[str]:
        """The commands that ``dispatch`` answers."""
        return frozenset()

    def dispatch(self, command: str, arguments: Any) -> Any:
        """The response body for ``arguments`` (the dataclass that ``protocol.REQUESTS`` has for ``command``).

        Raises:
            AdbgError: with what happened, why, and what next.
        """
        raise ProtocolError(f"no answer to {command!r} at a stop")

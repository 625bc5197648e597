"""What adbg has to say to the user of its own accord, once each. Any thread; nothing here blocks or raises.

Texts have no "adbg: " in front: the front end that prints them beside the program's output puts it there.
"""

from __future__ import annotations

from typing import Any, Protocol

from adbg.engine.protocol.messages import Output

_MOST = 100
_CUT = (
    "a backward has more than {count:,} nodes: the rest runs unseen, and neither breakpoints nor nan, inf and "
    "nonfinite see anything there; `adbg doctor` says why. To look at the rest, call backward on a part of the graph"
)


class Outlet(Protocol):
    """Where messages go. Never blocks, never raises."""

    def event(self, body: Any, droppable: bool = False) -> None: ...


class Problems:
    """Each different text is said once, and no more than 100 of them."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._said: set[str] = set()

    def say(self, text: str) -> None:
        """A line, as often as it comes."""
        self._outlet.event(Output(text, "important"))

    def problem(self, text: str) -> None:
        """Something that the user must know."""
        self._once(f"{text}\n")

    def cut_graph(self, count: int) -> None:
        """Of a graph only ``count`` nodes were walked."""
        self.problem(_CUT.format(count=count))

    def defect(self, what: str, error: BaseException) -> None:
        """Something of adbg's own failed; the program runs on."""
        self._once(f"{what}: {type(error).__name__}: {error}\n")

    def _once(self, text: str) -> None:
        if text not in self._said and len(self._said) < _MOST:
            self._said.add(text)
            self.say(text)

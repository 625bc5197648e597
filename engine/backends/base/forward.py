"""How long the operators of a forward took, by the node that each of them made."""

from __future__ import annotations

import abc

from adbg.engine.backends.base.graph import Graph


class ForwardTimes(abc.ABC):
    """What one forward took. Holds no tensor, and the graph that it was asked about last: to be dropped behind that."""

    @abc.abstractmethod
    def of(self, graph: Graph, key: int) -> float | None:
        """Microseconds of the operator that made a node, what timing it cost subtracted; None where it was not
        timed: a leaf, a node of another thread or of a recomputation, one whose operator cannot be told."""


class ForwardTimer(abc.ABC):
    """Times one forward at a time, of one thread. Between ``end`` and the next ``begin`` the framework is as without
    it. No operator runs."""

    #: Why the forward that was timed last has no times; "" if it has.
    problem = ""

    @abc.abstractmethod
    def begin(self) -> bool:
        """Time what this thread calls from now on; False where that cannot be (``problem``)."""

    @abc.abstractmethod
    def end(self) -> ForwardTimes | None:
        """No more: on the thread that began it. None where nothing was begun, or the program itself ended it."""

    @abc.abstractmethod
    def abandon(self) -> None:
        """``end``, and nobody wants to know. In a forked child, too: then on the thread that forked."""

"""Which nodes torch made between two moments, also those that no loss reaches.

Every node but an accumulate node takes a number when it is made, counted per thread: an interval of numbers is what a
thread made meanwhile. While forward stacks are on the stack of every node is kept beside its number for a while (weakly
known: the node itself is not held). Made and closed on the script's thread or on "adbg-reader"; the listener runs on
the threads of the forward.
"""

from __future__ import annotations

import collections
import linecache
import threading
from collections.abc import Sequence

from adbg.engine.backends.base import CreationWatch, Graph, Stray
from adbg.engine.backends.torch import private
from adbg.engine.backends.torch.stacks import ForwardTrace, Stacks
from adbg.engine.errors import Unsupported

MOST_KEPT = 20_000  # stacks, 1.6 kB each at a depth of 28 frames: 32 MB


class Creations:
    """The watches that are open, behind the one tap of the stacks."""

    def __init__(self, stacks: Stacks) -> None:
        self.stacks = stacks
        self._open: list[TorchWatch] = []
        self._lock = threading.Lock()

    def watch(self) -> TorchWatch:
        """Raises Unsupported where torch does not tell its sequence number."""
        if private.next_sequence is None:
            raise Unsupported("this torch does not tell its sequence number", "see adbg doctor")
        watch = TorchWatch(self)
        with self._lock:
            self._open = [*self._open, watch]
            self.stacks.tap(self._made)
        return watch

    def drop(self, watch: TorchWatch) -> None:
        with self._lock:
            self._open = [other for other in self._open if other is not watch]
            if not self._open:
                self.stacks.tap(None)

    def _made(self, trace: ForwardTrace) -> None:
        """In the script's forward, for every node: 0.4 us."""
        assert private.next_sequence is not None
        number, thread = private.next_sequence() - 1, threading.get_ident()
        for watch in self._open:
            watch.made.append((number, thread, trace))


class TorchWatch(CreationWatch):
    """See ``CreationWatch``. ``made``: (number, thread, stack) in order of making; an accumulate node, which takes no
    number, comes after the node it was made for and carries that node's."""

    def __init__(self, creations: Creations) -> None:
        self.made: collections.deque[tuple[int, int, ForwardTrace]] = collections.deque(maxlen=MOST_KEPT)
        self._creations = creations
        self._thread = threading.get_ident()
        self._first = _now()
        self._end: int | None = None
        self._complete = creations.stacks.on

    def close(self) -> None:
        if self._end is None:
            self._end = _now() if threading.get_ident() == self._thread else 1 << 63
            self._creations.drop(self)

    def release(self) -> None:
        self.close()
        self.made.clear()

    def restart(self) -> None:
        self.made.clear()

    def holds(self, graph: Graph, key: int) -> bool:
        number = private.sequence(graph.node(key))
        end = self._end if self._end is not None else _now()
        return number is not None and self._first <= number < end

    def strays(self, graph: Graph) -> tuple[Sequence[Stray], str]:
        known = {private.sequence(graph.node(key)) for key in graph.order()}
        if not self._complete:
            return self._uncounted(known)
        found: dict[tuple[int, int], ForwardTrace] = {}
        for number, thread, trace in list(self.made):
            if number not in known and number >= 0:
                found.setdefault((thread, number), trace)
        lines = self._creations.stacks.user_lines(list(found.values()))
        strays = []
        for frames in lines:
            line = frames[0] if frames else None
            text = linecache.getline(line.file, line.line).strip() if line is not None else ""
            strays.append(Stray(text or "a node that torch made by itself", frames))
        full = f"only the last {MOST_KEPT:,} nodes made were kept; " if len(self.made) == MOST_KEPT else ""
        return strays, full + "ops that need no gradient make no node and are not known"

    def _uncounted(self, known: set[int | None]) -> tuple[Sequence[Stray], str]:
        end = self._end if self._end is not None else _now()
        missing = (end - self._first) - sum(1 for n in known if n is not None and self._first <= n < end)
        text = f"{missing} more nodes were made here that this graph does not have; " if missing > 0 else ""
        return (), text + "forward stacks were off, so ops without a part in the loss are not known"


def _now() -> int:
    assert private.next_sequence is not None
    return int(private.next_sequence())

"""Which nodes Paddle made between two moments, also where no loss reaches them.

Paddle numbers no node and does not report that it makes one. But while forward stacks are on it asks for a text for
every operator and keeps it on the node (``native.texts``). While a watch is open, the thread's nodes get one more line
in that text, a comment, which says which watch made them. Runs on the threads of the forward; opened and closed on the
script's thread or on "adbg-reader".
"""

from __future__ import annotations

import itertools
import linecache
import threading
from collections.abc import Sequence

from adbg.engine.backends.base import CreationWatch, Graph, Stray
from adbg.engine.backends.paddle.native import symbols
from adbg.engine.backends.paddle.stacks import Stacks
from adbg.engine.errors import Unsupported
from adbg.engine.types import SourceLine

MOST_KEPT = 20_000  # different stacks

_Frames = tuple[SourceLine, ...]


class Creations:
    """The watches that are open."""

    def __init__(self, stacks: Stacks) -> None:
        self.stacks = stacks
        self._numbers = itertools.count(1)

    def watch(self) -> PaddleWatch:
        """Raises Unsupported where stacks are off or nodes cannot be read."""
        if symbols.native() is None:
            raise Unsupported(f"this Paddle's nodes cannot be read ({symbols.native_problem()})", "see adbg doctor")
        if not self.stacks.on:
            raise Unsupported("forward stacks are off", "stacks on")
        watch = PaddleWatch(self, next(self._numbers))
        self.stacks.texts.listen(watch.note)
        self.stacks.hold_texts(True)
        return watch

    def drop(self, watch: PaddleWatch) -> None:
        self.stacks.texts.forget(watch.note)
        self.stacks.hold_texts(False)


class PaddleWatch(CreationWatch):
    """See ``CreationWatch``. ``holds`` is for the thread that made it; ``strays`` for all."""

    def __init__(self, creations: Creations, number: int) -> None:
        self._creations = creations
        self._thread = threading.get_ident()
        self._marker = f"  # made in adbg's region {number}\n"
        self._made: dict[str, None] = {}
        self._closed = False

    def note(self, lines: list[str]) -> None:
        """An operator is called: in the script's forward."""
        if len(self._made) < MOST_KEPT:
            self._made["".join(lines)] = None
        if threading.get_ident() == self._thread:
            lines.append(self._marker)

    def close(self) -> None:
        closed, self._closed = self._closed, True
        if not closed:
            self._creations.drop(self)

    def release(self) -> None:
        self.close()
        self._made.clear()

    def restart(self) -> None:
        self._made.clear()

    def holds(self, graph: Graph, key: int) -> bool:
        native = symbols.native()
        return native is not None and self._marker in native.trace(graph.address(key))

    def strays(self, graph: Graph) -> tuple[Sequence[Stray], str]:
        """By line: an operator counts as part of the loss when the graph has a node of the same stack, or of the
        PyLayer whose forward called it."""
        known: set[_Frames] = set()
        layers: set[_Frames] = set()
        for key in graph.order():
            frames = tuple(graph.forward_stack(key)[0])
            known.add(frames)
            if graph.is_custom(key):
                layers.add(frames)
        found: dict[_Frames, None] = {}
        for text in list(self._made):
            frames = self._creations.stacks.parsed(text)
            if frames and frames not in known and not any(frames[i:] in layers for i in range(1, len(frames))):
                found[frames] = None
        full = f"only the first {MOST_KEPT:,} stacks were kept; " if len(self._made) >= MOST_KEPT else ""
        note = "paddle tells of operators by line: a line of which a part is in the graph is not marked"
        return [Stray(_source(frames[0]), frames) for frames in found], full + note


def _source(line: SourceLine) -> str:
    return linecache.getline(line.file, line.line).strip() or "an operator"

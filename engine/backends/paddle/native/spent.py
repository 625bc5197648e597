"""Which graphs a finished backward has used up. Filled on the threads that call backward, asked on the parked thread.

Paddle shows nothing of what a node saved, so the tensors that a backward without ``retain_graph`` began at are
remembered, weakly, with the node that they had then. Nodes below them have run with them. What ran before adbg was
there, and what a tensor that is gone began, is not known; ``paddle.grad`` runs a part of a graph, and is not reported.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from adbg.engine.backends.paddle.native import symbols

_MOST = 256  # roots of the latest backward calls; a training script keeps a few of the last iteration's


class SpentRoots:
    """The tensors that finished backward calls began at, while somebody else keeps them."""

    def __init__(self) -> None:
        self._latest: deque[tuple[weakref.ref[Any], int]] = deque(maxlen=_MOST)  # tensor, address of its node
        self.more: Callable[[], Sequence[tuple[weakref.ref[Any], int]]] = tuple  # what the extension has seen meanwhile

    def add(self, tensors: Sequence[Any]) -> None:
        """A backward from ``tensors`` ended well and retained nothing (0.5 us each)."""
        native = symbols.native()
        if native is None:
            return
        self._latest.extend(self.more())
        while self._latest and self._latest[0][0]() is None:  # usually the last iteration's, gone by now
            self._latest.popleft()
        for tensor in tensors:
            self._latest.append((weakref.ref(tensor), native.leaf_node(tensor)))

    def alive(self) -> list[Any]:
        """Those that are there still, and have the node of then."""
        self._latest.extend(self.more())
        known = (tensor() for tensor, _ in list(self._latest))
        return self.among([tensor for tensor in known if tensor is not None])

    def among(self, tensors: Sequence[Any]) -> list[Any]:
        """Those of ``tensors`` that a backward began at and that have the node of then still (an operation in place
        gives a tensor another one)."""
        native = symbols.native()
        if native is None:
            return []
        self._latest.extend(self.more())
        latest = {id(known): node for known, node in ((known(), node) for known, node in list(self._latest))}
        return [tensor for tensor in tensors if latest.get(id(tensor)) == native.leaf_node(tensor)]

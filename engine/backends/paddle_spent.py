"""Which graphs a finished backward has used up. Filled on the threads that call backward, asked on the parked thread.

Paddle shows nothing of what a node saved, so the tensors that a backward without ``retain_graph`` began at are
remembered, weakly, with the node that they had then. Nodes below them have run with them. What ran before adbg was
there, and what a tensor that is gone began, is not known; ``paddle.grad`` runs a part of a graph, and is not told of.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from adbg.engine.backends import paddle_private as private


class SpentRoots:
    """The tensors that finished backward calls began at, while somebody else keeps them."""

    def __init__(self) -> None:
        self._tensors: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._nodes: dict[int, int] = {}  # id of a tensor -> address of its node

    def add(self, tensors: Sequence[Any]) -> None:
        """A backward from ``tensors`` ended well and retained nothing (6 us each)."""
        native = private.native()
        if native is None:
            return
        for tensor in tensors:
            self._tensors[id(tensor)] = tensor
            self._nodes[id(tensor)] = native.leaf_node(tensor)
        if len(self._nodes) > 2 * len(self._tensors) + 64:
            self._nodes = {key: node for key, node in self._nodes.items() if key in self._tensors}

    def among(self, tensors: Sequence[Any]) -> list[Any]:
        """Those of ``tensors`` that a backward began at and that have the node of then still (an operation in place
        gives a tensor another one)."""
        native = private.native()
        if native is None:
            return []
        return [
            tensor
            for tensor in tensors
            if self._tensors.get(id(tensor)) is tensor and self._nodes.get(id(tensor)) == native.leaf_node(tensor)
        ]

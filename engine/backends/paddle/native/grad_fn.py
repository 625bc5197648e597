"""The node that made a tensor, without Paddle's leak. Runs on any thread, under Python's lock.

``tensor.grad_fn`` of Paddle 3.3.1 takes a reference to the Python object of the node that is never given back, so
every node that was looked at stays, with all nodes below it and what their PyLayers saved: 3 kB a node and backward
(75 page faults a backward of 100 nodes). Whether this Paddle does so is counted on the first node that comes by, and
what it took too much is given back.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

_TRIES = 8
_give_back = ctypes.pythonapi.Py_DecRef
_give_back.argtypes, _give_back.restype = [ctypes.py_object], None
_leaks: list[bool] = []


def node_of(tensor: Any) -> Any:
    """``tensor.grad_fn``: None where no node made it. 0.5 us."""
    node = tensor.grad_fn
    if node is not None and (_leaks[0] if _leaks else _counted(tensor, node)):
        _give_back(node)
    return node


def _counted(tensor: Any, node: Any) -> bool:
    """Whether every look takes a reference. A count that another thread disturbed decides nothing: too many given back
    would be worse than a leak."""
    before = sys.getrefcount(node)
    for _ in range(_TRIES):
        tensor.grad_fn  # noqa: B018
    taken = sys.getrefcount(node) - before
    if taken == _TRIES:
        _leaks[:] = [True]
        for _ in range(_TRIES):
            _give_back(node)
        return True
    if taken == 0:
        _leaks[:] = [False]
    return False

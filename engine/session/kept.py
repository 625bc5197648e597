"""Copies of the gradients of the last stops, so that one step too far does not lose them.

Made when the program leaves a stop at a node, on the host, within a budget of bytes and stops; dropped when their
backward ends, and oldest first. Any thread: one may stop while the backward of another ends, or the client disconnects.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import Backend, Graph
from adbg.engine.outside import own
from adbg.engine.protocol.rendezvous import KEEP
from adbg.engine.session.stop_point import PausedPoint

STOPS = 200
KINDS = ("grad_outputs", "grad_inputs")

_Place = tuple[str, int, int]  # whose call, its number, key of the node


def _place(graph: Graph, key: int) -> _Place:
    return type(graph).__module__, getattr(graph, "number", 0), key


class _Missing:
    def __repr__(self) -> str:
        return "not kept"


MISSING = _Missing()


@dataclass(frozen=True, slots=True)
class _Copy:
    value: Any  # None: undefined
    nbytes: int


class KeptGradients:
    """``limit``: bytes; 0 keeps nothing."""

    def __init__(self, limit: int = KEEP) -> None:
        self.limit = limit
        self._kept: OrderedDict[_Place, tuple[dict[str, list[_Copy]], int]] = OrderedDict()
        self.bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, point: PausedPoint) -> None:
        """The gradients of a stop that ends, as they are passed on. What cannot be copied (a sparse tensor of some
        kind) is left out: nothing is raised."""
        backend, graph, key = point.backend, point.graph, point.key
        if not self.limit or backend is None or graph is None or key is None:
            return
        place = _place(graph, key)
        fresh: dict[str, list[_Copy]] = {}
        for kind in KINDS:
            values = getattr(point, kind)
            if values is not None:
                fresh[kind] = [self._copy(backend, value) for value in values]
        with self._lock:
            found = {**self._forget(place), **fresh}
            nbytes = sum(copy.nbytes for copies in found.values() for copy in copies)
            if found and nbytes <= self.limit:
                self._kept[place] = (found, nbytes)
                self.bytes += nbytes
            while self._kept and (self.bytes > self.limit or len(self._kept) > STOPS):
                self._forget(next(iter(self._kept)))

    def find(self, graph: Graph, key: int, kind: str) -> Sequence[Any] | None:
        """The copies of ``kind`` at a node, None where there are none. ``MISSING`` stands for one that was left out."""
        copies = self._kept.get(_place(graph, key), ({}, 0))[0].get(kind)
        return [copy.value for copy in copies] if copies is not None else None

    def drop(self, graph: Graph) -> None:
        """That call is over."""
        if self._kept:
            call = _place(graph, 0)[:2]
            with self._lock:
                for place in [place for place in self._kept if place[:2] == call]:
                    self._forget(place)

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self.bytes = 0

    def _forget(self, place: _Place) -> dict[str, list[_Copy]]:
        found, nbytes = self._kept.pop(place, ({}, 0))
        self.bytes -= nbytes
        return found

    def _copy(self, backend: Backend, value: Any) -> _Copy:
        if value is None:
            return _Copy(None, 0)
        try:
            nbytes = backend.meta(value).nbytes
            return _Copy(backend.copied(value), nbytes) if nbytes <= self.limit else _Copy(MISSING, 0)
        except own(Exception):
            return _Copy(MISSING, 0)

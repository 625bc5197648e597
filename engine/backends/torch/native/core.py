"""Whether the extension may be used with this torch: its symbols are there, and nodes lie in memory as it expects.

What was checked is remembered for the process. The check makes nodes without any operator (``UndefinedGrad``), on two
threads of its own: sequence numbers are counted per thread, so that the program's are as without it, and no thread of
``threading`` is made (names are counted there, and a script's ``threading.settrace`` would run in it).
"""

from __future__ import annotations

import _thread
from collections.abc import Callable
from typing import Any

import torch

from adbg.engine.native import load
from adbg.engine.outside import own

_NODES = 4  # on each of two threads
_NEAR = 64
#: Nodes; a number for the set of their types; two for what else makes graphs alike; highest number of a root, or -1.
Told = tuple[int, int, int, int, int]


class Core:
    """The extension, as far as it is right for this torch. ``module`` is None where it is not, ``why`` says so."""

    def __init__(self) -> None:
        self.module, self.why = load.core()
        self.failed: dict[str, str] = {}  # by what cannot be done: why
        self._layout: bool | None = None
        self._edges: bool | None = None
        self.events_on = False  # the engine's functions are ours
        self.places: dict[Any, bytes] = {}  # by graph, the place of each node in its order: see ``events.py``
        self._leaves: bool | None = None
        self._tries = 20  # graphs of one node or two do not show where edges are
        if self.module is not None:
            self.module.torch_thread()  # torch numbers threads as they ask: this one before those of the check

    def layout(self) -> str:
        """Find where nodes keep their number and thread; "" or why they cannot be read. Once a process."""
        if self.module is None:
            return self.why
        if self._layout is None:
            try:
                self._layout = self.module.torch_layout(_samples(self.module))
            except own(Exception) as error:
                self._layout = False
                self.failed["layout"] = f"{type(error).__name__}: {error}"
        return "" if self._layout else self.failed.get("layout", "nodes do not lie in memory as they are taken to")

    def walk(self, roots: list[Any]) -> Any:
        """The graph below these nodes, walked by the extension; None where it cannot be, or not yet."""
        if self.module is None or self._edges is False or self.layout():
            return None
        if self._edges is None:
            found = self.module.torch_edges(_near(roots))
            if not found:
                self._tries -= 1
                if not self._tries:
                    self._edges = False
                    self.failed["walk"] = "edges do not lie in memory as they are taken to"
                return None
            self._edges = True
            if not apart(_objects, self.module):
                self.failed["objects"] = "Python objects of nodes cannot be taken back"
        try:
            walk = self.module.torch_walk(roots)
            if self._leaves is None:
                self._find_leaves(walk)
            return walk
        except own(Exception) as error:
            self._edges = False
            self.failed["walk"] = f"{type(error).__name__}: {error}"
            return None

    def _find_leaves(self, walk: Any) -> None:
        """Where accumulate nodes have their tensors, by the first graph with several of them."""
        keys = walk.keys(bytes(kind.__name__ == "AccumulateGrad" for kind in walk.types()))[:_NODES]
        if len(keys) > 1:
            nodes = [walk.node(key) for key in keys]
            self._leaves = self.module.torch_leaves([(node, node.variable) for node in nodes])
            if not self._leaves:
                self.failed["survey"] = "accumulate nodes do not hold their tensors where they are taken to"

    def address(self, node: Any) -> int:
        """A number that no other node alive has. Not that of its Python object, which may be another one tomorrow."""
        where: int = 0 if self.module is None or self.layout() else self.module.torch_address(node)
        return where or id(node)

    def tell_failures(self, on: bool) -> None:
        """Have the node known that an exception leaves; also of calls that are passed over. Off: the engine's functions
        are torch's own again."""
        if self.module is None or (on and ("failures" in self.failed or self.layout())):
            return
        if why := self.module.torch_failures(on):
            self.failed["failures"] = why

    def left_by_exception(self, walk: Any) -> int | None:
        """The key of the node of this ``walk`` that an exception left last, since the last call began."""
        key: int | None = None if self.module is None else self.module.torch_failed(walk.raw)
        return key

    def survey(self, roots: list[Any]) -> Told | None:
        """What is said of the graph below these nodes, 20 ns a node; None where nothing can be."""
        if self.module is None or not self._edges or not self._leaves:
            return None
        try:
            found: Told | None = self.module.torch_survey(roots)
        except own(Exception) as error:
            self._edges = False
            self.failed["walk"] = f"{type(error).__name__}: {error}"
            return None
        return found

    def lines(self) -> list[tuple[str, str, str]]:
        """(status, what, detail) for ``adbg doctor``: stacks are switched on and off for it."""
        instead = "the Python hooks do its work, more slowly"
        if why := (self.why or self.layout()):
            return [("off", "native core", f"{why}; {instead}")]
        found = [("ok", "native core", str(self.module.__file__))]
        if why := self.module.torch_stacks(True):
            self.failed["stacks"] = why
        slots = [(symbol, count) for symbol, _, count in self.module.torch_interposed() if count]
        self.module.torch_stacks(False)
        found += [("ok", "native core: interposes", f"{symbol} ({count} slots)") for symbol, count in slots]
        found += [("off", f"native core: {what}", f"{why}; {instead}") for what, why in self.failed.items()]
        return found


def _near(roots: list[Any]) -> list[Any]:
    """The first nodes of a graph, by torch's own word."""
    nodes = list(dict.fromkeys(roots))
    for node in nodes:
        for below, _ in node.next_functions:
            if below is not None and below not in nodes and len(nodes) < _NEAR:
                nodes.append(below)
    return nodes


def _objects(module: Any) -> bool:
    return bool(module.torch_objects(getattr(torch._C, "_functions").UndefinedGrad))  # noqa: B009


def _samples(module: Any) -> list[tuple[Any, int]]:
    samples: list[tuple[Any, int]] = []
    for _ in range(2):
        samples += apart(_make, module) or ()
    return samples


def _make(module: Any) -> list[tuple[Any, int]]:
    make: Any = getattr(torch._C, "_functions").UndefinedGrad  # noqa: B009  (not in the hints)
    thread = module.torch_thread()
    return [(make(), thread) for _ in range(_NODES)]


def apart(function: Callable[[Any], Any], module: Any) -> Any:
    """What ``function`` returns on a thread of its own; None where it raised."""
    done, results = _thread.allocate_lock(), list[Any]()

    def run() -> None:
        try:
            results.append(function(module))
        except Exception:  # the check that needs it fails, and says so
            results.append(None)
        finally:
            done.release()

    done.acquire()
    _thread.start_new_thread(run, ())
    done.acquire()
    return results[0]

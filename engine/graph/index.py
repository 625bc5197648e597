"""An index of one walked graph: positions, rows, consumers, names; made once per graph, however many pages are
asked for (L2).

Runs on the parked thread. It keeps keys, numbers and texts, never a framework node or tensor, and dies with its graph.
"""

from __future__ import annotations

import collections
import itertools
import weakref
from collections.abc import Iterable, Sequence

from adbg.engine.backends.base import Graph
from adbg.engine.errors import CommandError
from adbg.engine.names import closest_names, name_matches
from adbg.engine.types import GraphRow, NodeInfo

_VERSIONS = itertools.count(1)
_INDICES: weakref.WeakKeyDictionary[Graph, GraphIndex] = weakref.WeakKeyDictionary()
_SEEN: dict[tuple[str, str], int] = {}  # (kind, name) -> nodes, over all graphs whose names were asked for
_MAX_SEEN = 20_000


class GraphIndex:
    """What does not change of a graph while it lives. Methods take the graph: holding it here would keep it alive.

    ``version`` is another one for every graph. In a chain of 110,001 nodes (backend of the tests, one core of a shared
    machine) the first page of 2,000 rows takes 82 ms, most of it order and positions; another page 21 ms; a page asked
    for again 0.4 ms.
    """

    def __init__(self, graph: Graph) -> None:
        self.version = next(_VERSIONS)
        self.order: Sequence[int] = graph.order()
        self.position: dict[int, int] = dict(zip(self.order, range(1, len(self.order) + 1)))
        self.settled: dict[int, GraphRow] = {}  # index -> row of a node that ran: it does not change any more
        self._rows: dict[int, GraphRow] = {}
        self._consumers: dict[int, list[tuple[int, int]]] | None = None
        self._surveyed: tuple[dict[str, list[int]], dict[tuple[str, str], int]] | None = None

    @property
    def total(self) -> int:
        return len(self.order)

    def row(self, graph: Graph, index: int) -> GraphRow:
        """The row of a node that has not run and has no breakpoint."""
        row = self._rows.get(index)
        if row is None:
            row = self._rows[index] = self._make(graph, index)
        return row

    def _make(self, graph: Graph, index: int) -> GraphRow:
        key = self.order[index - 1]
        info = graph.describe(key)
        meta = graph.input_meta(key)
        known = self.position
        return GraphRow(
            index=index,
            key=key,
            name=info.name,
            unique_name=info.unique_name,
            state="todo",
            edges=tuple(known[edge.to] for edge in graph.edges(key) if edge.to is not None and edge.to in known),
            accumulate=info.accumulate,
            parameter=info.parameter,
            module=info.module,
            forward=info.forward,
            shape=meta[0].shape if meta else None,
            dtype=meta[0].dtype if meta else "",
            custom=graph.is_custom(key),
            compiled=info.compiled,
        )

    def consumers(self, graph: Graph, key: int) -> Sequence[tuple[int, int]]:
        """(key of a consumer, slot of ``key`` that it feeds), in execution order.

        Walks all edges once, at the first question about this graph: 0.24 s for 110k nodes of the tests' backend,
        0.09 s for 28k of torch.
        """
        if self._consumers is None:
            found: dict[int, list[tuple[int, int]]] = collections.defaultdict(list)
            for consumer in self.order:
                for edge in graph.edges(consumer):
                    if edge.to is not None:
                        found[edge.to].append((consumer, edge.to_slot))
            self._consumers = dict(found)
        return self._consumers.get(key, ())

    def names(self, graph: Graph) -> dict[str, list[int]]:
        """Keys by framework name, in execution order."""
        return self._survey(graph)[0]

    def places(self, graph: Graph) -> dict[tuple[str, str], int]:
        """How many nodes come from what: ("module" | "param" | "line", name) -> nodes."""
        return self._survey(graph)[1]

    def _survey(self, graph: Graph) -> tuple[dict[str, list[int]], dict[tuple[str, str], int]]:
        """Describes every node once (0.3 s for 28,000 nodes of torch: a forward line is looked up for each)."""
        if self._surveyed is None:
            names: dict[str, list[int]] = collections.defaultdict(list)
            places: dict[tuple[str, str], int] = collections.defaultdict(int)
            for key in self.order:
                node = graph.describe(key)
                names[node.name].append(key)
                if node.module:
                    places["module", node.module] += 1
                if node.parameter:
                    places["param", node.parameter] += 1
                if node.forward is not None:
                    places["line", f"{node.forward.file}:{node.forward.line}"] += 1
            self._surveyed = dict(names), dict(places)
        return self._surveyed

    def find(self, graph: Graph, text: str) -> int:
        """The key that a person's ``text`` names: "#113", a unique name, or a name (short forms too) that only one
        node has.

        Raises:
            CommandError: none or several have it; names the closest, or the first few.
        """
        text = text.strip()
        if text[:1] == "#" and text[1:].isdigit():
            return self.key_at(int(text[1:]))
        names = self.names(graph)
        base = text.partition("#")[0]
        candidates: list[NodeInfo] = []
        for name, keys in names.items():
            if name_matches(base, name):
                candidates += [info for info in map(graph.describe, keys) if name_matches(text, name, info.unique_name)]
        exact = [info for info in candidates if info.unique_name == text or info.name == text] or candidates
        if len(exact) == 1:
            return exact[0].key
        if not exact:
            close = closest_names(text, names)
            hint = "closest: " + ", ".join(close) if close else "`info names` lists the names in this graph"
            raise CommandError(f"no node {text!r} in this graph", hint)
        shown = ", ".join(f"{info.unique_name} (#{self.position[info.key]})" for info in exact[:3])
        raise CommandError(
            f"{len(exact)} nodes are named {text!r}", f"name one of them: {shown}{', ...' if len(exact) > 3 else ''}"
        )

    def key_at(self, index: int) -> int:
        """Raises CommandError for an index outside the graph."""
        if not 1 <= index <= self.total:
            raise CommandError(f"no node #{index}: this backward has {self.total} nodes", f"#1 to #{self.total}")
        return self.order[index - 1]

    def label(self, graph: Graph, key: int) -> str:
        """ "#112 ViewBackward0"."""
        position = self.position.get(key)
        name = graph.describe(key).name
        return f"#{position} {name}" if position else name

    def path_from_root(self, graph: Graph, key: int) -> list[int]:
        """Keys of a shortest path along which a gradient comes to ``key``: from a root through consumers down to it."""
        roots = set(graph.roots())
        came_from: dict[int, int] = {key: key}
        work = collections.deque([key])
        while work:
            at = work.popleft()
            if at in roots or not self.consumers(graph, at):
                path = [at]
                while path[-1] != key:
                    path.append(came_from[path[-1]])
                return path
            for consumer, _ in self.consumers(graph, at):
                if consumer not in came_from:
                    came_from[consumer] = at
                    work.append(consumer)
        return [key]


def index_of(graph: Graph) -> GraphIndex:
    """The index of ``graph``, made at the first call."""
    found = _INDICES.get(graph)
    if found is None:
        found = _INDICES[graph] = GraphIndex(graph)
    return found


def remember(names: Iterable[tuple[str, str, int]]) -> None:
    """Keep (kind, name, nodes) for completion in later graphs and while the program runs."""
    for kind, name, count in names:
        if (kind, name) in _SEEN or len(_SEEN) < _MAX_SEEN:
            _SEEN[kind, name] = count


def seen() -> list[tuple[str, str, int]]:
    """All (kind, name, nodes) that ``remember`` kept."""
    return [(kind, name, count) for (kind, name), count in list(_SEEN.items())]

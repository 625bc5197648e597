"""An index of one walked graph: positions, rows, consumers, names, paths; made once per graph.

Runs on the parked thread. It keeps keys, numbers and texts, never a framework node or tensor, and dies with its graph.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable, Sequence

from adbg.engine.backends.base import Graph
from adbg.engine.errors import CommandError
from adbg.engine.names import closest_names, is_address, name_matches
from adbg.engine.own_files import SHOWN
from adbg.engine.types import GraphRow, NodeInfo

_VERSIONS = itertools.count(1)
_SEEN: dict[tuple[str, str], int] = {}  # (kind, name) -> nodes, over all graphs whose names were asked for
_MAX_SEEN = 20_000


class GraphIndex:
    """What does not change of a graph while it lives. Methods take the graph: a reference here would keep it alive.

    ``version`` is another one for every graph. In a chain of 110,001 nodes (backend of the tests, one core of a shared
    machine) the first page of 2,000 rows takes 82 ms, most of it order and positions; another page 21 ms; a page asked
    for again 0.4 ms.
    """

    def __init__(self, graph: Graph) -> None:
        self.version = next(_VERSIONS)
        self.shown = SHOWN.version  # the rows tell lines of stacks
        self.order: Sequence[int] = graph.order()
        self.position: dict[int, int] = dict(zip(self.order, range(1, len(self.order) + 1)))
        self.settled: dict[int, GraphRow] = {}  # index -> row of a node that ran: it does not change any more
        self._rows: dict[int, GraphRow] = {}
        self._consumers: dict[int, list[tuple[int, int]]] | None = None
        self._survey: _Survey | None = None

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
        metas = graph.input_meta(key)
        # Of several the first that a gradient flows into: that is the one whose norm is shown.
        fed = {slot for _, slot in self.consumers(graph, key)} if len(metas) > 1 else set()
        meta = next((each for slot, each in enumerate(metas) if slot in fed), metas[0] if metas else None)
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
            shape=meta.shape if meta else None,
            dtype=meta.dtype if meta else "",
            custom=graph.is_custom(key),
            compiled=info.compiled,
            address=hex(graph.address(key)),
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
        return self._surveyed(graph).names

    def places(self, graph: Graph) -> dict[tuple[str, str], int]:
        """How many nodes come from what: ("module" | "param" | "line", name) -> nodes."""
        return self._surveyed(graph).places

    def _surveyed(self, graph: Graph) -> _Survey:
        if self._survey is None:
            self._survey = _Survey(graph, self.order)
        return self._survey

    def find(self, graph: Graph, text: str) -> int:
        """The key of the node that ``text`` names: "#113", "113", "0x55d0c4a3e2b0" (its address, as Paddle's log has
        it), a unique name, the parameter of an accumulate node, or a name (short forms and globs too) that only one
        node has. Case is ignored when nothing matches otherwise.

        Raises:
            CommandError: none or several match; names the closest, or the first few.
        """
        text = text.strip()
        number = text.lstrip("#")
        if number.isdecimal():
            return self.key_at(int(number))
        if is_address(text):
            return self._at_address(graph, text)
        survey = self._surveyed(graph)
        found = survey.matching(graph, text) or survey.matching(graph, text, fold=True)
        if len(found) == 1:
            return found[0]
        if not found:
            close = closest_names(text, [*survey.names, *(name for kind, name in survey.places if kind == "param")])
            hint = "closest: " + ", ".join(close) if close else "`info names` lists the names in this graph"
            raise CommandError(f"no node {text!r} in this graph of {self.total} nodes", hint)
        some = ", ".join(f"#{self.position[key]} {graph.describe(key).unique_name}" for key in found[:5])
        more = ", ..." if len(found) > 5 else ""
        raise CommandError(f"{len(found)} nodes are called {text!r}: {some}{more}", "name one of them")

    def _at_address(self, graph: Graph, text: str) -> int:
        address = int(text, 16)
        for key in self.order:
            if graph.address(key) == address:
                return key
        raise CommandError(
            f"no node at {text} in this graph of {self.total} nodes",
            "an address is a node's only while its graph lives",
        )

    def key_at(self, index: int) -> int:
        """Raises CommandError for an index outside the graph."""
        if not 1 <= index <= self.total:
            raise CommandError(f"no node #{index}: this graph has nodes #1 to #{self.total}")
        return self.order[index - 1]

    def label(self, graph: Graph, key: int) -> str:
        """ "#112 ViewBackward0"."""
        position = self.position.get(key)
        name = graph.describe(key).name
        return f"#{position} {name}" if position else name

    def path(self, graph: Graph, first: Callable[[int], bool], last: int) -> list[int]:
        """Keys of a shortest path along which a gradient flows to ``last`` from a node that ``first`` accepts; [] when
        there is none."""
        next_on_path: dict[int, int] = {last: last}
        work = collections.deque([last])
        while work:
            at = work.popleft()
            if first(at):
                path = [at]
                while path[-1] != last:
                    path.append(next_on_path[path[-1]])
                return path
            for consumer, _ in self.consumers(graph, at):
                if consumer not in next_on_path:
                    next_on_path[consumer] = at
                    work.append(consumer)
        return []

    def ancestors(self, graph: Graph, key: int) -> list[int]:
        """All nodes whose gradients flow into ``key``, itself last, in execution order."""
        found = {key}
        work = [key]
        while work:
            for consumer, _ in self.consumers(graph, work.pop()):
                if consumer not in found:
                    found.add(consumer)
                    work.append(consumer)
        return sorted(found, key=self.position.__getitem__)

    def count_paths(self, graph: Graph, nodes: Sequence[int]) -> int:
        """The number of paths from roots to the last of ``nodes``: the ``ancestors`` of one."""
        counts: dict[int, int] = {}
        for key in nodes:
            feeding = {consumer for consumer, _ in self.consumers(graph, key)}
            counts[key] = sum(counts[consumer] for consumer in feeding) if feeding else 1
        return counts[nodes[-1]]


class _Survey:
    """What every node of a graph is called and comes from. Of nodes in one group one is described: a chain of 1M nodes
    of torch takes 1.2 s (9.1 s where each is described)."""

    def __init__(self, graph: Graph, order: Sequence[int]) -> None:
        self.names: dict[str, list[int]] = {}
        self.places: dict[tuple[str, str], int] = collections.defaultdict(int)
        self.parameters: dict[int, str] = {}
        graph.read_all_stacks()
        groups = graph.groups()
        mine = [0] * len(order) if groups is None else [groups[key] for key in order]
        first: dict[int, NodeInfo] = {}
        named: dict[int, list[int]] = {}  # by group
        for key, group in zip(order, mine):
            keys = named.get(group)
            if keys is None:
                node = graph.describe(key)
                keys = self.names.setdefault(node.name, [])
                if group:
                    named[group] = keys
                    first[group] = node
                else:
                    self._place(node, 1)
            keys.append(key)
        for group, count in collections.Counter(mine).items():
            if group:
                self._place(first[group], count)

    def _place(self, node: NodeInfo, count: int) -> None:
        if node.module:
            self.places["module", node.module] += count
        if node.parameter:
            self.places["param", node.parameter] += count
            self.parameters[node.key] = node.parameter
        if node.forward is not None:
            self.places["line", f"{node.forward.file}:{node.forward.line}"] += count

    def matching(self, graph: Graph, text: str, fold: bool = False) -> list[int]:
        """Keys of the nodes that ``text`` names: those with exactly this name where there are any."""
        found = [key for key, parameter in self.parameters.items() if parameter == text]
        exact: list[int] = []
        for name, keys in self.names.items():
            if not name_matches(text, name, fold=fold):
                continue
            for key in keys:
                unique = graph.describe(key).unique_name
                if name_matches(text, name, unique, fold):
                    found.append(key)
                if text in (name, unique):
                    exact.append(key)
        return exact or found


def index_of(graph: Graph) -> GraphIndex:
    """The index of ``graph``, made at the first call."""
    found: GraphIndex | None = graph.index_kept
    if found is None or found.shown != SHOWN.version:
        found = graph.index_kept = GraphIndex(graph)
    return found


def remember(names: Iterable[tuple[str, str, int]]) -> None:
    """Keep (kind, name, nodes) for completion in later graphs and while the program runs."""
    for kind, name, count in names:
        if (kind, name) in _SEEN or len(_SEEN) < _MAX_SEEN:
            _SEEN[kind, name] = count


def seen() -> list[tuple[str, str, int]]:
    """All (kind, name, nodes) that ``remember`` kept."""
    return [(kind, name, count) for (kind, name), count in list(_SEEN.items())]

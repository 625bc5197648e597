"""A walked autograd graph: keys, names, order, and what every node is. Runs on the thread that made it (later: the
parked thread).

Keys are positions in a breadth-first walk from the roots. The nodes are held while the object is in use and let go of
root first.
"""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from adbg.engine.backends.base import SavedValue
from adbg.engine.backends.common.graph import WalkedGraph, roots_first
from adbg.engine.backends.common.order import needed_nodes
from adbg.engine.backends.torch import private
from adbg.engine.backends.torch import saved as torch_saved
from adbg.engine.backends.torch.native.stacks import NativeTrace
from adbg.engine.backends.torch.native.walk import ACCUMULATE, SHARED_TYPE, CoreWalk
from adbg.engine.backends.torch.order import execution_order
from adbg.engine.backends.torch.services import Services, is_compiled, no_stack, node_name, slot_meta
from adbg.engine.backends.torch.stacks import ForwardTrace
from adbg.engine.backends.torch.touched import SMALL
from adbg.engine.errors import BackendError
from adbg.engine.outside import own
from adbg.engine.own_files import SHOWN
from adbg.engine.types import Edge, NodeInfo, SourceLine, TensorMeta, ValueState

_HIGHEST = 1 << 64
_OP = re.compile(r"(?P<op>.+?)Backward\d*(?P<ordinal>#\d+)?\Z")


class TorchGraph(WalkedGraph):
    """See ``WalkedGraph``."""

    def __init__(self, roots: Sequence[Any], services: Services) -> None:
        """Args: roots: root nodes, one per root edge."""
        super().__init__()
        self._root_nodes: list[Any] = list(roots)
        # Where nobody released it. Not ``__del__``: that would run at the end of released ones too, and lose what a
        # signal handler of the program's raises in it.
        self._unreleased: weakref.ref[TorchGraph] | None = None
        self.services = services
        self._edges: list[tuple[tuple[Any, int], ...]] = []  # next_functions by key, once someone needed them all
        self._ordinals: list[int] | None = None
        self._wanted_run = False
        self._lines: dict[int, tuple[SourceLine, ...]] = {}
        self._lines_version = SHOWN.version
        self._named = False
        self._far: CoreWalk | None = None
        self._far_tried = False
        self._handed = 0  # nodes handed out of a walk by the extension

    # ---- the walk

    @property
    def far(self) -> CoreWalk | None:
        """The whole graph walked by the extension, where it can; the keys are those of ``walk``, which may be cut."""
        if self._far is None and not self._far_tried and self._root_nodes:
            self._far_tried = True
            found = self.services.core.walk(list(dict.fromkeys(self._root_nodes)))
            self._far = CoreWalk(found) if found is not None else None
        return self._far

    def size(self) -> int:
        """Nodes with a key."""
        return self.far.size if self.far is not None else len(self.walk())

    def walk(self) -> list[Any]:
        """The nodes by key. 0.28-0.33 us a node (0.9-1.5 us at 100k nodes, where wrappers no longer fit the cache)."""
        return self._nodes or self._walk(None)

    def _walk(self, keep: list[Any] | None) -> list[Any]:
        """Walk, keeping the ``next_functions`` of the nodes in ``keep`` where they are needed soon (asking costs 0.15
        us)."""
        nodes = self._nodes
        if not self._root_nodes:
            return nodes
        roots = list(dict.fromkeys(self._root_nodes))
        if self._unreleased is None:
            self._unreleased = weakref.ref(self, functools.partial(roots_first, nodes))
        nodes.extend(roots)
        seen = set(nodes)
        seen.add(None)  # an edge that leads nowhere
        todo = iter(nodes)  # grows while it is followed
        touched = self.services.touched
        first = touched.first()
        _follow(todo, seen, nodes, keep, first)
        if len(nodes) < first:
            return nodes
        with touched.lock:
            limit = touched.allowance(roots)
            _follow(todo, seen, nodes, keep, limit)
            more = next(todo, None) is not None
            touched.record(roots, nodes, not more)
        if more:
            self.truncated = True
            self.add_note(
                f"walk capped at {len(nodes):,} nodes: freeing more of them that Python has looked at could overflow a "
                "thread's stack in torch; the rest runs, unseen"
            )
        return nodes

    def kinds(self) -> frozenset[str] | None:
        """Framework names of all nodes, 25 ns a node. None where some types do not tell it, or one is that of an
        ``autograd.Function`` (Python code, which may call backward within)."""
        if self.far is not None:
            return self.far.kinds()
        types = set(map(type, self.walk()))
        if any(
            kind.__name__ == SHARED_TYPE or issubclass(kind, torch.autograd.function.BackwardCFunction)
            for kind in types
        ):
            return None
        return frozenset([kind.__name__ for kind in types])

    @property
    def root_nodes(self) -> Sequence[Any]:
        return self._root_nodes

    def roots(self) -> Sequence[int]:
        return list(dict.fromkeys(self.far.roots())) if self.far is not None else super().roots()

    def names(self) -> Sequence[str]:
        names = self.far.names() if self.far is not None else None
        return sorted(names if names is not None else {self.name(key) for key in range(self.size())})

    def held(self, key: int) -> Any:
        """The node, as far as the graph was walked, without a walk: asked by other threads. None: it was not, or was
        let go of."""
        far, nodes = self._far, self._nodes
        if far is not None and key < far.size:
            return far.node(key)
        return nodes[key] if key < len(nodes) else None

    def holds(self, node: Any) -> bool:
        """Whether it is one of those."""
        far = self._far
        return far.key_of(node) is not None if far is not None else node in self._nodes

    def release(self) -> None:
        self._unreleased = None
        self._edges = []
        self._root_nodes = []
        far, self._far = self._far, None
        self._drop_nodes()
        if far is not None:
            far.reclaim()
            far.release()

    def all_edges(self) -> list[tuple[tuple[Any, int], ...]]:
        """By key, the ``next_functions`` of every node."""
        if not self._edges:
            if not self._nodes:
                self._walk(self._edges)
            for node in self._nodes[len(self._edges) :]:  # all of them, or those that a capped walk did not follow
                self._edges.append(node.next_functions)
        return self._edges

    def producers(self) -> list[tuple[int, ...]]:
        if self._producers is None and self.far is not None:
            self._producers = self.far.producers()
        if self._producers is None:
            edges = self.all_edges()
            index = self.index
            self._producers = [tuple([index[edge[0]] for edge in below if edge[0] in index]) for below in edges]
        return self._producers

    def key_of(self, node: Any) -> int | None:
        """The key of a node of this graph; None for anything else."""
        if self._far is not None:
            return self._far.key_of(node) if isinstance(node, torch.autograd.graph.Node) else None
        try:
            return self.index.get(node)
        except TypeError:  # unhashable: no node
            return None

    # ---- Graph

    def count(self) -> int:
        """Without the order (1.2 us a node) where everything that was walked will run."""
        return len(self.order()) if self.wanted else self.size()

    def order(self) -> Sequence[int]:
        if self._order is None and not self.wanted and self.far is not None:
            self._order = self.far.order()
        if self._order is None:
            nodes = self.walk()
            producers = self.producers()
            needed: frozenset[int] | None = None
            captured: frozenset[int] = frozenset()
            if self.wanted:
                wanted = self._wanted_keys()
                needed = needed_nodes(wanted, producers, self._wanted_run)
                captured = frozenset() if self._wanted_run else frozenset(wanted)
            numbers = [_HIGHEST if number is None else number for number in map(private.sequence, nodes)]
            self._order = execution_order(
                [self.index[node] for node in self._root_nodes],
                producers.__getitem__,
                numbers.__getitem__,
                needed,
                captured,
            )
        return self._order

    def _wanted_keys(self) -> list[int]:
        """Keys of the nodes where the gradients of ``inputs=`` arrive: of a leaf, its accumulate node."""
        leaves: dict[int, int] = {}
        for key, node in enumerate(self._nodes):
            variable = getattr(node, "variable", None)
            if variable is not None:
                leaves[id(variable)] = key
        keys: list[int] = []
        for value in self.wanted:
            node = private.attribute_grad_fn(value) if isinstance(value, torch.Tensor) else getattr(value, "node", None)
            found = leaves.get(id(value)) if node is None else self.index.get(node)
            if found is not None:
                keys.append(found)
        return keys

    def name(self, key: int) -> str:
        far = self._far
        if far is not None and 0 <= key < far.size:
            return far.name(key)
        return node_name(self.node(key))

    def groups(self) -> Sequence[int] | None:
        if self.far is None or self.services.stacks.ever_by_anomaly:
            return None
        return self.far.groups()

    def _ordinal(self, key: int) -> int:
        if self._ordinals is None and self.far is not None:
            self._ordinals = self.far.ordinals(self.order())
        if self._ordinals is None:
            nodes = self.walk()
            place = {other: position for position, other in enumerate(self.order())}
            numbers = [private.sequence(node) for node in nodes]

            def recorded(other: int) -> tuple[int, int, int]:
                number = numbers[other]
                if number is not None:
                    return (number, 0, other)
                return (_HIGHEST, place.get(other, len(nodes)), other)  # accumulate nodes: as they execute

            self._ordinals = [0] * len(nodes)
            seen: dict[str, int] = {}
            for other in sorted(range(len(nodes)), key=recorded):
                name = self.name(other)
                seen[name] = self._ordinals[other] = seen.get(name, 0) + 1
        return self._ordinals[key]

    def info(self, key: int, needs: Sequence[str] | frozenset[str]) -> NodeInfo:
        far = self.far
        name = self.name(key)
        node = far.node(key) if far is not None and name == ACCUMULATE else None  # it has nothing below: no depth
        if far is None or far.size <= key:
            node = self.node(key)
        variable = getattr(node, "variable", None) if name == ACCUMULATE else None
        stack = self.forward_stack(key)[0] if "forward_stack" in needs else ()
        return NodeInfo(
            key=key,
            name=name,
            unique_name=f"{name}#{self._ordinal(key)}" if "unique_name" in needs else name,
            seq=private.sequence(node) if far is None else far.number(key),
            module=self._module(key, variable) if "module" in needs else None,
            parameter=self._parameter(variable) if "parameter" in needs and variable is not None else None,
            forward=stack[0] if stack else None,
            accumulate=variable is not None,
            compiled=is_compiled(self.type_of(key)),
        )

    def type_of(self, key: int) -> type:
        """The Python type of a node."""
        return self._far.type_of(key) if self._far is not None else type(self.node(key))

    def _trace(self, key: int) -> ForwardTrace | NativeTrace | None:
        stacks = self.services.stacks
        if self._far is not None:
            found = stacks.trace_numbered(self._far.stack(key))
            if found is not None or not stacks.ever_by_anomaly:
                return found
        return stacks.trace(self.node(key))

    def _module(self, key: int, variable: Any) -> str | None:
        if variable is not None:  # an accumulate node is made where its parameter is first used: its owner says more
            parameter = self._parameter(variable)
            return parameter.rpartition(".")[0] if parameter is not None else None
        return self.services.stacks.path_of(self._trace(key))

    def _parameter(self, variable: Any) -> str | None:
        name = self.services.modules.parameter_name(variable)
        if name is None and not self._named:
            self._named = True
            self.services.modules.refresh()
            name = self.services.modules.parameter_name(variable)
        return name

    def edges(self, key: int) -> Sequence[Edge]:
        if self.far is not None:
            return self.far.edges(key)
        index = self.index
        return [
            Edge(slot, index.get(node) if node is not None else None, to_slot)
            for slot, (node, to_slot) in enumerate(self.all_edges()[key])
        ]

    def saved(self, key: int) -> Sequence[SavedValue]:
        with private.unseen():  # handing out a saved output detaches it
            values = torch_saved.saved(self.node(key), self.services.fields)
            if any(value.state is ValueState.CORRUPTED for value in values):
                values = [self._with_writer(key, value) for value in values]
        return values

    def _with_writer(self, key: int, value: SavedValue) -> SavedValue:
        if value.state is not ValueState.CORRUPTED:
            return value
        try:
            who, line = torch_saved.overwritten(self, key, value)
        except own(Exception):  # who wrote is more than torch says: knowing less is no reason to fail
            return value
        return replace(value, note="; ".join(filter(None, (value.note, who))), writer=line)

    def line_of(self, node: Any) -> SourceLine | None:
        """The forward line of any node, also of one that is not in this graph."""
        stacks = self.services.stacks
        trace = stacks.trace(node)
        lines = stacks.user_lines([trace])[0] if trace is not None else ()
        return lines[0] if lines else None

    def attributes(self, key: int) -> Mapping[str, str]:
        return torch_saved.attributes(self.node(key), self.services.fields)

    def input_meta(self, key: int) -> Sequence[TensorMeta]:
        return [slot_meta(slot) for slot in private.input_metadata(self.node(key)) or ()]

    def forward_stack(self, key: int) -> tuple[Sequence[SourceLine], str]:
        known = self._known_lines().get(key)
        if known is None:
            stacks = self.services.stacks
            trace = self._trace(key)
            if trace is None:
                return (), no_stack(stacks)
            known = self._lines[key] = stacks.user_lines([trace])[0]
        return known, "" if known else "no line of the script's own is on it: torch made this node by itself"

    def _known_lines(self) -> dict[int, tuple[SourceLine, ...]]:
        if self._lines_version != SHOWN.version:
            self._lines_version, self._lines = SHOWN.version, {}
        return self._lines

    def read_all_stacks(self) -> None:
        """Turn the captures of all nodes into lines at once: 1.2 us each instead of 28. The extension's stacks are many
        nodes' each, and cost nothing one by one."""
        stacks = self.services.stacks
        if self.far is not None and not stacks.ever_by_anomaly:
            return
        known = self._known_lines()
        traces = [(key, self._trace(key)) for key in range(self.size()) if key not in known]
        held = [(key, trace) for key, trace in traces if trace is not None]
        for (key, _), lines in zip(held, stacks.user_lines([trace for _, trace in held]), strict=True):
            self._lines[key] = lines

    def node(self, key: int) -> Any:
        far = self.far
        if far is not None and 0 <= key < far.size and not self._nodes:
            if self._handed >= SMALL and (left := far.reclaim()) is not None:  # what nobody has any more is no burden
                self._handed = left
            if self._handed < SMALL:
                self._handed += 1
                return far.node(key)
        nodes = self._nodes or self.walk()
        if not 0 <= key < len(nodes):
            if far is not None and 0 <= key < far.size:
                raise BackendError(
                    f"node {key} is not among the {len(nodes):,} of this graph that may be handed out",
                    "freeing more of them that Python has looked at could overflow a thread's stack in torch",
                )
            raise BackendError(f"no node {key} in this graph", "a graph can be asked only while its backward runs")
        return nodes[key]

    def address(self, key: int) -> int:
        return self.far.address(key) if self.far is not None else self.services.core.address(self.node(key))

    def is_accumulate(self, key: int) -> bool:
        return self.name(key) == ACCUMULATE

    @staticmethod
    def op_of(unique_name: str) -> str:
        match = _OP.match(unique_name)
        return match["op"] + (match["ordinal"] or "") if match else unique_name.partition("#")[0]

    def is_custom(self, key: int) -> bool:
        kind = self.type_of(key)
        return torch_saved.is_function_type(kind) and not is_compiled(kind)


def _follow(todo: Iterator[Any], seen: set[Any], nodes: list[Any], keep: list[Any] | None, limit: int) -> None:
    """Append the producers of the nodes in ``todo`` that were not seen yet, until there are ``limit`` nodes."""
    if len(nodes) >= limit:
        return
    add, append = seen.add, nodes.append
    for node in todo:
        edges = node.next_functions
        if keep is not None:
            keep.append(edges)
        for edge in edges:
            producer = edge[0]
            if producer not in seen:
                add(producer)
                append(producer)
        if len(nodes) >= limit:
            return

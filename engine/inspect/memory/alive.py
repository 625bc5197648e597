"""``adbg/alive``: which variables of the program keep something alive. Runs on the parked thread.

One walk from the program's variables (``reach``) finds every tensor that they lead to. What C++ keeps, it keeps through
a graph: a node that has not run holds what it saved, a tensor holds the node that made it and all below.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from adbg.engine.backends.base import Backend, Graph
from adbg.engine.errors import CommandError
from adbg.engine.graph.index import index_of
from adbg.engine.inspect.context import StopContext
from adbg.engine.inspect.evaluate import value_at
from adbg.engine.inspect.memory.holders import holders_of, unreached, with_graph
from adbg.engine.inspect.memory.owners import is_node_type, owners_of, reach_of, tensor_types
from adbg.engine.inspect.memory.reach import Reach
from adbg.engine.inspect.memory.retained import Savers
from adbg.engine.inspect.value_text import is_tensor, tensor_text, type_name
from adbg.engine.protocol.messages import Alive, AliveBody, Owner, Saver
from adbg.engine.session.session import Session

_MOST_GRAPHS = 64  # graphs of other tensors that are looked into
_MOST_NODES = 200_000  # of them all
_MOST_SAVERS = 8


def alive(session: Session, stop: StopContext, request: Alive) -> AliveBody:
    """Who keeps the value or the node that ``request`` names; without one, who keeps graphs other than the one here.

    Raises:
        CommandError: there is no such value, or it is one that Python shares.
    """
    backend = stop.backend
    value: Any = None
    if request.expression:
        value = value_at(stop, request.expression, request.frameId)
        if value is None or type(value) in (int, float, bool, str, bytes, complex):
            raise CommandError(
                f"{request.expression} is {type_name(value)}: Python shares such values, nobody in particular keeps it",
                "give a tensor, a node or an object, for example: why alive loss",
            )
    reach = reach_of(session.backends, stop.innermost).walk([] if value is None else [value])
    try:
        if value is not None and not _is_node(backend, value):
            body = _of_value(stop, backend, reach, value, request)
        elif value is not None or request.node:
            body = _of_node(stop, backend, reach, value, request)
        else:
            is_tensor_type = tensor_types(session.backends)
            others = unreached(reach, lambda kind: is_tensor_type(kind) or is_node_type(kind))
            body = _of_graphs(stop, backend, reach, others)
            others.clear()
    finally:
        reach.release()
    return body


def _is_node(backend: Backend, value: Any) -> bool:
    return backend.node_address(value) is not None


# ------------------------------------------------------------------ a value


def _of_value(stop: StopContext, backend: Backend, reach: Reach, value: Any, request: Alive) -> AliveBody:
    notes: list[str] = []
    shared: list[Owner] = []
    savers: list[Saver] = []
    nbytes = 0
    what = f"{request.expression}: {type_name(value)}"
    if is_tensor(backend, value):
        what = f"{request.expression}: {tensor_text(backend.meta(value))}"
        memories = dict(backend.storages(value))
        nbytes = sum(memories.values())
        others = [
            each
            for each in reach.tensors.values()
            if each is not value and backend.is_tensor(each) and memories.keys() & dict(backend.storages(each)).keys()
        ]
        shared = owners_of(reach, others, backend)
        savers, notes = _savers(stop, backend, reach, memories)
    owners = owners_of(reach, [value], backend) or holders_of([value], backend, reach)
    return _body(what, reach, owners, shared, [], savers, nbytes, notes)


def _savers(
    stop: StopContext, backend: Backend, reach: Reach, memories: dict[int, int]
) -> tuple[list[Saver], list[str]]:
    """Nodes that hold this memory: of the graph here, then of those that variables keep."""
    found: list[Saver] = []
    notes: list[str] = []
    here = stop.point.graph
    if here is not None:
        saved = Savers(backend, here)
        found += _named_savers(here, saved, memories, "")
        if saved.why_hidden:
            notes.append(saved.why_hidden)
    for graph, _, root in _graphs_kept(stop, backend, reach):
        if len(found) >= _MOST_SAVERS:
            break
        found += _named_savers(graph, Savers(backend, graph), memories, root)
    return found[:_MOST_SAVERS], notes


def _named_savers(graph: Graph, saved: Savers, memories: dict[int, int], root: str) -> list[Saver]:
    found = []
    for address in memories:
        for key, name in saved.savers.get(address, ()):
            info = graph.describe(key)
            found.append(Saver(info.unique_name, index_of(graph).position.get(key, 0), name, root, info.forward))
    return found


# ------------------------------------------------------------------ a node


def _of_node(stop: StopContext, backend: Backend, reach: Reach, value: Any, request: Alive) -> AliveBody:
    here = stop.point.graph
    if value is None:
        graph, _ = stop.graph()
        key = index_of(graph).key_at(request.node)
        address, what = graph.address(key), f"#{request.node} {graph.describe(key).unique_name}"
    else:
        address, what = backend.node_address(value) or 0, f"{request.expression}: {type_name(value)}"
    notes = []
    keepers = []
    if here is not None and any(here.address(key) == address for key in here.order()):
        notes.append("it is in the graph of this backward, which keeps its nodes until it ends")
    for graph, tensor, _ in _graphs_kept(stop, backend, reach, every=True):
        if any(graph.address(key) == address for key in graph.order()):
            keepers.append(tensor)
    owners = owners_of(reach, [value], backend) or holders_of([value], backend, reach) if value is not None else []
    return _body(what, reach, owners, [], owners_of(reach, keepers, backend), [], 0, notes)


# ------------------------------------------------------------------ graphs of earlier iterations


def _of_graphs(stop: StopContext, backend: Backend, reach: Reach, others: list[Any]) -> AliveBody:
    """``others``: tensors and nodes that no variable leads to."""
    mine = _addresses(stop.point.graph)
    owners = owners_of(reach, with_graph(backend, [*_with_graph(backend, reach), *reach.nodes.values()], mine), backend)
    owners += holders_of(with_graph(backend, others, mine), backend, reach)
    what = "graphs other than the one of this backward" if mine else "graphs"
    return _body(what, reach, [], [], owners, [], 0, [])


def _addresses(graph: Graph | None) -> set[int]:
    return {graph.address(key) for key in graph.order()} if graph is not None else set()


def _with_graph(backend: Backend, reach: Reach) -> list[Any]:
    return [each for each in reach.tensors.values() if backend.is_tensor(each) and backend.has_graph(each)]


def _graphs_kept(
    stop: StopContext, backend: Backend, reach: Reach, every: bool = False
) -> Iterator[tuple[Graph, Any, str]]:
    """(graph, the tensor that keeps it, its variable) of tensors that variables lead to; without ``every`` only those
    that are not of the graph here."""
    mine = set() if every else _addresses(stop.point.graph)
    nodes = 0
    for tensor in _with_graph(backend, reach)[-_MOST_GRAPHS:]:
        graph = backend.graph_of([tensor])
        if graph is None:
            continue
        try:
            if nodes < _MOST_NODES and not any(graph.address(key) in mine for key in graph.roots()):
                nodes += graph.count()
                owner = owners_of(reach, [tensor], None, 1)
                yield graph, tensor, owner[0].path if owner else ""
        finally:
            _release(graph)


def _release(graph: Graph | None) -> None:
    release = getattr(graph, "release", None)
    if release is not None:
        release()


def _body(
    what: str, reach: Reach, owners: list[Owner], shared: list[Owner], graphs: list[Owner], savers: list[Saver],
    nbytes: int, notes: list[str],
) -> AliveBody:  # fmt: skip
    return AliveBody(
        what, owners, shared, graphs, savers, nbytes, len(reach.objects), round(reach.ms, 1), reach.cut, notes
    )

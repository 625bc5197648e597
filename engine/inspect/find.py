"""The node that a text names, and why there is none for a parameter."""

from __future__ import annotations

from adbg.engine.backends.base import Graph
from adbg.engine.errors import CommandError
from adbg.engine.graph.index import index_of
from adbg.engine.inspect.context import StopContext


def find_key(stop: StopContext, graph: Graph, text: str) -> int:
    """As ``GraphIndex.find``; of a parameter without a node it says why.

    Raises:
        CommandError: no such node, or several of that name.
    """
    index = index_of(graph)
    try:
        return index.find(graph, text)
    except CommandError:
        backend = stop.point.backend
        if backend is None:
            raise
        name = text.strip().removeprefix("param:")
        value = next((value for path, value in backend.parameters() if path == name), None)
        if value is None:
            raise
        if backend.meta(value).requires_grad:
            why = "nothing that this backward goes through was computed from it"
        elif backend.name == "paddle":
            why = "it takes no gradient, stop_gradient is True"
        else:
            why = "it takes no gradient, requires_grad is False"
        raise CommandError(
            f"parameter {name!r} has no node in this graph of {index.total} nodes: {why}",
            "`info params` shows which parameters take gradients; `diagnose`, then `restart` and `continue`: after "
            "some iterations it names the line that cuts the parameter off",
        ) from None

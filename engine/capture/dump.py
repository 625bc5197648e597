"""``adbg/dump``: the whole graph of a stop, its forward stacks or its gradients, as a file. Runs on the parked thread.

Names and formats are those of captures (``paddle_files``). Nodes are numbered in the order of execution.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from adbg.engine.backends.base import Backend, Graph
from adbg.engine.capture.drawing import CUSTOM, HERE, Drawing, DrawnEdge, DrawnNode
from adbg.engine.capture.paddle_files import Folder, TensorFile, dot_text, stack_text
from adbg.engine.errors import CommandError
from adbg.engine.graph.index import index_of
from adbg.engine.graph.region import INSIDE, LEAF
from adbg.engine.protocol import messages as protocol
from adbg.engine.session.stop_point import PausedPoint
from adbg.engine.types import Edge, TensorMeta

DUMPED_VALUES = 1024  # elements of a gradient written as numbers; statistics cover the rest


def dump(point: PausedPoint, request: protocol.Dump) -> protocol.DumpBody:
    """Write one file into ``request.directory`` (made when missing); returns its absolute path.

    Raises:
        CommandError: an unknown ``what``, nothing to write, or a folder that cannot be written.
    """
    if request.what not in ("graph", "stack", "grads"):
        raise CommandError(f"cannot dump {request.what!r}", "dump graph | stack | grads DIR")
    backend, graph = point.backend, point.graph
    if backend is None:
        raise CommandError("no framework is loaded yet", "continue until the program imports one")
    if graph is None and request.what != "grads":
        raise CommandError("there is no graph here", "stop in a backward, or where tensors with a graph are in reach")
    folder = Folder(request.directory or ".")
    if request.what == "grads":
        with folder.writing("grad_tensors.log") as file:
            tensors = TensorFile(file, backend, most=DUMPED_VALUES)
            for name, value in _gradients(point, backend):
                tensors.variable(name, value)
            file.writelines(_ran(point))
    elif graph is not None and request.what == "graph":
        folder.write("backward_graph.dot", dot_text(_drawing(graph, point.key)))
    elif graph is not None:
        folder.write("call_stack.log", stack_text(graph, index_of(graph).order, backend.dump_dialect))
    return protocol.DumpBody(folder.files)


def _drawing(graph: Graph, here: int | None) -> Drawing:
    index = index_of(graph)
    nodes = tuple(_node(graph, key, number, key == here) for number, key in enumerate(index.order, 1))
    edges = tuple(
        DrawnEdge(index.position[key], index.position[edge.to], _edge_label(graph.input_meta(edge.to), edge))
        for key in index.order
        for edge in graph.edges(key)
        if edge.to is not None and edge.to in index.position
    )
    return Drawing("", nodes, edges, (graph.note,) if graph.note else ())


def _node(graph: Graph, key: int, number: int, here: bool) -> DrawnNode:
    node = graph.describe(key)
    lines = [node.unique_name, f"#{number}", " ".join(map(_shape, graph.input_meta(key)))]
    lines.append(node.parameter or node.module or "")
    if node.forward is not None:
        lines.append(f"{os.path.basename(node.forward.file)}:{node.forward.line}")
    custom = graph.is_custom(key)
    mark = HERE if here else LEAF if node.accumulate else CUSTOM if custom or node.compiled else INSIDE
    return DrawnNode(number, "\n".join(filter(None, lines)), mark, key, custom)


def _edge_label(metas: Sequence[TensorMeta], edge: Edge) -> str:
    name = f"grad_inputs[{edge.slot}]"
    return f"{name}\n{_shape(metas[edge.to_slot])}" if edge.to_slot < len(metas) else name


def _shape(meta: TensorMeta) -> str:
    return f"{meta.dtype}{list(meta.shape)}" if meta.shape is not None else "undefined"


def _gradients(point: PausedPoint, backend: Backend) -> Iterator[tuple[str, Any]]:
    """Those of the current node, then those that the parameters have."""
    if point.graph is not None and point.key is not None:
        node = point.graph.describe(point.key).unique_name
        for kind, slots in (("grad_outputs", point.grad_outputs), ("grad_inputs", point.grad_inputs)):
            for slot, value in enumerate(slots or ()):
                yield f"{node} {kind}[{slot}]", value
    for name, parameter in backend.parameters():
        yield f"{name}@Grad", backend.gradient_of(parameter)


def _ran(point: PausedPoint) -> Iterator[str]:
    """What ran before, as it was seen: its tensors are not kept."""
    graph, state = point.graph, point.state
    if graph is None or state is None:
        return
    index = index_of(graph)
    for key, ran in sorted(state.ran.items(), key=lambda item: index.position.get(item[0], 0)):
        norm = f" norm {ran.norm:.4g}" if ran.norm is not None else ""
        yield f"Ran: {index.label(graph, key)}{norm}{' non-finite' if ran.nonfinite else ''}\n"
        for slot, text in enumerate(ran.grad_inputs):
            yield f"  - grad_inputs[{slot}]: {text}\n"

"""``adbg/dump``: the graph at hand, its forward stacks and the gradients, as files (L4). Runs on the parked thread.

File names, layout and colours are those of Paddle's ``FLAGS_dump_backward_graph_path`` files
(``<time>_backward_graph.dot``, ``<time>_call_stack.log``, ``<time>_grad_tensors.log``), so that scripts that read
them go on working.
"""

from __future__ import annotations

import datetime
import linecache
import os
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from adbg.engine.backends.base import Backend, Graph
from adbg.engine.errors import AdbgError, CommandError
from adbg.engine.graph.index import index_of
from adbg.engine.inspect.context import StopContext
from adbg.engine.inspect.node import tensor_meta
from adbg.engine.inspect.value_text import figure
from adbg.engine.protocol import messages as protocol
from adbg.engine.types import NodeInfo, SourceLine, TensorMeta

DUMPED_VALUES = 1024  # elements of a gradient written as numbers; statistics cover the rest

_LEAF, _PLAIN, _CUSTOM, _HERE = "#148b97", "#999999", "#d9822b", "#c0392b"


def dump(stop: StopContext, request: protocol.Dump) -> protocol.DumpBody:
    """Write one file into ``request.directory`` (made when missing); returns its absolute path.

    Raises:
        CommandError: an unknown ``what``, nothing to write, or a folder that cannot be written.
    """
    kinds: dict[str, tuple[str, Callable[[StopContext, TextIO], None]]] = {
        "graph": ("backward_graph.dot", _write_graph),
        "stack": ("call_stack.log", _write_stacks),
        "grads": ("grad_tensors.log", _write_gradients),
    }
    if request.what not in kinds:
        raise CommandError(f"cannot dump {request.what!r}", "dump graph | stack | grads DIR")
    suffix, write = kinds[request.what]
    if request.what != "grads":
        stop.graph()  # says why there is none before a folder is made
    folder = os.path.abspath(os.path.expanduser(request.directory or "."))
    time = datetime.datetime.now().strftime("%Y-%m-%d_%H:%M:%S.%f")
    path = os.path.join(folder, f"{time}_{suffix}")
    try:
        os.makedirs(folder, exist_ok=True)
        with open(path, "x", encoding="utf-8", errors="backslashreplace") as file:
            write(stop, file)
    except OSError as error:
        raise CommandError(
            f"cannot write {path}: {error.strerror or error}", "name a folder that you may write to"
        ) from None
    return protocol.DumpBody([path])


# ------------------------------------------------------------------ graph


def _write_graph(stop: StopContext, file: TextIO) -> None:
    graph, _ = stop.graph()
    index = index_of(graph)
    at_hand = stop.point.key if graph is stop.point.graph else None
    file.write("digraph G {\n")
    if graph.note:
        file.write(f"\t// {graph.note}\n")
    for position, key in enumerate(index.order, 1):
        node = graph.describe(key)
        file.write(f"\tnode_{position}[{_node_attributes(graph, node, position, key == at_hand)}]\n")
    for position, key in enumerate(index.order, 1):
        for edge in graph.edges(key):
            if edge.to is None or edge.to not in index.position:
                continue
            metas = graph.input_meta(edge.to)
            meta = metas[edge.to_slot] if edge.to_slot < len(metas) else None
            name = f"grad_inputs[{edge.slot}]"
            label = _quoted(f"{name}\n{_shape(meta)}" if meta is not None else name)
            file.write(f"\tnode_{position}->node_{index.position[edge.to]}[label={label}]\n")
    file.write("} // end G\n")


def _node_attributes(graph: Graph, node: NodeInfo, position: int, here: bool) -> str:
    lines = [node.unique_name, f"#{position}"]
    metas = graph.input_meta(node.key)
    if metas:
        lines.append(" ".join(_shape(meta) for meta in metas))
    if node.parameter or node.module:
        lines.append(node.parameter or node.module or "")
    if node.forward is not None:
        lines.append(f"{os.path.basename(node.forward.file)}:{node.forward.line}")
    custom = graph.is_custom(node.key)
    colour = _LEAF if node.accumulate else _CUSTOM if custom or node.compiled else _PLAIN
    attributes = {
        "label": _quoted("\n".join(lines)),
        "shape": '"box"',
        "style": '"rounded,filled,bold"',
        "fontname": '"Arial"',
        "color": f'"{_HERE if here else colour}"',
        "fillcolor": f'"{colour}"',
        "fontcolor": '"#ffffff"',
    }
    if custom or here:
        attributes["penwidth"] = '"4"'
    if custom:
        attributes["peripheries"] = '"2"'
    return " ".join(f"{name}={value}" for name, value in attributes.items())


def _shape(meta: TensorMeta) -> str:
    return f"{meta.dtype}{list(meta.shape)}" if meta.shape is not None else "undefined"


def _quoted(text: str) -> str:
    """A Graphviz string: quotes and backslashes escaped, line ends as \\n."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


# ------------------------------------------------------------------ stacks


def _write_stacks(stop: StopContext, file: TextIO) -> None:
    """Every node with the Python lines of the forward pass that made it, outermost first as in a traceback."""
    graph, _ = stop.graph()
    index = index_of(graph)
    for position, key in enumerate(index.order, 1):
        node = graph.describe(key)
        file.write(f"GradNodeBase {node.unique_name} #{position} call stack: \n")
        stack, note = graph.forward_stack(key)
        for line in reversed(stack):
            file.write(_traceback_line(line))
        if not stack and note:
            file.write(f"  ({note})\n")
        file.write("\n")


def _traceback_line(line: SourceLine) -> str:
    source = linecache.getline(line.file, line.line).strip()
    return f'  File "{line.file}", line {line.line}, in {line.function}\n' + (f"    {source}\n" if source else "")


# ------------------------------------------------------------------ gradients


def _write_gradients(stop: StopContext, file: TextIO) -> None:
    """The gradients of the node at hand and of all parameters: meta, statistics, the first values; what ran before
    as it was seen.
    """
    backend = stop.backend
    for name, value in _gradients(stop, backend):
        file.write(f"Variable: {name}\n")
        meta = tensor_meta(stop, value)
        if meta.shape is None:
            file.write(f"  - {meta.remark}\n")
            continue
        file.write(
            f"  - place: {meta.device}\n  - shape: {list(meta.shape)}\n"
            f"  - layout: {meta.layout}\n  - dtype: {meta.dtype}\n"
        )
        file.write(_numbers(backend, value, meta))
    graph, state = (stop.point.graph, stop.point.state) if stop.point.graph is not None else (None, None)
    if graph is None or state is None:
        return
    index = index_of(graph)
    for key, ran in sorted(state.ran.items(), key=lambda item: index.position.get(item[0], 0)):
        norm = f" norm {figure(ran.norm)}" if ran.norm is not None else ""
        file.write(f"Ran: {index.label(graph, key)}{norm}{' non-finite' if ran.nonfinite else ''}\n")
        for slot, text in enumerate(ran.grad_inputs):
            file.write(f"  - grad_inputs[{slot}]: {text}\n")


def _gradients(stop: StopContext, backend: Backend) -> Iterator[tuple[str, Any]]:
    point = stop.point
    if point.graph is not None and point.key is not None:
        node = point.graph.describe(point.key).unique_name
        for kind, slots in (("grad_outputs", point.grad_outputs), ("grad_inputs", point.grad_inputs)):
            for slot, value in enumerate(slots or ()):
                yield f"{node} {kind}[{slot}]", value
    for name, parameter in backend.parameters():
        yield f"{name}@Grad", getattr(parameter, "grad", None)


def _numbers(backend: Backend, value: Any, meta: TensorMeta) -> str:
    """Statistics and at most ``DUMPED_VALUES`` values. What the framework cannot tell (sparse, no data) is said."""
    try:
        stats = backend.stats(value)
        how = f"sampled {stats.sampled} of {stats.numel}" if stats.sampled is not None else "exact"
        text = (
            f"  - stats: min {stats.min:g} max {stats.max:g} mean {stats.mean:g} std {stats.std:g} norm {stats.norm:g} "
            f"nan {stats.nan} inf {stats.neg_inf + stats.pos_inf} ({how})\n"
        )
        data = _first_values(backend, value, meta)
    except AdbgError as error:
        return f"  - {error}\n"
    more = f" ... {meta.numel} in all" if len(data) < meta.numel else ""
    return f"{text}  - data: [{' '.join(f'{number:f}' for number in data)}{more}]\n"


def _first_values(backend: Backend, value: Any, meta: TensorMeta) -> list[float]:
    """The first elements in row-major order, at most ``DUMPED_VALUES``."""
    if meta.numel == 0:
        return []
    found: list[float] = []
    for plane in _planes(meta.shape or ()):
        window = backend.window(value, plane, DUMPED_VALUES, DUMPED_VALUES)
        if window.reduced != "exact":
            break
        found += [number for row in window.values for number in row]
        if len(found) >= DUMPED_VALUES:
            break
    return found[:DUMPED_VALUES]


def _planes(shape: tuple[int, ...]) -> Iterator[str]:
    """Slices of 2-D planes of ``shape``, first to last, each with as many rows as are needed and fit."""
    if not shape:
        yield ""
        return
    cols = min(shape[-1], DUMPED_VALUES)
    if len(shape) == 1:
        yield f"[0:{cols}]"
        return
    rows = min(shape[-2], -(-DUMPED_VALUES // cols))
    outer = shape[:-2]
    count = 1
    for size in outer:
        count *= size
    for number in range(min(count, DUMPED_VALUES)):
        place, rest = [], number
        for size in reversed(outer):
            place.append(rest % size)
            rest //= size
        yield "[" + ", ".join([*map(str, reversed(place)), f"0:{rows}", f"0:{cols}"]) + "]"

"""A captured region as a picture: numbered nodes, labels, colours, edges, for its backward and its forward graph.

Labels, numbers and colours are those of Paddle 3.3.1's dump files (backward with dump_backward_graph_path, and
capture_backward_subgraph_guard): the orange "#FFE4B5" is a neighbour, "#999999" a captured node, "#148b97" a leaf.
Runs where the region was selected; texts only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from adbg.engine.backends.base import Backend, DumpDialect, Graph, Stray
from adbg.engine.graph.region import BOUNDARY, INSIDE, LEAF, RegionEdge, Selection
from adbg.engine.types import NodeInfo, TensorMeta

STRAY, CUSTOM, HERE = "stray", "custom", "here"
COLOURS = {
    INSIDE: "#999999", BOUNDARY: "#FFE4B5", LEAF: "#148b97", STRAY: "#999999", CUSTOM: "#d9822b", HERE: "#c0392b",
}  # fmt: skip
NO_PART = "no part in the loss"
_DTYPES = {"bf16": "bfloat16", "b1": "bool", "f8_e4m3fn": "float8_e4m3fn", "f8_e5m2": "float8_e5m2"}
_KINDS = {"f": "float", "i": "int", "u": "uint", "c": "complex"}


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """``mark`` is a key of ``COLOURS``; ``key`` None for a stray; ``double``: with a double border."""

    number: int
    label: str
    mark: str
    key: int | None = None
    double: bool = False


@dataclass(frozen=True, slots=True)
class DrawnEdge:
    """Numbers of nodes."""

    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """One graph. ``notes`` are what is missing from it."""

    title: str
    nodes: tuple[DrawnNode, ...]
    edges: tuple[DrawnEdge, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CapturedNode:
    """What the files say of a node. ``op`` and ``printed``: see ``Graph.op_name`` and ``dumped_name``."""

    key: int
    number: int
    mark: str
    info: NodeInfo
    op: str
    printed: str
    address: int


@dataclass(frozen=True, slots=True)
class CapturedEdge:
    """``variable`` names the gradient on it as Paddle does, "multiply3_out_float32_2x3@Grad"."""

    edge: RegionEdge
    variable: str
    meta: TensorMeta | None
    several: bool = False  # the producer has more than one output


@dataclass(frozen=True, slots=True)
class Capture:
    """Everything about a region that is known before a gradient runs. Nodes in order of their numbers."""

    nodes: tuple[CapturedNode, ...]
    edges: tuple[CapturedEdge, ...]
    notes: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Of all gradients on the edges whose shape is known."""
        return sum(edge.meta.nbytes for edge in self.edges if edge.meta is not None)

    @property
    def unknown(self) -> int:
        """Edges whose gradient's shape the framework does not tell beforehand."""
        return sum(1 for edge in self.edges if edge.meta is None)


def capture_of(graph: Graph, selection: Selection) -> Capture:
    """Describe the selected nodes and edges."""
    infos = {key: graph.describe(key) for key in selection.marks}
    numbers = _numbers(selection)
    nodes = tuple(
        CapturedNode(
            key, number, selection.marks[key], infos[key], graph.op_name(key), graph.dumped_name(key),
            graph.address(key),
        )
        for key, number in sorted(numbers.items(), key=lambda item: item[1])
    )  # fmt: skip
    named = {node.key: node for node in nodes}
    metas = {key: graph.input_meta(key) for key in {edge.producer for edge in selection.edges}}
    slots = {edge.producer: 0 for edge in selection.edges}
    for edge in selection.edges:
        slots[edge.producer] = max(slots[edge.producer], edge.to_slot, len(metas[edge.producer]) - 1)
    edges = []
    for edge in selection.edges:
        known = metas[edge.producer]
        meta = known[edge.to_slot] if edge.to_slot < len(known) and known[edge.to_slot].shape is not None else None
        several = slots[edge.producer] > 0
        name = variable_name(named[edge.producer], edge.to_slot, meta, several)
        edges.append(CapturedEdge(edge, name, meta, several))
    return Capture(nodes, tuple(edges), (graph.note,) if graph.note else ())


def _numbers(selection: Selection) -> dict[int, int]:
    """Paddle's numbers: in the order in which edges are met, of an edge's two nodes the captured one first."""
    numbers: dict[int, int] = {}
    for edge in selection.edges:
        pair = (edge.consumer, edge.producer)
        for key in sorted(pair, key=lambda key: selection.marks[key] != INSIDE):
            numbers.setdefault(key, len(numbers))
    for key in selection.inside:
        numbers.setdefault(key, len(numbers))
    return numbers


def variable_name(node: CapturedNode, to_slot: int, meta: TensorMeta | None, several: bool) -> str:
    """The gradient that flows into slot ``to_slot`` of a node: of its op's output, as Paddle names it."""
    if node.info.accumulate:
        return f"{node.info.parameter or f'generated_tensor_{node.key}'}@Grad"
    op = node.op.replace("#", "").removeprefix("PyLayer_")
    slot = str(to_slot) if several else ""
    shape = "" if meta is None else f"_{long_dtype(meta.dtype)}_{'x'.join(map(str, meta.shape or ()))}"
    return f"{op}_out{slot}{shape}@Grad"


# ------------------------------------------------------------------ the two pictures


def backward_drawing(capture: Capture, title: str) -> Drawing:
    """Nodes with the edges along which gradients flow."""
    nodes = tuple(
        DrawnNode(node.number, f"{node.printed}\nPtr: {node.address:#x}", node.mark, node.key) for node in capture.nodes
    )
    number = {node.key: node.number for node in capture.nodes}
    edges = tuple(
        DrawnEdge(number[e.edge.consumer], number[e.edge.producer], _gradient_label(e)) for e in capture.edges
    )
    return Drawing(title, nodes, edges, capture.notes)


def _gradient_label(edge: CapturedEdge) -> str:
    if edge.meta is None:
        return edge.variable
    shape = f"{long_dtype(edge.meta.dtype)}{list(edge.meta.shape or ())}"
    return f"{edge.variable}\n{place_text(edge.meta.device)}\n{shape}"


def forward_drawing(
    capture: Capture,
    title: str,
    strays: Sequence[Stray] = (),
    note: str = "",
    dialect: DumpDialect = Backend.dump_dialect,
) -> Drawing:
    """The same nodes as forward ops, edges the way the values went; then the ops without a part in the loss, by
    themselves. A neighbour behind the region keeps its backward label, as Paddle has it."""
    behind = {e.edge.consumer for e in capture.edges} - {node.key for node in capture.nodes if node.mark == INSIDE}
    nodes = []
    for node in capture.nodes:
        if node.key in behind:
            label = f"{node.printed}\nPtr: {node.address:#x}"
        else:
            label = dialect.op_label.format(op=node.op, address=node.address)
        nodes.append(DrawnNode(node.number, label, node.mark, node.key))
    number = {node.key: node.number for node in capture.nodes}
    edges = tuple(
        DrawnEdge(number[e.edge.producer], number[e.edge.consumer], _value_label(e.meta)) for e in capture.edges
    )
    for stray in strays:
        where = f"\n{stray.forward.file.rpartition('/')[2]}:{stray.forward.line}" if stray.forward is not None else ""
        nodes.append(DrawnNode(len(nodes), f"{stray.text}{where}\n({NO_PART})", STRAY))
    return Drawing(title, tuple(nodes), edges, (*capture.notes, *([note] if note else [])))


def _value_label(meta: TensorMeta | None) -> str:
    return "" if meta is None else f"{long_dtype(meta.dtype)} {list(meta.shape or ())}"


# ------------------------------------------------------------------ words of Paddle


def long_dtype(short: str) -> str:
    """ "float32" for "f32"; what is not known as it is."""
    kind, bits = short[:1], short[1:]
    return _DTYPES.get(short) or (f"{_KINDS[kind]}{bits}" if kind in _KINDS and bits.isdecimal() else short)


def place_text(device: str) -> str:
    """ "Place(gpu:0)" for "cuda:0"."""
    return device if device.startswith("Place(") else f"Place({device.replace('cuda', 'gpu')})"


def size_text(nbytes: int) -> str:
    """ "3.4 MB"."""
    size = float(nbytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{nbytes} bytes" if unit == "bytes" else f"{size:.1f} {unit}"


def marks_text(marks: Iterable[str]) -> str:
    """ "3 nodes inside, 2 on the boundary, 1 leaf"."""
    found = list(marks)
    inside, boundary, leaves = (found.count(mark) for mark in (INSIDE, BOUNDARY, LEAF))
    return (
        f"{inside} node{'s' * (inside != 1)} inside, {boundary} on the boundary, "
        f"{leaves} lea{'f' if leaves == 1 else 'ves'}"
    )

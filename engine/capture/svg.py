"""Drawings as SVG without graphviz: a small layered layout of its own Pure functions, any thread.

Layers by the longest way from the start; four sweeps of barycentres settle the order in a layer (Sugiyama, Tagawa, Toda
1981). Bounded: ``MOST_NODES`` nodes and ``MOST_EDGES`` edges are drawn, and the picture says how many are not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from html import escape

from adbg.engine.capture.drawing import COLOURS, STRAY, Drawing, DrawnEdge, DrawnNode
from adbg.engine.graph.region import BOUNDARY

MOST_NODES = 600
MOST_EDGES = 2000
_CHARACTER, _LINE = 7.0, 15  # px of Arial 12
_GAP_X, _GAP_Y, _MARGIN = 28, 62, 20
_ROOM = 120  # px at the right, for edges that go around
_MOST_TEXT = 60  # characters of a line

Spot = tuple[float, float, float, float]  # left, top, width, height in px


def svg_text(drawing: Drawing) -> str:
    """A whole SVG document."""
    nodes = drawing.nodes[:MOST_NODES]
    shown = {node.number for node in nodes}
    edges = [edge for edge in drawing.edges if edge.start in shown and edge.end in shown][:MOST_EDGES]
    spots, width, height = _layout(nodes, edges)
    notes = list(drawing.notes)
    if len(nodes) < len(drawing.nodes) or len(edges) < len(drawing.edges):
        notes.append(
            f"drawn: {len(nodes)} of {len(drawing.nodes)} nodes, {len(edges)} of {len(drawing.edges)} edges; "
            "the .dot file has all"
        )
    lines = [drawing.title, *notes]
    top = _LINE * (len(lines) + 1)
    width = max(width, *(len(line) * _CHARACTER + 2 * _MARGIN for line in lines))
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height + top:.0f}" '
        f'viewBox="0 0 {width:.0f} {height + top:.0f}" font-family="Arial, sans-serif" font-size="12">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#555555"/></marker></defs>',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    out += [
        f'<text x="{_MARGIN}" y="{_LINE * (i + 1)}" fill="#555555">{_clean(line)}</text>'
        for i, line in enumerate(lines)
    ]
    out.append(f'<g transform="translate(0,{top})">')
    out += [_edge(edge, spots) for edge in edges]
    out += [_node(node, spots[node.number]) for node in nodes]
    return "\n".join([*out, "</g>", "</svg>", ""])


# ------------------------------------------------------------------ layout


def _layout(nodes: Sequence[DrawnNode], edges: Sequence[DrawnEdge]) -> tuple[dict[int, Spot], float, float]:
    """Where every node is, and the size of the picture."""
    layers = _ordered(_layers([node.number for node in nodes], edges), edges)
    sizes = {node.number: _size(node) for node in nodes}
    widths = [sum(sizes[n][0] + _GAP_X for n in layer) - _GAP_X for layer in layers]
    widest = max(widths, default=0.0)
    spots: dict[int, Spot] = {}
    y: float = _MARGIN
    for layer, breadth in zip(layers, widths):
        x = _MARGIN + (widest - breadth) / 2
        for number in layer:
            w, h = sizes[number]
            spots[number] = (x, y, w, h)
            x += w + _GAP_X
        y += max((sizes[n][1] for n in layer), default=0.0) + _GAP_Y
    return spots, widest + 2 * _MARGIN + _ROOM, y - _GAP_Y + _MARGIN if layers else 2 * _MARGIN


def _layers(numbers: Sequence[int], edges: Sequence[DrawnEdge]) -> list[list[int]]:
    """Longest path from the sources; nodes of a cycle (an autograd graph has none) would stay above."""
    waiting = dict.fromkeys(numbers, 0)
    below: dict[int, list[int]] = defaultdict(list)
    for edge in edges:
        waiting[edge.end] += 1
        below[edge.start].append(edge.end)
    depth = dict.fromkeys(numbers, 0)
    ready = [number for number in numbers if not waiting[number]]
    for number in ready:  # grows while it is followed
        for other in below[number]:
            depth[other] = max(depth[other], depth[number] + 1)
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    layers: list[list[int]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for number in numbers:
        layers[depth[number]].append(number)
    return layers


def _ordered(layers: list[list[int]], edges: Sequence[DrawnEdge]) -> list[list[int]]:
    above: dict[int, list[int]] = defaultdict(list)
    below: dict[int, list[int]] = defaultdict(list)
    for edge in edges:
        above[edge.end].append(edge.start)
        below[edge.start].append(edge.end)
    for sweep in range(4):
        near = below if sweep % 2 else above
        place = {number: i / max(1, len(layer) - 1) for layer in layers for i, number in enumerate(layer)}
        for layer in reversed(layers) if sweep % 2 else layers:
            layer.sort(key=lambda number: _mean([place[other] for other in near[number]], place[number]))
            place.update({number: i / max(1, len(layer) - 1) for i, number in enumerate(layer)})
    return layers


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def _size(node: DrawnNode) -> tuple[float, float]:
    lines = _lines(node.label)
    return max(map(len, lines)) * _CHARACTER + 20, len(lines) * _LINE + 14


def _lines(label: str) -> list[str]:
    return [line if len(line) <= _MOST_TEXT else line[: _MOST_TEXT - 1] + "…" for line in label.split("\n")]


# ------------------------------------------------------------------ elements


def _node(node: DrawnNode, spot: Spot) -> str:
    x, y, w, h = spot
    colour = COLOURS[node.mark]
    fill, text = ("#ffffff", "#666666") if node.mark == STRAY else (colour, "#333333")
    text = "#ffffff" if node.mark not in (STRAY, BOUNDARY) else text
    dashes = ' stroke-dasharray="5 4"' if node.mark == STRAY else ""
    stroke = "#b08d57" if node.mark == BOUNDARY else colour
    box = (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="7" fill="{fill}" stroke="{stroke}"'
        f' stroke-width="2"{dashes}/>'
    )
    at = f'<text x="{x + w / 2:.1f}" text-anchor="middle" fill="{text}"'
    lines = [f'{at} y="{y + 19 + i * _LINE:.1f}">{_clean(line)}</text>' for i, line in enumerate(_lines(node.label))]
    return f'<g class="{node.mark}">{box}{"".join(lines)}</g>'


def _edge(edge: DrawnEdge, spots: Mapping[int, Spot]) -> str:
    """A curve from the lower side of one box to the upper side of another, its label at the middle."""
    x, y, w, h = spots[edge.start]
    to_x, to_y, to_w, _ = spots[edge.end]
    x1, y1, x2, y2 = x + w / 2, y + h, to_x + to_w / 2, to_y
    bend = (y2 - y1) / 2
    around = (w + to_w) / 2 + 40 if y2 - y1 > 1.5 * _GAP_Y and abs(x2 - x1) < (w + to_w) / 2 else 0.0
    a, b = x1 + around, x2 + around  # past the boxes of the layers in between
    path = f"M{x1:.1f},{y1:.1f} C{a:.1f},{y1 + bend:.1f} {b:.1f},{y2 - bend:.1f} {x2:.1f},{y2:.1f}"
    label = edge.label.split("\n")[-1]
    title = f"<title>{_clean(edge.label)}</title>"
    middle = f'x="{(x1 + x2) / 2 + 0.75 * around:.1f}" y="{(y1 + y2) / 2:.1f}"'
    text = f'<text {middle} text-anchor="middle" fill="#555555" font-size="10">{_clean(label)}</text>'
    return f'<g class="edge">{title}<path d="{path}" fill="none" stroke="#888888" marker-end="url(#tip)"/>{text}</g>'


def _clean(text: str) -> str:
    """Escaped, and without the control characters that XML 1.0 has no way to write."""
    return escape("".join(c for c in text if c >= " " or c in "\t\n"), quote=False)

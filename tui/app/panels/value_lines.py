"""The lines of the value panel: what a value is, its statistics, the other values of the node. Pure; any thread."""

from __future__ import annotations

from adbg.engine.protocol.messages import NodeBody
from adbg.engine.types import TensorMeta, TensorStats, TensorView, ValueState, remark_of
from adbg.tui.app.lines import plots
from adbg.tui.app.lines.wrapping import wrap
from adbg.tui.app.panels.value_model import ValueModel
from adbg.tui.text import cells as figures
from adbg.tui.text.cells import Spans, beside, elide, number, width_of
from adbg.tui.text.formatting import compiled_text
from adbg.tui.text.quantities import size


def meta_text(meta: TensorMeta) -> str:
    """ "f32 [64,256] cpu 64KiB"."""
    if meta.shape is None:
        return remark_of(meta.state)
    words = [meta.dtype, figures.shape(meta.shape), meta.device, size(meta.nbytes)]
    if meta.layout != "strided":
        words.append(meta.layout)
    return " ".join(word for word in words if word)


def _shape_or_remark(meta: TensorMeta | None) -> str:
    """ "none" where no gradient flows, "not known" where the framework shows none."""
    if meta is not None and meta.shape is not None:
        return figures.shape(meta.shape)
    return remark_of(meta.state) if meta is not None and meta.state is ValueState.HIDDEN else "none"


def meta_line(meta: TensorMeta, stats: TensorStats | None, width: int) -> Spans:
    left: Spans = [(meta_text(meta), "bold")]
    right = norm_spans(stats) if stats else []
    return beside(left, right, width) if right else figures.fit(left, width)


def norm_spans(stats: TensorStats) -> Spans:
    """The norm is over the finite elements; where that is not all of them it says so."""
    if stats.none_finite:
        return [("no norm", "dim")]
    return [("‖·‖ " if stats.all_finite else "‖finite‖ ", "dim"), (number(stats.norm), "number")]


def note_lines(meta: TensorMeta, width: int) -> list[Spans]:
    """What is special about the value, in as many lines as it takes."""
    remark = meta.note if meta.shape is None else meta.remark
    return [[(piece, "warn")] for piece in wrap(remark, width)] if remark else []


def range_line(stats: TensorStats, width: int) -> Spans:
    """min, max, mean, std of the finite elements."""
    if stats.none_finite:
        return figures.fit([("no finite element: no range, no mean", "bad")], width)
    spans: Spans = []
    for name, value in (("min", stats.min), ("max", stats.max), ("μ", stats.mean), ("σ", stats.std)):
        piece: Spans = [(("  " if spans else "") + name + " ", "dim"), (number(value), "number")]
        if width_of(spans) + width_of(piece) <= width:
            spans += piece
    return spans


def counts_line(stats: TensorStats, width: int) -> Spans:
    """How many elements are of which sign; the alarming ones stand out. Zero counts give way where it is narrow."""
    cells = (
        ("-inf", stats.neg_inf, True), ("−", stats.negative, False), ("0", stats.zero, False),
        ("+", stats.positive, False),
        ("+inf", stats.pos_inf, True), ("NaN", stats.nan, True),
    )  # fmt: skip
    shown = (cells, [c for c in cells if c[1]], [c for c in cells if c[1] and c[2]])
    spans: Spans = []
    for kept in shown:  # all; those that are there; those that are wrong
        spans = []
        for name, value, alarming in kept:
            if spans:
                spans.append((" │ ", "faint"))
            spans.append((name + " ", "bad" if alarming and value else "dim"))
            spans.append((figures.count(value), "bad" if alarming and value else "number" if value else "faint"))
        if width_of(spans) <= width:
            break
    return figures.fit(spans, width)


def sample_text(stats: TensorStats) -> str:
    """Whether the figures are exact."""
    if stats.sampled is None:
        return "exact"
    return f"sample of {figures.count(stats.sampled)} in {figures.count(stats.numel)}"


def histogram_lines(stats: TensorStats, width: int, height: int) -> list[Spans]:
    """The histogram with its axis; one line has the axis beside it."""
    if not stats.histogram or not any(stats.histogram):
        return []
    low, high = number(stats.min), number(stats.max)
    if height == 1:
        room = width - len(low) - len(high) - 2
        if room < 8:
            return []
        bars = plots.histogram(stats.histogram, min(room, 2 * len(stats.histogram)))
        return [[(low + " ", "dim"), (bars[0], "title"), (" " + high, "dim")]]
    lines: list[Spans] = [[(bars, "title")] for bars in plots.histogram(stats.histogram, width, height - 1)]
    return [*lines, beside([(low, "dim")], [(high, "dim")], width)]


def compact_lines(view: TensorView, width: int) -> list[Spans]:
    """Two lines for a low panel: what it is with its norm and its alarms; the range with the histogram."""
    if view.meta is None:
        return []
    stats = view.stats
    if stats is None or not stats.numel:
        return [meta_line(view.meta, stats, width)]
    right = norm_spans(stats)
    for name, value in (("NaN", stats.nan), ("Inf", stats.neg_inf + stats.pos_inf), ("zero", stats.zero)):
        style = "bad" if value and name != "zero" else "number" if value else "faint"
        right += [(f"  {name} ", "dim"), (figures.count(value), style)]
    first: Spans = [(meta_text(view.meta), "bold")]
    if view.meta.remark:
        first.append((" " + view.meta.remark, "warn"))
    second = range_line(stats, width)
    room = width - width_of(second) - 3
    if stats.histogram and any(stats.histogram) and room >= 12:
        bars = plots.histogram(stats.histogram, min(room, len(stats.histogram)))[0]
        second = beside(second, [(bars, "title")], width)
    return [beside(first, right, width), second]


def slot_row(model: ValueModel, width: int) -> tuple[list[Spans], dict[tuple[int, int, int], int]]:
    """All values in one line, from the chosen one's group on where they do not fit."""
    first = 0
    while True:
        spans: Spans = []
        places: dict[tuple[int, int, int], int] = {}
        group = ""
        for position, (kind, slot) in enumerate(model.slots[first:], first):
            if kind != group:
                spans.append((f"{'  ' if spans else ''}{kind} ", "heading"))
                group = kind
            chosen = position == model.chosen
            start = width_of(spans)
            text = ("▸" if chosen else " ") + slot.name
            spans.append((text, "bold" if chosen else "op"))
            places[(0, start, start + len(text))] = position
        if width_of(spans) <= width or first >= model.chosen:
            return ([figures.fit(spans, width)] if spans else []), places
        first += 1


def slot_lines(model: ValueModel, width: int) -> tuple[list[Spans], dict[tuple[int, int, int], int]]:
    """The values of the node, wrapped; and where each stands: (line, first cell, end cell) -> slot."""
    lines: list[Spans] = []
    places: dict[tuple[int, int, int], int] = {}
    group = ""
    for position, (kind, slot) in enumerate(model.slots):
        chosen = position == model.chosen
        name = slot.name
        shape = slot.text or _shape_or_remark(slot.meta)
        text = f"{'▸' if chosen else ' '}{name} {shape}"
        text = elide(text, width - 7)
        spoilt = slot.meta is not None and slot.meta.state is ValueState.CORRUPTED
        if kind != group:
            lines.append([(f" {kind:<5} ", "heading")])
            group = kind
        elif width_of(lines[-1]) + len(text) + 1 > width:
            lines.append([(" " * 7, "")])
        start = width_of(lines[-1])
        lines[-1].append((text + " ", "bad" if spoilt else "bold" if chosen else "op"))
        places[(len(lines) - 1, start, start + len(text))] = position
    return lines, places


def contribution_lines(body: NodeBody, width: int) -> list[Spans]:
    """The parts that several nodes gave to one gradient."""
    spans: Spans = []
    for part in body.contributions:
        spans.append((f"{'+ ' if spans else ''}{part.from_node} ", "op"))
        spans.append((f"{number(part.norm)} ", "number"))
    if spans:
        return [figures.fit([(" parts ", "heading"), *spans], width)]
    if body.contributions_note:
        return [figures.fit([(" parts ", "heading"), (body.contributions_note, "dim")], width)]
    return []


def attribute_lines(body: NodeBody, width: int) -> list[Spans]:
    """Attributes that the framework keeps beside saved tensors."""
    words = [compiled_text(body.node)] if body.node.compiled else []
    words += [f"{name} {value}" for name, value in body.attributes.items()]
    if not words:
        return []
    text = "  ".join(words)
    return [figures.fit([(" attrs ", "heading"), (text, "dim")], width)]

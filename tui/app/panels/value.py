"""Panel 4: one value of the selected node: what it is, its statistics, a picture of it, and the other values. UI
thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip

from adbg.engine.protocol.messages import NodeBody
from adbg.engine.types import SlotView, TensorMeta, TensorStats, TensorView, ValueState
from adbg.tui.app.lines import plots
from adbg.tui.app.lines.linepanel import LinePanel
from adbg.tui.app.lines.wrapping import wrap
from adbg.tui.text import cells as figures
from adbg.tui.text.cells import Spans, beside, elide, number, width_of
from adbg.tui.text.quantities import size

Picture = list[Segment]
COMPACT = 10  # lines; below that, two lines of figures and one of values
BINS = 64  # asked of the engine: one per cell up to 64 cells


@dataclass(slots=True)
class ValueModel:
    """The node's slots, which one is shown, and the view of it as far as it has come."""

    body: NodeBody | None = None
    view: TensorView | None = None
    chosen: int = 0
    slice: str = ""
    problem: str = ""
    loading: bool = False
    expression: str = ""  # shown in place of a slot: what the user asked for by name
    slots: list[tuple[str, SlotView]] = field(default_factory=list)
    wanted: tuple[str, str] = ("in", "")  # kind and name that the user chose last
    preferred: str = ""  # name of the slot to show at this stop
    fresh: str = ""  # kind of the values that are new at this stop

    def prefer(self, name: str) -> None:
        """The next node shown shows the value ``name`` ("grad_inputs[0]")."""
        self.preferred = name

    def expect(self, kind: str) -> None:
        """The node shown next shows its first value of ``kind``, unless the person chose another kind before."""
        self.fresh = kind

    def show_node(self, body: NodeBody | None) -> None:
        """Another node, or the same one read again, which goes on showing what it shows. The slot stays chosen by its
        name, else by its kind, else it is the first."""
        kind, name = self.wanted
        changed = body is None or self.body is None or body.node.key != self.body.node.key
        before = self.target
        if self.fresh and kind == "in":
            kind, name = self.fresh, ""
        elif not changed and self.slots:
            name = self.slots[self.chosen][1].name
        self.body = body
        self.problem = ""
        if changed:
            self.view, self.slice, self.expression = None, "", ""
        self.slots = []
        if body is not None:
            groups = (("in", body.grad_outputs), ("out", body.grad_inputs), ("saved", body.saved))
            self.slots = [(group, slot) for group, slots in groups for slot in slots]
        names = [slot.name for _, slot in self.slots]
        kinds = [group for group, _ in self.slots]
        self.chosen = names.index(name) if name in names else kinds.index(kind) if kind in kinds else 0
        readable = [_readable(slot) for _, slot in self.slots]
        if self.slots and not readable[self.chosen] and any(readable):
            self.chosen = readable.index(True)
        for position, shown in enumerate(names):
            if self.preferred == shown:
                self.chosen, self.view = position, None
                self.preferred = ""
        if self.target != before:
            self.view = None
        if body is not None:
            self.fresh = ""

    @property
    def slot(self) -> SlotView | None:
        return self.slots[self.chosen][1] if self.slots and not self.expression else None

    @property
    def target(self) -> str:
        """Expression of what is shown."""
        return self.expression or (self.slot.expression if self.slot else "")

    def cycle(self, step: int) -> bool:
        """Choose the next slot; False where there is no other."""
        if not self.slots or (len(self.slots) == 1 and not self.expression):
            return False
        self.choose(self.chosen if self.expression else (self.chosen + step) % len(self.slots))
        return True

    def choose(self, chosen: int) -> None:
        self.chosen = chosen
        kind, slot = self.slots[chosen]
        self.wanted = (kind, slot.name)
        self.expression, self.slice, self.view, self.problem = "", "", None, ""

    def show_expression(self, expression: str) -> None:
        self.expression, self.slice, self.view, self.problem = expression, "", None, ""


def _readable(slot: SlotView) -> bool:
    """Whether there are values to look at: a gradient of a node that is not at hand has none."""
    missing = (ValueState.NOT_KEPT, ValueState.NOT_HOOKED)
    return slot.meta is not None and slot.meta.shape is not None and slot.meta.state not in missing


# ------------------------------------------------------------------ lines


def meta_text(meta: TensorMeta) -> str:
    """ "f32 [64,256] cpu 64KiB"."""
    if meta.shape is None:
        return meta.remark
    words = [meta.dtype, figures.shape(meta.shape), meta.device, size(meta.nbytes)]
    if meta.layout != "strided":
        words.append(meta.layout)
    return " ".join(word for word in words if word)


def meta_line(meta: TensorMeta, stats: TensorStats | None, width: int) -> Spans:
    left: Spans = [(meta_text(meta), "bold")]
    right = norm_spans(stats) if stats else []
    return beside(left, right, width) if right else figures.fit(left, width)


def norm_spans(stats: TensorStats) -> Spans:
    """The norm is over the finite elements; where that is not all of them it says so."""
    return [("‖·‖ " if stats.all_finite else "‖finite‖ ", "dim"), (number(stats.norm), "number")]


def note_lines(meta: TensorMeta, width: int) -> list[Spans]:
    """What is special about the value, in as many lines as it takes."""
    if not meta.remark or meta.shape is None:
        return []
    return [[(piece, "warn")] for piece in wrap(meta.remark, width)]


def range_line(stats: TensorStats, width: int) -> Spans:
    """min, max, mean, std of the finite elements."""
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
            chosen = position == model.chosen and not model.expression
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
        chosen = position == model.chosen and not model.expression
        name = slot.name
        shape = slot.text or (figures.shape(slot.meta.shape) if slot.meta and slot.meta.shape is not None else "none")
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
    if not body.attributes:
        return []
    text = "  ".join(f"{name} {value}" for name, value in body.attributes.items())
    return [figures.fit([(" attrs ", "heading"), (text, "dim")], width)]


# ------------------------------------------------------------------ the panel


class ValuePanel(LinePanel):
    """``model`` says what; ``changed`` after it was touched. The size of the picture is what it asks the engine for."""

    show_cursor = False

    class SlotChosen(Message):
        """Another value of the node was chosen."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.model = ValueModel()
        self.waiting = "stop at a node to see its values"
        self._lines: list[Spans | Picture] = []
        self._places: dict[tuple[int, int, int], int] = {}
        self._built: tuple[int, int] = (0, 0)

    def changed(self) -> None:
        """Build the lines anew."""
        self._built = (self.size.width, self.size.height)
        self._lines, self._places = self._build(*self._built) if all(self._built) else ([], {})
        self.lines_changed()

    def on_resize(self, event: events.Resize) -> None:
        self.changed()

    def line_count(self) -> int:
        return len(self._lines)

    def empty_text(self) -> str:
        return self.waiting

    def picture_room(self) -> tuple[int, int]:
        """(rows, cols) of a window that fills the picture: two rows a line."""
        return max(2 * self._picture_height(self.size.width, self.size.height), 2), max(self.size.width, 8)

    def line(self, row: int, width: int) -> Spans:
        item = self._lines[row]
        return [] if item and isinstance(item[0], Segment) else item  # type: ignore[return-value]

    def render_line(self, y: int) -> Strip:
        row = y + self.scroll_offset.y
        if row < len(self._lines) and self._lines[row] and isinstance(self._lines[row][0], Segment):
            strip = Strip(self._lines[row])  # type: ignore[arg-type]
            return strip.adjust_cell_length(self.size.width, Style()).apply_style(self.rich_style)
        return super().render_line(y)

    def _below(self, width: int, height: int) -> tuple[list[Spans], dict[tuple[int, int, int], int]]:
        """What stands under the picture."""
        model = self.model
        if height < COMPACT:
            return slot_row(model, width)
        lines, places = slot_lines(model, width)
        if model.body is not None:
            lines = [*lines, *contribution_lines(model.body, width), *attribute_lines(model.body, width)]
        return lines, places

    def _picture_height(self, width: int, height: int) -> int:
        """Lines left for the picture when the text has its own."""
        above = 3 if height < COMPACT else 3 + self._histogram_height(height) + 1
        return max(height - above - len(self._below(width, height)[0]), 1)

    @staticmethod
    def _histogram_height(height: int) -> int:
        return 1 if height < 12 else 3 if height < 24 else 5

    def _build(self, width: int, height: int) -> tuple[list[Spans | Picture], dict[tuple[int, int, int], int]]:
        model = self.model
        below, places = self._below(width, height)
        above: list[Spans | Picture] = []
        view = model.view
        if model.expression:
            above.append([(elide(model.expression, width), "bold")])
        if model.problem:
            above.append(figures.fit([(model.problem, "bad")], width))
        elif view is None:
            slot = model.slot
            if slot is not None and slot.meta is not None:
                above += [meta_line(slot.meta, None, width), *note_lines(slot.meta, width)]
            elif slot is not None and slot.text:
                above.append([(elide(slot.text, width), "op")])
            if model.loading:
                above.append([("reading …", "faint")])
            elif not model.slots and model.body is not None:
                above.append([("this node has no value that can be read here", "dim")])
        else:
            above += self._view_lines(view, width, height)
        if not above and not below:
            return [], {}
        shift = len(above)
        return [*above, *below], {(line + shift, a, b): slot for (line, a, b), slot in places.items()}

    def _view_lines(self, view: TensorView, width: int, height: int) -> list[Spans | Picture]:
        lines: list[Spans | Picture] = []
        if view.text:
            lines += [[(elide(text, width), "op")] for text in view.text.splitlines()[: max(height - 2, 1)]]
        stats = view.stats
        if height < COMPACT:
            lines += compact_lines(view, width)
        elif view.meta is not None:
            slot = self.model.slot
            noted = slot.meta if slot is not None and slot.meta is not None and not view.meta.remark else view.meta
            lines += [meta_line(view.meta, stats, width), *note_lines(noted, width)]
        if stats is not None and stats.numel and height >= COMPACT:
            lines += [range_line(stats, width), counts_line(stats, width)]
            lines += histogram_lines(stats, width, self._histogram_height(height))
        window = view.window
        if window is not None and window.values and (view.meta is None or view.meta.numel > 1):
            magnitudes = "max" in window.reduced
            lines += plots.heatmap(window.values, width, self._picture_height(width, height), magnitudes)
            how = window.reduced if magnitudes else "each element"
            notes = [window.slice or "[]", how]
            if stats is not None and stats.sampled is not None:
                notes.append(sample_text(stats))
            lines.append([(elide(" · ".join(notes), width), "faint")])
        elif stats is not None and stats.sampled is not None:
            lines.append([(sample_text(stats), "faint")])
        return lines

    def on_click(self, event: events.Click) -> None:
        """A click on a value's name chooses it."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        y = offset.y + self.scroll_offset.y
        for (line, start, end), slot in self._places.items():
            if line == y and start <= offset.x < end:
                self.model.choose(slot)
                self.changed()
                self.post_message(self.SlotChosen())
                return
        if event.chain == 2:
            self.post_message(self.Opened(self, y))

    def action_open(self) -> None:
        self.post_message(self.Opened(self, 0))

    def title(self) -> str:
        """For the frame."""
        return self.model.target

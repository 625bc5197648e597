"""Panel 4: one value of the selected node: what it is, its statistics, a picture of it, and the other values. UI
thread."""

from __future__ import annotations

from typing import Any

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip

from adbg.engine.types import TensorView
from adbg.tui.app.lines import plots
from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.app.panels.value_lines import (
    attribute_lines,
    compact_lines,
    contribution_lines,
    counts_line,
    histogram_lines,
    meta_line,
    note_lines,
    range_line,
    sample_text,
    slot_lines,
    slot_row,
)
from adbg.tui.app.panels.value_model import ValueModel
from adbg.tui.text import cells as figures
from adbg.tui.text.cells import Spans, elide

Picture = list[Segment]
COMPACT = 10  # lines; below that, two lines of figures and one of values
BINS = 64  # asked of the engine: one per cell up to 64 cells


class ValuePanel(LinePanel):
    """``model`` says what; ``changed`` after it was touched. The size of the picture is what it asks the engine for."""

    show_cursor = False

    class SlotChosen(Message):
        """Another value of the node was chosen."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.model = ValueModel()
        self.node = 0  # index of the node whose value it is, once it was read
        self.waiting = "stop at a node to see its values"
        self._lines: list[Spans | Picture] = []
        self._places: dict[tuple[int, int, int], int] = {}
        self._built: tuple[int, int] = (0, 0)

    def changed(self) -> None:
        """Build the lines again."""
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
        """For the frame: "grad_outputs[0] · #5"."""
        target = self.model.target
        return f"{target} · #{self.node}" if target and self.node else target

    def cycle(self, step: int) -> bool:
        """The next value of the node; False where there is no other."""
        found = self.model.cycle(step)
        if found:
            self.post_message(self.SlotChosen())
        return found

    def copied(self) -> str:
        return "\n".join("".join(text for text, *_ in line) for line in self._lines)

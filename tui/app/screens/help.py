"""Help: what the keys do now, from the live bindings, and what the commands are, from their table. UI thread."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.dom import DOMNode
from textual.screen import ModalScreen

from adbg.tui.app.keymap import BY_ID, GROUPS
from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.app.lines.wrapping import wrap
from adbg.tui.text.cells import Spans

INTRO = (
    "adbg stops inside backward, node by node. Graph shows every node in the order in which it runs:",
    "● ran, ▶ here, ○ to come, ◆ breakpoint, red non-finite. What is selected in one panel is selected in all.",
    "The console takes every command by name.",
)
READING = (
    ("● ▶ ○", "a node that has run, the current one, one still to run; red: NaN or Inf in its gradients"),
    ("│ ╭ ╯ ─", "lanes: an edge runs down from a node to the one that receives its gradient"),
    ("»", "more lanes than fit; a dot after it: the node is in one of those"),
    ("⤓#45 ⤒#12", "an edge too long to draw: it continues at #45, it comes from #12"),
    ("Mm +2ac", "the name is MmBackward0 in short; 2 accumulate nodes (.grad) that it feeds are folded: space"),
    ("T →w", "the one accumulate node that it feeds is that of the parameter w"),
    ("us ‖g‖ shape", "time of the node in µs, norm and shape of the gradient that flows in (grad_outputs[0])"),
    ("↓2.1e-5 ↑340", "the norm is a quarter, or four times, that of what feeds the node, or beyond"),
    ("·", "not measured: the node has not run yet, or nothing asked for it (stepping does, and `record on` for all)"),
    ("Σ299µs", "status bar: the sum over the nodes of this backward that were timed"),
)
_WHERE = {"code": " (Source)", "graph": " (Graph)", "vlog": " (VLOG)", "foldable": " (Graph, VLOG)"}


def live_keys(nodes: Iterable[DOMNode], app: Any) -> dict[str, list[str]]:
    """Keys as they are bound now, by id of the key table, for all of ``nodes``; a user's keymap is in it."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        bindings_map = node._bindings.copy()  # the only place that has bindings of widgets without the focus
        if app._keymap:
            bindings_map.apply_keymap(app._keymap)
        for _, binding in bindings_map:
            if binding.id in BY_ID:
                key = app.get_key_display(binding)
                keys = found.setdefault(binding.id, [])
                if key not in keys:
                    keys.append(key)
    return found


def help_lines(keys: dict[str, list[str]], commands: Iterable[tuple[str, str, str]], width: int) -> list[Spans]:
    """The text: keys by group in two columns where there is room, then commands as (group, usage, summary)."""
    lines: list[Spans] = [[(piece, "dim")] for line in INTRO for piece in wrap(line, width)]
    for group in GROUPS:
        rows = [
            (" ".join(keys[name]), key.text + _WHERE.get(key.where, ""))
            for name, key in BY_ID.items()
            if key.group == group and name in keys
        ]
        if rows:
            lines += [[], [(group, "heading")], *_columns(rows, width)]
    lines += _legend(width)
    titles: dict[str, list[tuple[str, str]]] = {}
    for group, usage, summary in commands:
        titles.setdefault(group, []).append((usage, summary))
    if titles:
        lines += [[], [("Commands", "title"), ("  unique prefixes will do; `help NAME` says more", "dim")]]
    for group, rows in titles.items():
        lines += [[], [(group, "heading")]]
        for usage, text in rows:
            lines += _cell(usage, text, min(34, width // 3), width)
    return lines


def _legend(width: int) -> list[Spans]:
    """What the signs of the graph panel mean."""
    lines: list[Spans] = [[], [("Reading the graph", "heading")]]
    size = max(len(sign) for sign, _ in READING)
    for sign, text in READING:
        lines += _cell(sign, text, size, width)
    return lines


def _cell(key: str, text: str, size: int, width: int) -> list[Spans]:
    """``key`` in ``size`` cells with ``text`` beside it, broken into lines of ``width``; nothing is cut. A key that is
    longer stands above."""
    long = cell_len(key) > size
    lines: list[Spans] = [[(f"  {piece}", "key")] for piece in wrap(key, width - 2)] if long else []
    key = "" if long else key
    for piece in wrap(text, max(width - size - 4, 20)):
        beside = " " * (size - cell_len(key))
        lines.append([(f"  {key}{beside} ", "key"), (piece, "")])
        key = ""
    return lines


def _columns(rows: list[tuple[str, str]], width: int) -> list[Spans]:
    """One or two columns of key and text."""
    columns = 2 if width >= 120 else 1
    each = width // columns
    size = min(max(*(len(key) for key, _ in rows), 8), 16)
    height = -(-len(rows) // columns)
    lines: list[Spans] = []
    for row in range(height):
        left, *right = (_cell(key, text, size, each - 1) for key, text in rows[row::height])
        nothing: Spans = []
        for spans, beside in zip_longest(left, right[0] if right else [], fillvalue=nothing):
            room = each - sum(cell_len(text) for text, _ in spans)
            lines.append([*spans, (" " * room, ""), *beside] if beside else spans)
    return lines


class HelpText(LinePanel):
    """The scrolled text; searched with /."""

    show_cursor = False

    def __init__(self, keys: dict[str, list[str]], commands: list[tuple[str, str, str]], **options: Any) -> None:
        super().__init__(**options)
        self._keys = keys
        self._commands = commands
        self._lines: list[Spans] = []

    def on_resize(self, event: Any) -> None:
        self._lines = help_lines(self._keys, self._commands, self.size.width)
        self.lines_changed()

    def line_count(self) -> int:
        return len(self._lines)

    def line(self, row: int, width: int) -> Spans:
        return self._lines[row]


class HelpScreen(ModalScreen[None]):
    """Any of escape, q, ? and F1 leaves it."""

    BINDINGS = [Binding("escape,q,question_mark,f1", "leave", "Leave", show=False)]

    def __init__(self, keys: dict[str, list[str]], commands: list[tuple[str, str, str]]) -> None:
        super().__init__()
        self._keys = keys
        self._commands = commands

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame full") as box:
            box.border_title = "Help"
            box.border_subtitle = "j k scroll · esc back"
            yield HelpText(self._keys, self._commands, id="help-text")

    def action_leave(self) -> None:
        self.dismiss(None)

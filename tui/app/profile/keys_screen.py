"""All keys of the report, however narrow the terminal. UI thread."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen

from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.text.cells import Spans, fit

KEYS = (
    ("tab [ ]", "the next view, the previous one: flame graph, table, nodes, iterations, difference"),
    ("j k g G", "down, up, the first, the last; ctrl+d ctrl+u half a page; the mouse selects"),
    ("h l", "flame graph: the frame on the left, on the right"),
    ("enter", "flame graph: the frame in full width; nodes: the node in the graph; tables: the source line"),
    ("escape 0", "one zoom back, then out; all of the flame graph again"),
    ("i", "flame graph: the innermost frames first, their callers below them"),
    ("f c", "this function in the flame graph: what it calls; all of its callers"),
    ("o", "the source line; F5 comes back from it to the report"),
    ("/ n N", "search in names, files, modules (a regular expression); next, previous"),
    ("s S", "tables: sort by the next column, the previous one; a click on a title does the same"),
    ("b", "tables: rows of functions, lines, files, modules, origins, phases, threads; nodes: each by itself"),
    ("d", "the difference to another profile: red takes more in this one, green less"),
    ("w", "write it: .svg .html .speedscope.json .pb.gz .trace.json .collapsed .pstats"),
    ("y", "copy the function's name and place"),
    ("q", "leave the report"),
)
_SIZE = max(len(key) for key, _ in KEYS)


class KeysText(LinePanel):
    show_cursor = False

    def line_count(self) -> int:
        return len(KEYS)

    def line(self, row: int, width: int) -> Spans:
        key, text = KEYS[row]
        return fit([(f"  {key:<{_SIZE}}  ", "key"), (text, "")], width)


class KeysScreen(ModalScreen[None]):
    """Any of escape, q, ? and F1 leaves it."""

    BINDINGS = [Binding("escape,q,question_mark,f1", "leave", "Leave", show=False)]

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame full") as box:
            box.border_title = "Keys of the report"
            box.border_subtitle = "esc back"
            yield KeysText()

    def action_leave(self) -> None:
        self.dismiss(None)

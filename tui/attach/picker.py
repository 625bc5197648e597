"""Picking a process in the terminal: arrow keys, and what is typed filters. Main thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from adbg.tui.attach.offers import Offer, offers
from adbg.tui.text.attach import COLUMNS, aligned

if TYPE_CHECKING:
    from prompt_toolkit import Application
    from prompt_toolkit.formatted_text import StyleAndTextTuples as Fragments
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.layout import Layout

HINT = "↑↓ choose · type to filter · Enter attaches · Ctrl-R looks again · Esc leaves"
MOST = 20  # rows shown at a time; fewer on a small terminal
FRAME = 5  # lines around them


class Picker:
    """The state of the list: pure but for ``read``."""

    def __init__(self, read: Callable[[], list[Offer]] = offers) -> None:
        self._read = read
        self.rows: list[Offer] = read()
        self.words = ""
        self.said = ""
        self.cursor = 0
        self._to_first_possible()

    @property
    def shown(self) -> list[Offer]:
        """The rows in which every typed word occurs somewhere."""
        words = self.words.lower().split()
        return [row for row in self.rows if all(word in " ".join(row.cells).lower() for word in words)]

    @property
    def current(self) -> Offer | None:
        shown = self.shown
        return shown[self.cursor] if shown else None

    def _to_first_possible(self) -> None:
        """The first row with a framework that can be entered, else the first that can."""
        able = [(not row.seen.frameworks, place) for place, row in enumerate(self.shown) if not row.obstacle]
        self.cursor = min(able)[1] if able else 0

    def move(self, by: int) -> None:
        self.said = ""
        self.cursor = max(0, min(self.cursor + by, len(self.shown) - 1))

    def type(self, words: str) -> None:
        self.words, self.said = words, ""
        self._to_first_possible()

    def look_again(self) -> None:
        before = self.current
        self.rows = self._read()
        places = [place for place, row in enumerate(self.shown) if before and row.seen.pid == before.seen.pid]
        self.cursor = places[0] if places else 0

    def take(self) -> tuple[int, bool] | None:
        """(pid, whether a job) of the current row; None, and why, where it cannot be picked."""
        row = self.current
        if row is None:
            self.said = "no process matches: Backspace takes the filter back"
            return None
        if row.obstacle:
            self.said = f"process {row.seen.pid} cannot be entered: {row.obstacle}"
            return None
        return row.seen.pid, row.job

    def fragments(self, height: int, width: int) -> Fragments:
        """The list as prompt_toolkit's styled text: the part of it around the cursor."""
        shown = self.shown
        head, *lines = aligned([COLUMNS, *(row.cells for row in shown)], width - 3)
        first = max(0, min(self.cursor - height // 2, len(lines) - height))
        out: Fragments = [("class:head", f"  {head}\n")]
        for place in range(first, min(first + height, len(lines))):
            here = place == self.cursor
            style = "class:here" if here else "class:dim" if shown[place].obstacle else ""
            out.append((style, f"{'▶' if here else ' '} {lines[place]}\n"))
        if not shown:
            out.append(("class:dim", "  nothing matches\n"))
        return out


def _keys(picker: Picker) -> KeyBindings:
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        taken = picker.take()
        if taken is not None:
            event.app.exit(result=taken)

    @keys.add("escape", eager=True)
    @keys.add("c-c")
    @keys.add("c-d")
    def _(event: KeyPressEvent) -> None:
        event.app.exit(result=None)

    @keys.add("c-r")
    def _(_event: KeyPressEvent) -> None:
        picker.look_again()

    for name, by in (("up", -1), ("down", 1), ("pageup", -10), ("pagedown", 10), ("c-p", -1), ("c-n", 1)):
        keys.add(name)(lambda _event, by=by: picker.move(by))
    return keys


def _layout(picker: Picker) -> Layout:
    from prompt_toolkit.application import get_app
    from prompt_toolkit.buffer import Buffer
    from prompt_toolkit.layout import HSplit, Layout, VSplit, Window
    from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
    from prompt_toolkit.layout.dimension import Dimension

    typed = Buffer(multiline=False, on_text_changed=lambda buffer: picker.type(buffer.text))

    def rows() -> Fragments:
        size = get_app().output.get_size()
        return picker.fragments(max(min(MOST, size.rows - FRAME), 3), size.columns)

    def below() -> Fragments:
        row = picker.current
        why = picker.said or (f"not possible: {row.obstacle}" if row is not None and row.obstacle else "")
        return [("class:bad", why)] if why else [("class:dim", HINT)]

    line = Dimension.exact(1)
    return Layout(
        HSplit(
            [
                VSplit(
                    [
                        Window(FormattedTextControl("attach to: "), width=11, height=line),
                        Window(BufferControl(typed), height=line),
                    ]
                ),
                Window(FormattedTextControl(rows), wrap_lines=False, dont_extend_height=True),
                Window(FormattedTextControl(below), height=line),
            ]
        )
    )


def picking(picker: Picker) -> Application[tuple[int, bool] | None]:
    """The application; ``run`` of it gives (pid, whether a job), None when the user left."""
    from prompt_toolkit import Application
    from prompt_toolkit.styles import Style

    style = Style.from_dict({"head": "bold", "here": "reverse", "dim": "#888888", "bad": "ansired"})
    return Application(
        layout=_layout(picker), key_bindings=_keys(picker), style=style, full_screen=False, erase_when_done=True
    )


def pick(rows: Sequence[Offer] | None = None) -> tuple[int, bool] | None:
    """Let the user pick; (pid, whether a job), None when there was nothing or the user left."""
    picker = Picker() if rows is None else Picker(lambda: list(rows))
    if not picker.rows:
        print("no Python process of yours runs")
        return None
    return picking(picker).run()

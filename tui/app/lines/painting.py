"""Painting what changed: the cells that the terminal shows are remembered, and only others are sent. UI thread.

Textual paints whole widgets, and whole screens after a change of layout: 83 KB for one ``j`` at 160x45, which people
wait for over ssh. Here the same frame is compared with what was sent before, cell by cell, and styles are set where
they change instead of around each piece of text: 1 to 3 KB. What the terminal shows is not known after a change of its
size, when somebody else had it, and where a character is not one cell wide: that is sent anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console, RenderableType
from rich.control import Control
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.app import App
from textual.screen import Screen
from textual.strip import Strip

UNKNOWN = ""  # character of a cell of which it is not known what the terminal shows
_SINGLE: set[str] = set()  # characters that are known to take one cell


class Ink(NamedTuple):
    """SGR codes of a cell, "" for the terminal's own; None: a blank shows no difference."""

    attributes: str | None
    colour: str | None
    ground: str


PLAIN = Ink("", "", "")
_LETTERS_ONLY = {"", "1", "2", "3"}  # bold, dim, italic: a blank looks the same
Piece = tuple[int, int, Strip]  # line, first cell, what stands there


class Cells:
    """What the terminal shows."""

    def __init__(self) -> None:
        self._characters: list[list[str]] = []
        self._inks: list[list[Ink]] = []

    def forget(self) -> None:
        """The terminal may show anything now."""
        self._characters, self._inks = [], []

    def changes(self, pieces: Iterator[Piece], size: tuple[int, int], console: Console) -> str:
        """What has to be written for the terminal, of ``size`` (columns, lines), to show ``pieces`` too."""
        columns, lines = size
        if len(self._characters) != lines or (lines and len(self._characters[0]) != columns):
            self._characters = [[UNKNOWN] * columns for _ in range(lines)]
            self._inks = [[PLAIN] * columns for _ in range(lines)]
        output: list[str] = []
        pen = Pen(output)
        for y, x, strip in pieces:
            if y >= lines or x >= columns:
                continue
            characters, inks = _cells(strip, console)
            stop = x + (strip.cell_length if characters is None else len(characters))
            if characters is None or stop > columns:
                stop = min(stop, columns)
                self._characters[y][x:stop] = [UNKNOWN] * (stop - x)
                pen.put_down()
                output.append(f"{_move(x, y)}{strip.render(console)}")
                continue
            old_characters, old_inks = self._characters[y][x:stop], self._inks[y][x:stop]
            if old_characters == characters and old_inks == inks:
                continue
            at = -1  # where the terminal's cursor is
            for column, (character, ink) in enumerate(zip(characters, inks)):
                if character == old_characters[column] and ink == old_inks[column]:
                    continue
                if at != column:
                    output.append(f"\x1b[{column - at}C" if at >= 0 else _move(x + column, y))
                pen.take(ink)
                output.append(character)
                at = column + 1
            self._characters[y][x:stop], self._inks[y][x:stop] = characters, inks
        pen.put_down()
        return "".join(output)


class Pen:
    """The style that the terminal writes in; writes to ``output`` what changes it."""

    def __init__(self, output: list[str]) -> None:
        self._output = output
        self._ink = PLAIN

    def take(self, ink: Ink) -> None:
        """Write in ``ink`` from here on."""
        had = self._ink
        if ink == had:
            return
        attributes, colour, ground = ink
        if attributes is None:  # underlined and reversed blanks would show
            attributes = had.attributes if set((had.attributes or "").split(";")) <= _LETTERS_ONLY else ""
        codes = []
        if attributes != had.attributes:
            if had.attributes:
                codes, had = ["0"], PLAIN
            codes.append(attributes or "")
        if colour is None:
            colour = had.colour
        elif colour != had.colour:
            codes.append(colour or "39")
        if ground != had.ground:
            codes.append(ground or "49")
        self._ink = Ink(attributes, colour, ground)
        if codes := [code for code in codes if code]:
            self._output.append(f"\x1b[{';'.join(codes)}m")

    def put_down(self) -> None:
        """Back to the terminal's own style."""
        if self._ink != PLAIN:
            self._output.append("\x1b[0m")
            self._ink = PLAIN


def _cells(strip: Strip, console: Console) -> tuple[list[str] | None, list[Ink]]:
    """Characters and styles of a strip, a cell each; None where a character takes more or less than one, or is a
    link."""
    colours = console._color_system or ColorSystem.TRUECOLOR
    characters: list[str] = []
    inks: list[Ink] = []
    for text, style, _ in strip:
        if not _single(text) or (style is not None and style.link):
            return None, []
        characters.extend(text)
        inks.extend([_ink(style or Style.null(), text.isspace(), colours)] * len(text))
    return characters, inks


@lru_cache(4096)
def _ink(style: Style, blank: bool, colours: ColorSystem) -> Ink:
    ground = ";".join(style.bgcolor.downgrade(colours).get_ansi_codes(False)) if style.bgcolor else ""
    if blank and not (style.underline or style.underline2 or style.strike or style.overline or style.reverse):
        return Ink(None, None, ground)
    colour = ";".join(style.color.downgrade(colours).get_ansi_codes()) if style.color else ""
    return Ink(Strip.render_ansi(style.without_color, colours), colour, ground)


def _single(text: str) -> bool:
    """Whether each character takes one cell."""
    if text.isascii():
        return text.isprintable()
    fresh = set(text) - _SINGLE
    if any(cell_len(character) != 1 or not character.isprintable() for character in fresh):
        return False
    _SINGLE.update(fresh)
    return True


def _move(x: int, y: int) -> str:
    return str(Control.move_to(x, y))


def _pieces(update: LayoutUpdate | ChopsUpdate) -> Iterator[Piece]:
    """What the update paints, as Textual's ``render_segments`` walks it."""
    if isinstance(update, LayoutUpdate):
        for y, line in enumerate(update.strips, update.region.y):
            x = update.region.x
            for piece in line:
                yield y, x, piece
                x += piece.cell_length
        return
    chops: Sequence[Mapping[int, Strip | None]] = update.chops
    for y, first, last in update.spans:
        for end, (x, strip) in zip(update.chop_ends[y], chops[y].items()):
            if strip is None or x > last or end <= first:
                continue
            yield y, x, strip if last > x >= first and end <= last else strip.crop(0, min(end, last) - x)


class Changes(CompositorUpdate):
    """An update that renders as the cells that it changes."""

    def __init__(self, update: LayoutUpdate | ChopsUpdate, cells: Cells, size: tuple[int, int]) -> None:
        self._update = update
        self._cells = cells
        self._size = size

    def __rich_console__(self, console: Console, options: object) -> Iterator[Segment]:
        yield Segment(self.render_segments(console))

    def render_segments(self, console: Console) -> str:
        """As the update's. Called when it is written, so that the cells are what was sent."""
        return self._cells.changes(_pieces(self._update), self._size, console)


class Painted(App[int]):
    """An app that sends the terminal what changed."""

    def __init__(self) -> None:
        super().__init__()
        self._cells = Cells()

    def on_mount(self) -> None:
        """Whoever had the terminal meanwhile (ctrl+z, the full prompt) left something else on it."""
        self.app_resume_signal.subscribe(self, lambda app: self.action_redraw(), immediate=True)

    def on_resize(self, event: events.Resize) -> None:
        """The terminal rearranged what it showed."""
        self._cells.forget()

    def action_redraw(self) -> None:
        """Send all cells again."""
        self._cells.forget()
        if self.screen_stack:
            self.screen.refresh(layout=True)

    def _display(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        if isinstance(renderable, (LayoutUpdate, ChopsUpdate)):
            renderable = Changes(renderable, self._cells, (self.size.width, self.size.height))
        elif renderable is not None:
            self._cells.forget()
        super()._display(screen, renderable)

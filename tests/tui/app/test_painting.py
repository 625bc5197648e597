"""What is sent to the terminal: the cells that changed, and the same picture as if all had been sent."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pyte
import pytest
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from support.terminal import Terminal
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.geometry import Region
from textual.strip import Strip

from adbg.tui.app.lines.painting import Cells, Changes

SIZE = (40, 8)
CONSOLE = Console(color_system="truecolor", force_terminal=True)
STYLES = [
    None,
    Style(color="#c5cad3"),
    Style(color="#c5cad3", bgcolor="#14161b"),
    Style(color="#f0677d", bgcolor="#14161b", bold=True),
    Style(bgcolor="#2b3344", underline=True),
    Style(color="#e0b568", reverse=True),
    Style(color="red", italic=True, meta={"offset": (1, 2)}),
    Style(bgcolor="#14161b"),
]
TEXTS = ["│", "─┼─", "op  ", "   ", "▶", "1.2e-3", "汉字", "é", "abc"]


def strip(rng: random.Random, width: int) -> Strip:
    segments = [Segment(rng.choice(TEXTS), rng.choice(STYLES)) for _ in range(width)]
    return Strip(segments).crop(0, width)


def shown(screen: pyte.Screen) -> list[list[Any]]:
    """Each cell as a person sees it: letters of blanks have no colour."""
    rows = []
    for y in range(screen.lines):
        row = []
        for x in range(screen.columns):
            char = screen.buffer[y][x]
            seen = char.bg, char.reverse, char.underscore, char.strikethrough
            row.append((char.data, *seen, *(() if char.data == " " and not char.reverse else (char.fg, char.bold))))
        rows.append(row)
    return rows


class Twins:
    """A terminal that gets what changed, and one that gets everything."""

    def __init__(self) -> None:
        self.screens = [pyte.Screen(*SIZE) for _ in range(2)]
        self.streams = [pyte.Stream(screen) for screen in self.screens]
        self.cells = Cells()
        self.sent = [0, 0]

    def paint(self, update: LayoutUpdate | ChopsUpdate) -> None:
        texts = Changes(update, self.cells, SIZE).render_segments(CONSOLE), update.render_segments(CONSOLE)
        for number, text in enumerate(texts):
            self.streams[number].feed(text.replace("\n", ""))
            self.sent[number] += len(text)
        assert shown(self.screens[0]) == shown(self.screens[1])


@pytest.mark.parametrize("seed", range(8))
def test_the_terminal_shows_what_it_would_have_shown(seed: int) -> None:
    """Whole screens and parts of them, wide characters, every style, and what a terminal that forgot needs."""
    rng = random.Random(seed)
    twins = Twins()
    lines = [[strip(rng, SIZE[0])] for _ in range(SIZE[1])]
    for _ in range(60):
        if rng.random() < 0.3:
            for line in rng.sample(range(SIZE[1]), 2):
                lines[line] = [strip(rng, 15), strip(rng, SIZE[0] - 15)]
            twins.paint(LayoutUpdate(lines, Region(0, 0, *SIZE)))
        else:
            y, x = rng.randrange(SIZE[1]), rng.choice([0, 7, 22])
            width = rng.choice([3, 10, SIZE[0] - x])
            chops: list[dict[int, Strip | None]] = [{} for _ in range(SIZE[1])]
            chops[y] = {x: strip(rng, width)}
            twins.paint(ChopsUpdate(chops, [(y, x, x + width)], [[x + width]] * SIZE[1]))
        if rng.random() < 0.1:
            twins.cells.forget()


def test_what_is_the_same_is_not_sent() -> None:
    twins = Twins()
    rng = random.Random(1)
    plain = [Strip([Segment(f"{'row':<{SIZE[0]}}", rng.choice(STYLES))]) for _ in range(SIZE[1])]
    update = LayoutUpdate([[line] for line in plain], Region(0, 0, *SIZE))
    twins.paint(update)
    before = twins.sent[0]
    twins.paint(update)
    assert twins.sent[0] == before
    twins.cells.forget()
    twins.paint(update)
    assert twins.sent[0] == 2 * before
    plain[3] = Strip([Segment(f"{'rox':<{SIZE[0]}}", plain[3]._segments[0].style)])
    twins.paint(LayoutUpdate([[line] for line in plain], Region(0, 0, *SIZE)))
    assert twins.sent[0] - 2 * before < 60


# ---- the app itself

RUN = "import sys; from adbg.__main__ import main; sys.exit(main())"
SCRIPT = """
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
layers = [torch.nn.Linear(4, 4) for _ in range(24)]
x = torch.ones(2, 4)
for layer in layers:
    x = x + layer(x).tanh()
x.sum().backward()
"""
MOST = 15_000  # bytes a key; 83,000 for `j` and 57,000 for `s` when all was sent


def settled(terminal: Terminal) -> int:
    """Bytes that came until none came for a moment."""
    before, last = len(terminal.raw), -1
    for _ in range(400):
        terminal.read(0.05)
        if len(terminal.raw) != last:
            last, quiet = len(terminal.raw), 0
            continue
        quiet += 1
        if quiet >= 12 and not terminal.updating:
            break
    return len(terminal.raw) - before


@pytest.fixture
def terminal(tmp_path: Path) -> Any:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with Terminal([sys.executable, "-c", RUN, "run", str(script)], 45, 160, cwd=str(tmp_path)) as made:
        made.wait_for("backward 1 begins")
        made.wait_for("#1 Sum")
        settled(made)
        yield made


@pytest.mark.timeout(180)
def test_a_key_sends_at_most_15_kilobytes_and_the_picture_is_whole(terminal: Terminal) -> None:
    sent = {}
    for number, key in enumerate("jjjsssGg4]15"):
        terminal.send(key)
        sent[f"{number}{key}"] = settled(terminal)
        assert sent[f"{number}{key}"] > 0, "the key was not seen"
    assert max(sent.values()) <= MOST, sent
    terminal.send("\x18")
    settled(terminal)
    partly = shown(terminal.screen)
    terminal.send("\x0c")  # ctrl+l
    whole = settled(terminal)
    assert shown(terminal.screen) == partly
    assert whole > 10_000, "all cells were to be sent"

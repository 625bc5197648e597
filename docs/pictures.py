"""The pictures of the README: the real app in a real terminal, on the examples of ``make demo`` and ``make
demo-paddle``, by ``make pictures``.

The program runs behind a terminal emulator (pyte); what stands on its screen is drawn cell by cell (Pillow), in DejaVu
Sans Mono, which has every character of the screen.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from pyte.screens import Char

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.terminal import Terminal  # noqa: E402


@dataclass(frozen=True)
class Picture:
    """A screen: the program and what stops it, the text that says it is there, keys that are pressed then."""

    rows: int
    cols: int
    framework: str
    options: tuple[str, ...]
    script: str
    wanted: str
    keys: str | tuple[str, ...] = ""


NAN = ("torch", ("-b", "nan"), "examples/nan_at_sqrt.py", "SqrtBackward0")
NESTED = (
    "paddle",
    ("-b", "GradNodePyLayer_ClippedExp", "-e", "vlog 3"),
    "examples/paddle_nested_pylayers.py",
    "nested 2 deep",
    "2<T++++++",  # the log: all folded but the way to the stop, without columns, larger
)
PROFILE = (
    "torch",
    ("-e", "profile cprofile 10 iterations", "-e", "c"),
    "examples/small_kernels.py",
    "▏all",
)
FINDINGS = (
    "torch",
    ("-e", "diagnose start", "-b", "nan"),
    "examples/nan_at_sqrt.py",
    "SqrtBackward0",
    ("\x1b[19~",),  # F8
)
PICTURES = {
    "screen-160x45.png": Picture(45, 160, *NAN),
    "screen-80x24.png": Picture(24, 80, *NAN),
    "screen-nested-pylayers.png": Picture(45, 160, *NESTED),
    "screen-profile.png": Picture(30, 160, *PROFILE),
    "screen-findings.png": Picture(20, 160, *FINDINGS),
}
SETTLE = 2.0  # seconds without a change of the screen after which it is taken as finished
FONT_SIZE, WIDTH, HEIGHT = 15, 9, 18  # pixels; a cell is as wide as the font's advance at this size
INK, PAPER = "#c8ccd4", "#16181d"
COLOURS = {  # pyte's names of the sixteen
    "black": "#1e2127", "red": "#e06c75", "green": "#98c379", "brown": "#e5c07b", "blue": "#61afef",
    "magenta": "#c678dd", "cyan": "#56b6c2", "white": "#c8ccd4", "brightblack": "#5c6370", "brightred": "#ff7a85",
    "brightgreen": "#b5e890", "brightbrown": "#ffd68a", "brightblue": "#7cc4ff", "brightmagenta": "#dd9bf0",
    "brightcyan": "#7fdbe8", "brightwhite": "#ffffff",
}  # fmt: skip


def font(style: str) -> ImageFont.FreeTypeFont:
    """DejaVu Sans Mono in "Book" or "Bold", where fontconfig finds it."""
    if shutil.which("fc-match") is None:
        raise SystemExit("pictures need fontconfig and DejaVu Sans Mono: apt-get install fontconfig fonts-dejavu-core")
    words = ["fc-match", "--format=%{file}", f"DejaVu Sans Mono:style={style}"]
    path = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return ImageFont.truetype(path, FONT_SIZE)


def colour(name: str, default: str) -> str:
    """A pyte colour (a name, or six hex digits) as Pillow takes it."""
    if name == "default":
        return default
    return COLOURS.get(name, f"#{name}")


def colours(cell: Char) -> tuple[str, str]:
    """(ink, paper) of a cell."""
    ink, paper = colour(cell.fg, INK), colour(cell.bg, PAPER)
    return (paper, ink) if cell.reverse else (ink, paper)


def draw(terminal: Terminal) -> Image.Image:
    """The screen as it stands."""
    screen = terminal.screen
    image = Image.new("RGB", (screen.columns * WIDTH, screen.lines * HEIGHT), PAPER)
    pen = ImageDraw.Draw(image)
    book, bold = font("Book"), font("Bold")
    for row in range(screen.lines):
        for column in range(screen.columns):
            cell = screen.buffer[row][column]
            ink, paper = colours(cell)
            left, top = column * WIDTH, row * HEIGHT
            if paper != PAPER:
                pen.rectangle((left, top, left + WIDTH - 1, top + HEIGHT - 1), fill=paper)
            if cell.data.strip():
                pen.text((left, top), cell.data, font=bold if cell.bold else book, fill=ink)
            if cell.underscore:
                pen.line((left, top + HEIGHT - 2, left + WIDTH - 1, top + HEIGHT - 2), fill=ink)
    return image


def settle(terminal: Terminal, limit: float = 60.0) -> None:
    """Wait until the screen stands still."""
    deadline = time.monotonic() + limit
    before, since = "", time.monotonic()
    while time.monotonic() < deadline and time.monotonic() - since < SETTLE:
        terminal.read(0.1)
        if terminal.text != before:
            before, since = terminal.text, time.monotonic()


def take(name: str, picture: Picture, python: str) -> None:
    """Run the program until it looks as it should, and draw that."""
    command = [python, "-m", "adbg", "run", "--tui", *picture.options, picture.script]
    env = {"COLORTERM": "truecolor", "PYTHONWARNINGS": "ignore"}  # Paddle warns of a missing ccache
    with Terminal(command, picture.rows, picture.cols, env=env, cwd=str(ROOT)) as terminal:
        terminal.wait_for(picture.wanted)
        settle(terminal)
        for key in picture.keys:
            terminal.send(key)
            settle(terminal)
        draw(terminal).quantize(256, Image.Quantize.MAXCOVERAGE).save(ROOT / "docs" / name, optimize=True)
    print(f"docs/{name}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Take the README's pictures.")
    parser.add_argument("--paddle", help="the Python that has PaddlePaddle; without it, its pictures stay as they are")
    parser.add_argument("names", nargs="*", help="of pictures; all")
    options = parser.parse_args()
    pythons = {"torch": sys.executable, "paddle": options.paddle}
    for name, picture in PICTURES.items():
        python = pythons[picture.framework]
        if python and (not options.names or name in options.names):
            take(name, picture, python)
    return 0


if __name__ == "__main__":
    sys.exit(main())

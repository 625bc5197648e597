"""The program's output as a terminal would show it."""

from __future__ import annotations

import random

import pytest

from adbg.tui.app.lines.screen_text import MOST_LINES, ScreenText


def shown(*pieces: str) -> list[str]:
    text = ScreenText()
    for piece in pieces:
        text.feed(piece)
    return text.lines


def test_progress_bars_stay_one_line() -> None:
    assert shown(" 10%|#   |\r", " 50%|##  |\r", "100%|####|\n") == ["100%|####|", ""]
    assert shown("long line\rab\x1b[K") == ["ab"]
    assert shown("abc\b\bX\n") == ["aXc", ""]


def test_nested_bars_and_colours() -> None:
    assert shown("outer 1\ninner 1\x1b[A\router 2\n\rinner 2") == ["outer 2", "inner 2"]
    assert shown("\x1b[31mred\x1b[0m plain\x1b]0;title\x07!") == ["red plain!"]
    assert shown("a\tb") == ["a       b"]


@pytest.mark.parametrize("seed", range(4))
def test_output_in_any_pieces_is_the_same(seed: int) -> None:
    rng = random.Random(seed)
    whole = "epoch\x1b[1;32m 1\x1b[0m\r\n 10%\r 20%\x1b[K\r\n\x1b[Aup\n\n日本\tx\r\nend"
    pieces = []
    rest = whole
    while rest:
        size = rng.randint(1, 4)
        pieces.append(rest[:size])
        rest = rest[size:]
    assert shown(*pieces) == shown(whole)


def test_endless_output_is_bounded_and_counted() -> None:
    text = ScreenText()
    for number in range(MOST_LINES + 3000):
        text.feed(f"line {number}\n")
    assert len(text.lines) <= MOST_LINES + 1001
    assert text.finished == MOST_LINES + 3000
    assert text.lines[-2] == f"line {MOST_LINES + 2999}"


def test_lines_that_changed_are_known() -> None:
    text = ScreenText()
    text.feed("one\ntwo\nthree\n")
    assert text.touched == 0
    text.touched = text.finished
    text.feed("\x1b[A\x1b[AX")
    assert text.touched == 1 and text.lines[1] == "Xwo"

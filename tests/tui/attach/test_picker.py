"""The list in the terminal: what keys do to it, through prompt_toolkit's own input."""

from __future__ import annotations

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from adbg.tui.attach.offers import Offer
from adbg.tui.attach.picker import Picker, pick
from adbg.tui.attach.processes import Seen

ROWS = [
    Offer(Seen(10, 1, obstacle="it is stopped (T)"), "stopped.py"),
    Offer(Seen(11, 1), "server.py"),
    Offer(Seen(20, 1), "torchrun train.py", ranks=(21, 22)),
    Offer(Seen(21, 20, environment={"RANK": "0"}, frameworks=("torch",)), "train.py", depth=1),
    Offer(Seen(22, 20, environment={"RANK": "1"}, frameworks=("torch",)), "train.py", depth=1),
]
UP, DOWN, ESCAPE, ENTER, BACKSPACE = "\x1b[A", "\x1b[B", "\x1b", "\r", "\x7f"


@pytest.mark.parametrize(
    ("keys", "picked"),
    [
        (ENTER, (21, False)),  # the first with a framework
        (DOWN + ENTER, (22, False)),
        (UP + ENTER, (20, True)),  # the launcher: its whole job
        ("server" + ENTER, (11, False)),
        ("train 22" + ENTER, (22, False)),
        ("TORCHRUN" + ENTER, (20, True)),
        ("nothing" + ENTER + BACKSPACE * 7 + ENTER, (21, False)),  # Enter on an empty list does nothing
        ("stopped" + ENTER + BACKSPACE * 7 + ENTER, (21, False)),  # one that cannot be entered is not taken
        ("\x03", None),
        ("\x04", None),
    ],
)
def test_keys(keys: str, picked: tuple[int, bool] | None) -> None:
    with create_pipe_input() as keyboard, create_app_session(input=keyboard, output=DummyOutput()):
        keyboard.send_text(keys)
        assert pick(ROWS) == picked


def test_why_a_row_cannot_be_picked() -> None:
    picker = Picker(lambda: ROWS)
    picker.type("stopped")
    assert picker.take() is None and "it is stopped (T)" in picker.said
    picker.type("no such thing")
    assert picker.take() is None and "no process matches" in picker.said


def test_a_long_list_shows_the_part_around_the_cursor() -> None:
    picker = Picker(lambda: [Offer(Seen(100 + n, 1), f"script{n}.py") for n in range(50)])
    picker.move(30)
    text = "".join(part for _, part in picker.fragments(10, 80)).splitlines()
    assert len(text) == 11 and sum("▶" in line for line in text) == 1
    assert "script30.py" in next(line for line in text if "▶" in line)
    picker.move(1000)
    assert "script49.py" in "".join(part for _, part in picker.fragments(10, 80))
    assert all(len(line) <= 40 for line in "".join(p for _, p in picker.fragments(10, 40)).splitlines())


def test_looking_again_stays_at_the_process() -> None:
    rows = list(ROWS)
    picker = Picker(lambda: list(rows))
    picker.move(1)
    assert picker.current is not None and picker.current.seen.pid == 22
    del rows[0]
    picker.look_again()
    assert picker.current is not None and picker.current.seen.pid == 22

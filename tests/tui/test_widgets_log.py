"""The log panel's store, and the program's output as a terminal would show it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from adbg.engine.vlog import format_record
from adbg.tui.widgets.logstore import LogStore
from adbg.tui.widgets.screentext import MOST_LINES, ScreenText

LOG = (
    format_record("run_backward", "calls", 3)
    + format_record("apply MmBackward0", "nodes", 4, indent=1)
    + format_record("out [4,8]\nsecond line", "nodes", 5, indent=2)
    + format_record("something odd", "nodes", 4, indent=1, severity="W")
    + format_record("run_backward", "calls", 3)
)


def store_of(tmp_path: Path, text: str) -> LogStore:
    path = tmp_path / "vlog-r0.log"
    path.write_text(text)
    store = LogStore(str(path))
    store.poll()
    return store


def test_records_of_the_engine_are_taken_apart(tmp_path: Path) -> None:
    store = store_of(tmp_path, LOG)
    lines = [store.line(row) for row in range(len(store))]
    assert [line.text.strip() for line in lines] == [
        "run_backward", "apply MmBackward0", "out [4,8]", "second line", "something odd", "run_backward",
    ]  # fmt: skip
    assert [line.level for line in lines] == ["3", "4", "5", "", "W", "3"]
    assert list(store.depths) == [0, 1, 2, 3, 1, 0]
    assert [store.alarming(row) for row in range(6)] == [False, False, False, False, True, False]
    assert lines[0].time[2] == ":" and len(lines[0].time) == 9


@pytest.mark.parametrize("seed", range(3))
def test_what_is_appended_in_any_pieces_is_the_same(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = tmp_path / "log"
    path.touch()
    store = LogStore(str(path))
    data = (LOG * 20).encode()
    with path.open("ab", buffering=0) as file:
        while data:
            size = rng.randint(1, 97)
            file.write(data[:size])
            data = data[size:]
            store.poll()
    whole = store_of(tmp_path, LOG * 20)
    assert [store.line(row) for row in range(len(store))] == [whole.line(row) for row in range(len(whole))]
    assert list(store.depths) == list(whole.depths)


def test_a_log_that_comes_later_is_found(tmp_path: Path) -> None:
    path = tmp_path / "later.log"
    store = LogStore(str(path))
    assert store.poll() == 0
    path.write_text(LOG)
    assert store.poll() == 6


def test_folding_hides_a_subtree_and_filtering_keeps_context(tmp_path: Path) -> None:
    store = store_of(tmp_path, LOG)
    assert store.shown(set(), None) is None
    assert list(store.shown({0}, None) or ()) == [0, 5]
    assert list(store.shown({1}, None) or ()) == [0, 1, 4, 5]
    assert list(store.shown(set(), lambda text: "odd" in text) or ()) == [4]
    assert list(store.shown(set(), lambda text: "odd" in text, 1) or ()) == [3, 4, 5]
    assert store.end_of(0) == 5 and store.has_children(0) and not store.has_children(5)


def test_notes_stand_where_they_came(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(LOG)
    store = LogStore(str(path))
    store.poll()
    store.note("stop: #3", "00:01.000")
    with path.open("a") as file:
        file.write(LOG)
    store.poll()
    assert store.line(6).level == "■" and store.line(6).text == "stop: #3"
    assert store.line(7).text == "run_backward" and len(store) == 13


def test_foreign_text_and_bytes_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xff\xfe warning: odd bytes\n" + b"x" * 100_000 + b"\n" + LOG.encode() + b"no newline yet")
    store = LogStore(str(path))
    store.poll()
    assert len(store) == 8
    assert "warning" in store.line(0).text and len(store.line(1).text) == 4000


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

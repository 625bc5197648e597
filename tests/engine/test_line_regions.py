"""Something happens exactly while chosen lines run, on frames that run already too, and nothing stays behind."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from adbg.engine.errors import CommandError
from adbg.engine.line_regions import LineRegions, Lines, parse_lines

SOURCE = """
def leaf(say):
    say("leaf")

def work(say, fail=False):
    say("before")
    say("first")
    leaf(say)
    if fail:
        raise KeyError("inside")
    say("behind")

def counting(say):
    for i in range(2):
        say(i)
        yield i
        say("resumed")
"""
FILE = "/somewhere/region_source.py"
pytestmark = pytest.mark.skipif(sys.gettrace() is not None, reason="another tracer is at work")


@pytest.fixture
def source() -> dict[str, object]:
    namespace: dict[str, object] = {}
    exec(compile(SOURCE, FILE, "exec"), namespace)
    return namespace


class Watch:
    """Which words were said inside, and outside."""

    def __init__(self) -> None:
        self.depth = 0
        self.inside: list[object] = []
        self.outside: list[object] = []
        self.problems: list[str] = []
        self.regions = LineRegions(self.problems.append)

    def enter(self) -> None:
        self.depth += 1

    def leave(self) -> None:
        self.depth -= 1

    def say(self, word: object) -> None:
        (self.inside if self.depth else self.outside).append(word)


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch()
    yield watch
    watch.regions.clear()
    assert sys.gettrace() is None and watch.depth == 0


def test_only_while_the_lines_run_their_calls_included(source: dict[str, object], watch: Watch) -> None:
    watch.regions.add(Lines("region_source.py", 7, 8), watch.enter, watch.leave)
    source["work"](watch.say)  # type: ignore[operator]
    assert (watch.inside, watch.outside) == (["first", "leaf"], ["before", "behind"])


def test_an_exception_leaves_the_region(source: dict[str, object], watch: Watch) -> None:
    watch.regions.add(Lines(FILE, 9, 10), watch.enter, watch.leave)
    with pytest.raises(KeyError):
        source["work"](watch.say, True)  # type: ignore[operator]
    assert watch.depth == 0


def test_a_generator_is_outside_while_it_is_suspended(source: dict[str, object], watch: Watch) -> None:
    watch.regions.add(Lines(FILE, 14, 17), watch.enter, watch.leave)
    for _ in source["counting"](watch.say):  # type: ignore[operator]
        watch.say("consumer")
    assert watch.outside == ["consumer", "consumer"] and "resumed" in watch.inside


def test_a_frame_that_runs_already_and_a_request_from_another_thread(source: dict[str, object], watch: Watch) -> None:
    """As at a stop: the main thread is inside the function, the request comes on the reader's thread."""

    def request(word: object) -> None:
        if word == "before":
            thread = threading.Thread(
                target=watch.regions.add, args=(Lines(FILE, 7, 8), watch.enter, watch.leave), name="reader"
            )
            thread.start()
            thread.join()
        watch.say(word)

    source["work"](request)  # type: ignore[operator]
    assert (watch.inside, watch.outside) == (["first", "leaf"], ["before", "behind"])
    thread = threading.Thread(target=watch.regions.clear)
    thread.start()
    thread.join()
    for _ in range(100):
        pass
    assert sys.gettrace() is None


def test_threads_that_start_later(source: dict[str, object], watch: Watch) -> None:
    watch.regions.add(Lines(FILE, 7, 8), watch.enter, watch.leave)
    thread = threading.Thread(target=source["work"], args=(watch.say,))  # type: ignore[arg-type]
    thread.start()
    thread.join()
    assert watch.inside == ["first", "leaf"]


def test_another_tracer_is_left_alone(source: dict[str, object], watch: Watch) -> None:
    tracer = lambda frame, event, argument: None  # noqa: E731
    sys.settrace(tracer)
    try:
        watch.regions.add(Lines(FILE, 7, 8), watch.enter, watch.leave)
        assert sys.gettrace() is tracer
        assert "another tracer" in watch.problems[0]
    finally:
        sys.settrace(None)


@pytest.mark.parametrize("text", ["train.py", "train.py:", "train.py:0", "train.py:9-3", ":4", "train.py:a-b", ""])
def test_bad_places_are_refused(text: str) -> None:
    with pytest.raises(CommandError):
        parse_lines(text)


def test_places() -> None:
    assert parse_lines("./a/train.py:3-5") == Lines("a/train.py", 3, 5)
    assert str(parse_lines("C:/x.py:7")) == "C:/x.py:7"
    assert Lines("train.py", 3, 5).holds("/x/train.py", 3)
    assert not Lines("train.py", 3, 5).holds("/x/mytrain.py", 3)

"""Something happens exactly while chosen lines run, on frames that run already too, and nothing stays behind."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import pytest

from adbg.engine.errors import CommandError
from adbg.engine.places import Lines, parse_lines
from adbg.engine.python.line_trace import LineRegions

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


def test_a_thread_that_started_meanwhile_is_let_go(source: dict[str, object], watch: Watch) -> None:
    tracers: list[object] = []
    began, cleared = threading.Event(), threading.Event()

    def run() -> None:
        began.set()
        cleared.wait(10)
        source["leaf"](watch.say)  # type: ignore[operator]
        tracers.append(sys.gettrace())

    watch.regions.add(Lines(FILE, 7, 8), watch.enter, watch.leave)
    thread = threading.Thread(target=run)
    thread.start()
    assert began.wait(10)
    watch.regions.clear()
    cleared.set()
    thread.join()
    assert tracers == [None]


def test_equal_code_of_another_file(watch: Watch) -> None:
    """Two files that begin alike: Python's code objects compare equal, whatever file they are from."""
    text = "def f(say):\n    say('here')\n"
    one: dict[str, object] = {}
    other: dict[str, object] = {}
    exec(compile(text, "/somewhere/one.py", "exec"), one)
    exec(compile(text, "/somewhere/other.py", "exec"), other)
    watch.regions.add(Lines("other.py", 2, 2), watch.enter, watch.leave)
    for _ in range(2):
        one["f"](watch.say)  # type: ignore[operator]
        other["f"](watch.say)  # type: ignore[operator]
    assert (watch.inside, watch.outside) == (["here"] * 2, ["here"] * 2)


ALONE = """
import os, sys, tempfile, threading, time
from adbg.engine.places import Lines
from adbg.engine.python.line_trace import LineRegions
problems = []
regions = LineRegions(problems.append)
add = lambda n: regions.add(Lines("nowhere.py", n, n), print, print)
"""


def alone(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", ALONE + textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done
    return done.stdout


def test_many_requests_while_the_main_thread_is_busy() -> None:
    """The interpreter keeps plain addresses of what it is to call: nothing may be freed, nor its queue of 32 fill."""
    program = """
    def requests():
        for n in range(1, 50):
            add(n)
        regions.clear()
        add(1)
    thread = threading.Thread(target=requests)
    thread.start()
    time.sleep(0.5)
    thread.join()
    junk = [bytes(4096) for _ in range(2000)]
    print(problems, sys.gettrace() == regions._trace)
    """
    assert alone(program) == "[] True\n"


def test_without_a_working_directory_nothing_is_raised_into_the_program() -> None:
    program = """
    os.chdir(tempfile.mkdtemp())
    os.rmdir(os.getcwd())
    add(1)
    exec("def f(): return 'fine'")
    print(f())
    """
    assert alone(program) == "fine\n"


def test_a_forked_child_watches_nothing() -> None:
    program = """
    add(1)
    held = threading.Thread(target=lambda: (regions._lock.acquire(), time.sleep(60)), daemon=True)
    held.start()
    time.sleep(0.2)
    if os.fork() == 0:
        regions.abandon()
        regions.clear()
        print(sys.gettrace(), threading.gettrace() if hasattr(threading, "gettrace") else None, flush=True)
        os._exit(0)
    os.wait()
    os._exit(0)
    """
    assert alone(program) == "None None\n"


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

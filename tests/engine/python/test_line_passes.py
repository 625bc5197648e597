"""How often lines are come to and left: as often as the program says itself, whatever frames they run in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from adbg.engine.places import Lines
from adbg.engine.python.line_trace import LineRegions

FILE = "/somewhere/passes_source.py"
SOURCE = """\
def listed(say, n):
    squares = [i * i for i in range(n)]  # listed begins
    say("late")  # listed ends
    return squares

def summed(say, n):
    total = sum(  # summed begins
        i for i in range(n)
    )
    say("late")
    return total  # summed ends

def recursive(say, n):
    if n:  # recursive begins
        recursive(say, n - 1)  # recursion
    say("late")
    return n  # recursive ends

def called(*values):
    return len(values)

def several(turns):
    for turn in range(turns):
        called(  # several
            called(turn),
            [i for i in range(turn)],
            (lambda: turn)(),
        )
        called()  # plain

def comprehended(turns):
    for turn in range(turns):
        called([i for i in range(3)], sum(i for i in range(3)))  # comprehended

def generated_late(turns):
    for turn in range(turns):
        rows = (called(i) for i in range(3))  # generated_late
        sum(rows)

def within(turns):
    done = 0
    while True:
        with open("/dev/null") as file:  # within
            done += 1
            called(file)
            if done == turns:
                return

def headed(turns):
    while turns:  # headed
        turns -= 1
    for turn in range(  # header
        3
    ):
        called(turn)

def deeper(n):
    called(n)  # deeper
    if n:
        deeper(n - 1)

def yields(turns):
    for turn in range(turns):
        called(  # yields
            (yield turn),
            called(turn),
        )
step = lambda: called(1)  # step

class Waits:
    def __await__(self):
        yield

async def waits(turns):
    for turn in range(turns):
        called(  # waits
            await Waits(),
            called(turn),
        )
"""
NAMES = dict[str, Callable[..., object]]
pytestmark = pytest.mark.skipif(sys.gettrace() is not None, reason="another tracer is at work")


@pytest.fixture
def source() -> NAMES:
    namespace: NAMES = {}
    exec(compile(SOURCE, FILE, "exec"), namespace)
    return namespace


@pytest.fixture
def regions() -> Iterator[LineRegions]:
    regions = LineRegions()
    yield regions
    regions.clear()
    assert sys.gettrace() is None


def line_of(mark: str) -> int:
    (line,) = (number for number, line in enumerate(SOURCE.splitlines(), 1) if line.endswith(f"  # {mark}"))
    return line


def lines_of(name: str) -> Lines:
    return Lines(FILE, line_of(f"{name} begins"), line_of(f"{name} ends"))


@pytest.mark.parametrize("name", ["listed", "summed", "recursive"])
def test_lines_are_left_once_by_the_frame_that_came_to_them(source: NAMES, regions: LineRegions, name: str) -> None:
    told: list[str] = []
    regions.add(lines_of(name), lambda: told.append("enter"), lambda: told.append("leave"))
    for _ in range(2):
        source[name](told.append, 3)
    said = ["late"] * (4 if name == "recursive" else 1)
    assert told == ["enter", *said, "leave"] * 2


def test_lines_that_a_caller_and_its_callee_are_in_already(source: NAMES, regions: LineRegions) -> None:
    """Asked for at the bottom of a recursion: every frame of it is in there."""
    told: list[str] = []

    def say(word: str) -> None:
        if not told:
            regions.add(lines_of("recursive"), lambda: told.append("enter"), lambda: told.append("leave"))
        told.append(word)

    source["recursive"](say, 2)
    assert told == ["enter", "late", "late", "late", "leave"]


def run(source: NAMES, name: str, turns: int) -> None:
    found = source[name](turns)
    if hasattr(found, "send"):
        try:
            while True:
                found.send(None)
        except StopIteration:
            pass


EACH_TURN = [
    ("several", "several", 4),
    ("several", "plain", 4),
    ("comprehended", "comprehended", 4),
    ("generated_late", "generated_late", 4),
    ("within", "within", 4),
    ("headed", "headed", 5),  # the look that ends the loop is one, as Python runs that line
    ("headed", "header", 4),
    ("deeper", "deeper", 1),
    ("yields", "yields", 4),
    ("waits", "waits", 4),
]


@pytest.mark.parametrize(("name", "mark", "turns"), EACH_TURN)
def test_a_statement_begins_once_a_turn(source: NAMES, regions: LineRegions, name: str, mark: str, turns: int) -> None:
    begun: list[int] = []
    line = line_of(mark)
    if mark == "header" and sys.version_info < (3, 11):
        pytest.skip("Python 3.10 does not tell where the head of a loop ends")
    regions.add_turns(Lines(FILE, line, line), lambda: begun.append(line))
    run(source, name, 4)
    assert len(begun) == turns


def test_a_function_in_one_line_begins_when_it_is_called(source: NAMES, regions: LineRegions) -> None:
    begun: list[int] = []
    line = line_of("step")
    regions.add_turns(Lines(FILE, line, line), lambda: begun.append(line))
    for _ in range(3):
        source["step"]()
    assert len(begun) == 3


def test_a_recursion_through_the_statement_is_part_of_it(source: NAMES, regions: LineRegions) -> None:
    begun: list[int] = []
    line = line_of("recursion")
    regions.add_turns(Lines(FILE, line, line), lambda: begun.append(line))
    for _ in range(3):
        source["recursive"](lambda word: None, 4)
    assert len(begun) == 3

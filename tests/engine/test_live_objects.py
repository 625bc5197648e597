"""Objects of the collector, looked at while another thread fills a tuple: the witness is CPython, which refuses to
resize one that somebody else holds."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from adbg.engine import live_objects


@pytest.fixture(autouse=True)
def few_objects() -> Iterator[None]:
    """What other tests have imported is not gone over: that takes a hundred times as long."""
    gc.freeze()
    yield
    gc.unfreeze()


class Wanted:
    pass


class Special(Wanted):
    pass


class Meta(type):
    def __hash__(cls) -> int:
        raise AssertionError("the program's code runs")

    def __eq__(cls, other: object) -> bool:
        raise AssertionError("the program's code runs")


class Odd(metaclass=Meta):
    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise AssertionError("the program's code runs")


def filled(looks: Callable[[], object], times: int) -> str:
    """What CPython says while one thread fills tuples and this one looks ``times``; "" for nothing."""
    said: list[BaseException] = []
    over = threading.Event()

    def slowly() -> Iterator[list[int]]:
        for _ in range(200):
            sum(range(100))  # the other thread comes in here
            yield []

    def fill() -> None:
        try:
            while not over.is_set():
                tuple(slowly())
        except SystemError as error:
            said.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=fill)
    thread.start()
    try:
        for _ in range(times):
            looks()
            if said:
                break
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(interval)
    return str(said[0]) if said else ""


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="tuples are filled in another way there")
def test_the_plain_way_breaks_the_program() -> None:
    assert "bad argument to internal function" in filled(lambda: [type(each) for each in gc.get_objects()], 20_000)


def test_ours_does_not() -> None:
    assert filled(lambda: live_objects.of_kind(Wanted), 60) == ""


def test_what_is_found() -> None:
    """The witness is a list of them."""
    wanted = [*(Wanted() for _ in range(300)), Special()]
    odd = Odd()
    found = [id(each) for each in live_objects.of_kind(Wanted)]
    assert sorted(found) == sorted(map(id, wanted))
    assert any(each is odd for each in live_objects.of_kind(Odd))


@pytest.mark.parametrize("threshold", [1, 2, 3, 5, 9, 20])
def test_while_objects_are_collected(threshold: int) -> None:
    """Up to Python 3.11 the looks themselves bring a collection about, which moves objects between them."""
    before = gc.get_threshold()
    wanted = []
    try:
        gc.set_threshold(threshold)
        for _ in range(40):
            wanted += [Wanted(), [Wanted()][0]]
            found = live_objects.of_kind(Wanted)
            assert {type(each) for each in found} == {Wanted}
            # with a collection at every few objects there is no look without one: some may be missing
            assert threshold < 5 or set(map(id, wanted)) <= set(map(id, found))
    finally:
        gc.set_threshold(*before)


def test_nothing_is_kept_alive() -> None:
    """Without the collector's help."""
    thing, finished = Wanted(), (Wanted(), [])
    gc.disable()
    try:
        counts = sys.getrefcount(thing), sys.getrefcount(finished)
        for _ in range(3):
            live_objects.of_kind(Wanted)
        assert (sys.getrefcount(thing), sys.getrefcount(finished)) == counts
    finally:
        gc.enable()

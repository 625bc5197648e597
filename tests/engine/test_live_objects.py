"""Objects of the collector, looked at while another thread fills a tuple: the witness is CPython, which refuses to
resize one that somebody else holds."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

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
    target = [Wanted()]
    assert filled(lambda: live_objects.of_kind(Wanted), 60) == ""
    some = live_objects.of_types(lambda kind: True)
    assert filled(lambda: live_objects.referring_to(target, some), 60) == ""
    assert filled(lambda: list(live_objects.tuples_in(live_objects.of_types(lambda kind: True))), 5) == ""


def test_what_is_found() -> None:
    """The witness is a list of them."""
    wanted = [*(Wanted() for _ in range(300)), Special()]
    odd = Odd()
    found = [id(each) for each in live_objects.of_kind(Wanted)]
    assert sorted(found) == sorted(map(id, wanted))
    assert any(each is odd for each in live_objects.of_kind(Odd))
    assert any(each is odd for each in live_objects.of_types(lambda kind: kind is Odd))


def test_tuples_are_found_through_what_refers_to_them() -> None:
    one, odd = Wanted(), Odd()
    kept = [one]
    inner = (one, "in a tuple")
    outer = [(inner, 1)]
    assert not any(type(each) is tuple for each in live_objects.of_types(lambda kind: True))
    assert live_objects.referring_to([one], [kept, inner, odd]) == [kept, inner]
    assert any(each is kept for each in live_objects.referring_to([one], live_objects.of_types(lambda kind: True)))
    found = list(live_objects.tuples_in([outer, kept]))
    assert sum(each is inner for each in found) == 1 and sum(each is outer[0] for each in found) == 1


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
            live_objects.of_types(lambda kind: True)
            live_objects.of_kind(Wanted)
        assert (sys.getrefcount(thing), sys.getrefcount(finished)) == counts
    finally:
        gc.enable()


def test_the_same_as_the_plain_way() -> None:
    """Every object but tuples, and what the call itself makes."""
    gc.unfreeze()
    gc.collect()
    gc.disable()
    try:
        plain = {id(each): each for each in gc.get_objects() if type(each) is not tuple}
        ours: dict[int, Any] = {id(each): each for each in live_objects.of_types(lambda kind: True)}
    finally:
        gc.enable()
    missing = [type(plain[number]) for number in plain.keys() - ours.keys()]
    assert len(missing) < 20, missing  # frames and iterators of the way itself
    assert len(ours.keys() - plain.keys()) < 50

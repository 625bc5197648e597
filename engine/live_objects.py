"""The objects that Python's collector knows, looked at while other threads run.

``gc.get_objects()`` holds a reference to each, also to a tuple that another thread is just filling
(``tuple(generator)``, ``import torch._dynamo``): where the interpreter changes threads before the list is gone, CPython
finds a second owner when it resizes the tuple and raises ``SystemError: bad argument to internal function`` in the
program. So what is asked for is picked inside of one call from C, in which no thread can change (CPython looks for that
between bytecodes), and tuples are never picked: one that is finished is found through what refers to it.
From Python 3.14 on no unfinished tuple is seen (gh-127058).
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import chain, compress, repeat, starmap
from typing import Any

_SEEN_UNFINISHED = sys.version_info < (3, 14)
# The youngest last: what a look makes itself comes behind all that a look before it has found.
_GENERATIONS = ((2,), (1,), (0,))
_TRIES = 8


def of_kind(kind: type) -> list[Any]:
    """The live instances of ``kind``, which is no kind of tuple. By their types alone: ``isinstance`` asks a proxy for
    its class, which runs the program's code. Holds the GIL meanwhile (55 ms of 165,000 objects on torch), and gives the
    program as long afterwards."""
    return _of(_kinds_of(kind))


def of_types(wanted: Callable[[type], bool]) -> list[Any]:
    """The live instances of the types that ``wanted`` takes, tuples aside; as ``of_kind``. Where all are asked for,
    clear the list: a frame in it may refer to it."""
    return _of(each for each in _kinds_of(object) if wanted(each))


def referring_to(targets: Iterable[Any], among: Sequence[Any]) -> list[Any]:
    """Those ``among`` objects that refer to one of ``targets``."""
    found = set(map(id, chain.from_iterable(starmap(gc.get_referrers, (tuple(targets),)))))
    return [each for each in among if id(each) in found]


def tuples_in(holders: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """The tuples that ``holders`` refer to, and those in these, each once. One that is being filled has no holder."""
    met: set[int] = set()
    for holder in holders:
        open_ones = [holder]
        while open_ones:
            for value in gc.get_referents(open_ones.pop()):
                if type(value) is tuple and id(value) not in met:
                    met.add(id(value))
                    open_ones.append(value)
                    yield value


def _kinds_of(kind: type) -> list[type]:
    kinds = {id(kind): kind}  # by their addresses: a metaclass may have an __eq__ or __hash__ of the program's
    left = [kind]
    while left:
        subclasses: list[type] = type.__subclasses__(left.pop())
        new = {id(each): each for each in subclasses if id(each) not in kinds}
        kinds.update(new)
        left.extend(new.values())
    return list(kinds.values())


def _of(kinds: Iterable[type]) -> list[Any]:
    taken = {id(each) for each in kinds if each is not tuple}
    if not _SEEN_UNFINISHED:
        return [each for each in gc.get_objects() if id(type(each)) in taken]
    found: list[Any] = []
    for _ in range(_TRIES):
        found.clear()
        found, whole = _look(taken)
        if whole:
            return found
        # A collection between the two looks has moved objects: up to 3.11 the lists of the looks can bring it about.
    return [each for each in found if id(type(each)) in taken]


def _look(taken: Container[int]) -> tuple[list[Any], bool]:
    objects, again = _all(), _all()
    marks = map(taken.__contains__, map(id, map(type, again)))
    began = time.monotonic()
    looked = list(chain(_collections(), compress(objects, marks), _drained(again), _collections()))
    time.sleep(time.monotonic() - began)  # the program's threads waited for the GIL: they get as long again
    generations = len(gc.get_stats())
    whole = looked[:generations] == looked[-generations:]
    del looked[:generations], looked[-generations:]
    if id(list) in taken:
        _forget_itself(looked)
    return looked, whole


def _forget_itself(found: list[Any]) -> None:
    """It was there when the youngest were looked at, which come last. It and everything would never be freed."""
    for place in range(len(found) - 1, -1, -1):
        if found[place] is found:
            del found[place]
            return


def _all() -> Iterator[Any]:
    """Each generation is looked at when its first object is asked for: by the C function that goes over them. Two of
    these that are asked in turn give the same objects, and the later one then what the looks themselves have made. To
    its end: a list of all objects has the iterator over it too, and they would keep each other, and everything."""
    return chain.from_iterable(starmap(gc.get_objects, _GENERATIONS))


def _collections() -> Iterator[dict[str, int]]:
    """How often each generation was collected so far: asked when the first is asked for."""
    return chain.from_iterable(starmap(gc.get_stats, ((),)))


def _drained(rest: Iterable[Any]) -> Iterator[Any]:
    """Nothing, when the rest has been gone over."""
    return compress(rest, repeat(False))

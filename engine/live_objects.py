"""The objects that Python's collector knows, looked at while other threads run.

``gc.get_objects()`` holds a reference to each, also to a tuple that another thread is just filling
(``tuple(generator)``, ``import torch._dynamo``): where the interpreter changes threads before the list is gone, CPython
finds a second owner when it resizes the tuple and raises ``SystemError: bad argument to internal function`` in the
program. So what is asked for is picked inside of one call from C, in which no thread can change (CPython looks for that
between bytecodes), and tuples are never picked.
From Python 3.14 on no unfinished tuple is seen (gh-127058).
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import chain, compress, repeat, starmap
from typing import Any

_SEEN_UNFINISHED = sys.version_info < (3, 14)
# The youngest last: what a look makes itself comes behind all that a look before it has found.
_GENERATIONS = ((2,), (1,), (0,))
_TRIES = 8


def of_kind(kind: type) -> list[Any]:
    """The live instances of ``kind``, which is no kind of tuple or list. By their types alone: ``isinstance`` asks a
    proxy for its class, which runs the program's code. Holds the GIL meanwhile (55 ms of 165,000 objects on torch), and
    gives the program as long afterwards."""
    if not _SEEN_UNFINISHED:
        return [each for each in gc.get_objects() if issubclass(type(each), kind)]
    # By the addresses of the types: a metaclass may have an __eq__ or __hash__ of the program's.
    kinds = [kind]
    for each in kinds:
        kinds += type.__subclasses__(each)
    taken = set(map(id, kinds))
    generations, found = len(gc.get_stats()), list[Any]()
    for _ in range(_TRIES):
        objects, again = _all(), _all()
        marks = map(taken.__contains__, map(id, map(type, again)))
        began = time.monotonic()
        looked = list(chain(_collections(), compress(objects, marks), _drained(again), _collections()))
        time.sleep(time.monotonic() - began)  # the program's threads waited for the GIL: they get as long again
        found = looked[generations:-generations]
        if looked[:generations] == looked[-generations:]:
            return found
        # A collection between the two looks has moved objects: up to 3.11 the lists of the looks can bring it about.
    return [each for each in found if id(type(each)) in taken]


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

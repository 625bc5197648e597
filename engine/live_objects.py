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
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress, repeat, starmap
from typing import Any

_SEEN_UNFINISHED = sys.version_info < (3, 14)
# The youngest last: what a look makes itself comes behind all that a look before it has found.
_GENERATIONS = ((2,), (1,), (0,))


def of_types(wanted: Callable[[type], bool]) -> list[Any]:
    """Those of the types that ``wanted`` takes. By their types alone: ``isinstance`` asks a proxy for its class, which
    runs the program's code. No tuples. Without the GIL being given up: 0.1-0.2 s of 280,000 objects (torch with its
    compiler). Where all are asked for, clear the list: a frame in it may refer to it."""
    if not _SEEN_UNFINISHED:
        return [each for each in gc.get_objects() if type(each) is not tuple and wanted(type(each))]
    types, again = map(type, _all()), map(id, map(type, _all()))
    # By the addresses of the types: a metaclass may have an __eq__ or __hash__ of the program's.
    kinds: dict[int, type] = dict(chain(zip(again, types), _drained(types)))
    taken = {number for number, kind in kinds.items() if kind is not tuple and wanted(kind)}
    objects, once_more = _all(), _all()
    marks = map(taken.__contains__, map(id, map(type, once_more)))
    found = list(chain(compress(objects, marks), _drained(once_more)))
    if id(list) in taken:
        _forget_itself(found)
    return found


def of_kind(kind: type) -> list[Any]:
    """Instances of ``kind``."""
    return of_types(lambda each: issubclass(each, kind))


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


def _forget_itself(found: list[Any]) -> None:
    """It was there when the youngest were looked at. Its variable must not be one of a closure: the cell is met too."""
    for place in range(len(found) - 1, -1, -1):
        if found[place] is found:
            del found[place]
            return


def _all() -> Iterator[Any]:
    """Each generation is looked at when its first object is asked for: by the C function that goes over them. Two of
    these that are asked in turn give the same objects, and the later one then what the looks themselves have made. To
    its end: a list of all objects has the iterator over it too, and they would keep each other, and everything."""
    return chain.from_iterable(starmap(gc.get_objects, _GENERATIONS))


def _drained(rest: Iterable[Any]) -> Iterator[Any]:
    """Nothing, when the rest has been gone over."""
    return compress(rest, repeat(False))

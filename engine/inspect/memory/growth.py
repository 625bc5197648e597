"""Which variables hold more from look to look. Pure but for the questions about graphs.

Told of early: what keeps graphs of earlier iterations, by the tensors that it leads to (``losses.append(loss)``) or, of
a single one, by the old nodes below it (``total += loss``): three looks in a row, at best iterations 3, 6 and 9. What
keeps no graph is told of when it has become a part of the process: a list of numbers grows too, and a cache of the data
fills in the first epoch. Both must keep their pace: what fills up slows down, a leak does not. A window of fixed size
does neither until it is full, which ``course.py`` waits for.
"""

from __future__ import annotations

import collections
import itertools
import math
import re
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.inspect.memory.owners import Group, figures
from adbg.engine.inspect.memory.process import resident

LOOKS = 3
_SHARE = 1 / 16  # of the RSS that a variable without graphs must have gained over three looks
_PACE = 0.5  # of the pace between the first two looks that must be kept between the last two
_NOTED = 8  # of the first, and of the last, of what a variable holds
_FEW = 4  # tensors of a variable whose graphs are looked into; of more the first one: the state of an optimizer
_ATTRIBUTE = re.compile(r"(?<=\w)\.\w.*$")  # of the object that a variable holds: what lies in a list comes and goes
MOST_NODES = 10_000  # of one such graph: 3 ms, and a third of what torch can have touched (``backends/torch/touched``)


@dataclass(frozen=True, slots=True)
class Size:
    """What a variable held at one look. ``older``: nodes that were there at the look before. ``refilled``: nothing of
    what it held then is still there, however much it holds: the steps of an episode."""

    tensors: int
    graphs: int = 0
    bytes: int = 0
    older: int = 0
    refilled: bool = False


class Held:
    """Some of what each variable held at the last look, without keeping it."""

    def __init__(self) -> None:
        self._noted: dict[str, list[weakref.ref[Any]]] = {}
        self._names: dict[tuple[int, str], str] = {}

    def renamed(self, groups: Mapping[str, Group]) -> dict[str, Group]:
        """``groups`` by the names of the look before, where another function runs now, which has the same object under
        another name: what two methods of one object take turns to call backward for is ``self`` of one, then of the
        other."""
        found: dict[str, Group] = {}
        names: dict[tuple[int, str], str] = {}
        for name, group in groups.items():
            rest = _ATTRIBUTE.search(name)
            key = (id(group.way[0]), rest[0]) if rest is not None and len(group.way) > 1 else None
            known = self._names.get(key) if key is not None else None
            if known is not None and known not in groups and known not in found:
                name = known
            found[name] = group
            if key is not None:
                names.setdefault(key, name)
        self._names = names
        return found

    def compared(self, groups: Mapping[str, Group], sizes: Mapping[str, Size]) -> dict[str, Size]:
        """``sizes``, with what is refilled. Notes what ``groups`` hold, for the next time."""
        found = {}
        for name, size in sizes.items():
            members, before = groups[name].members, self._noted.get(name)
            stayed = (value for ref in before or () if (value := ref()) is not None and members.get(id(value)) is value)
            found[name] = replace(size, refilled=bool(before) and next(stayed, None) is None)
        self._noted = {name: _noted(group) for name, group in groups.items()}
        return found


def _noted(group: Group) -> list[weakref.ref[Any]]:
    members = list(group.members.values())
    try:
        return [weakref.ref(each) for each in [*members[:_NOTED], *members[_NOTED:][-_NOTED:]]]
    except TypeError:  # a node of torch's
        return []


@dataclass(frozen=True, slots=True)
class Look:
    iteration: int
    sizes: Mapping[str, Size]


def size_of(group: Group, backend: Backend | None, mark: int | None) -> Size:
    """``mark``: ``Backend.made_so_far`` of the look before."""
    if backend is None:
        return Size(len(group.members))
    graphs, nbytes = figures(backend, group.members.values())
    older = 0
    if mark is not None and graphs > 0:
        looked = itertools.islice(group.members.values(), _FEW if len(group.members) <= _FEW else 1)
        tensors = [each for each in looked if backend.is_tensor(each) and backend.has_graph(each)]
        older = max((backend.older_nodes(each, mark, MOST_NODES) for each in tensors), default=0)
    return Size(len(group.members), graphs, nbytes, older)


def is_bounded(way: Sequence[Any], room: float = math.inf) -> bool:
    """Whether a queue that drops what is too much is on the way. ``room``: for so many items it bounds nothing."""
    return any(type(each) is collections.deque and each.maxlen is not None and each.maxlen < room for each in way)


def owners_first(groups: Mapping[str, Group]) -> list[str]:
    """Without plain local variables where something else grows too: ``out = rnn(x)`` has the graph of ``rnn.h``."""
    lasting = [name for name, group in groups.items() if group.root.kind != "local" or not group.path.isidentifier()]
    return lasting or list(groups)


def grows(looks: Sequence[Look], name: str) -> str:
    """By what a variable grew over the last three looks: "tensors", "nodes" or "" for not at all."""
    sizes = [look.sizes.get(name) for look in looks[-LOOKS:]]
    first, middle, last = sizes if len(sizes) == LOOKS else (None, None, None)
    if first is None or middle is None or last is None:
        return ""
    at = [look.iteration for look in looks[-LOOKS:]]
    if _rises(at, [each.older for each in (first, middle, last)]):
        return "nodes"
    if middle.refilled or last.refilled or not _rises(at, [each.tensors for each in (first, middle, last)]):
        return ""
    if first.graphs < middle.graphs < last.graphs:
        return "tensors"
    return "tensors" if last.bytes - first.bytes > _SHARE * (resident() or 0) else ""


def _rises(at: Sequence[int], counts: Sequence[int]) -> bool:
    """More each time, at a pace that is kept."""
    first, middle, last = counts
    if not 0 < first < middle < last:
        return False
    return (last - middle) / (at[2] - at[1]) > _PACE * (middle - first) / (at[1] - at[0])

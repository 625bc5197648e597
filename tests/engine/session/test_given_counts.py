"""What a node was given, by the counts that its consumers passed on: the sum against its definition, on random graphs,
and how often a backend is asked for edges."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, cast

import pytest

from adbg.engine.session.running_call import Running
from adbg.engine.types import Edge


class Call:
    """A graph whose edges lead from lower keys to higher ones; two edges may lead to one node, or nowhere."""

    number, thread, depth, parent, parent_key = 1, 1, 0, None, None

    def __init__(self, below: list[list[int | None]], unseen: set[int]) -> None:
        self.below = below
        self.unseen = unseen
        self.asked: Counter[int] = Counter()

    def edges(self, key: int) -> list[Edge]:
        self.asked[key] += 1
        return [Edge(place, to) for place, to in enumerate(self.below[key])]

    def ends_unseen(self, key: int) -> bool:
        return key in self.unseen


def defined(running: Running, call: Call, key: int) -> tuple[int, int]:
    """Gradient by gradient: what is passed on along an edge arrives at its end. Of a node that does not show what it
    gives, each may hold all; of one of which only what it received is known, that much arrives, however many edges."""
    nan = inf = 0
    for consumer, below in enumerate(call.below):
        if consumer in running.spoilt:
            counts: Any = running.spoilt[consumer]
            if consumer in call.unseen:
                counts = [(sum(n for n, _ in counts), sum(i for _, i in counts))] * len(below)
            arriving = [count for to, count in zip(below, counts, strict=False) if to == key]
        else:
            arriving = [running.received[consumer]] if consumer in running.received and key in below else []
        nan += sum(count[0] for count in arriving)
        inf += sum(count[1] for count in arriving)
    return nan, inf


@pytest.mark.parametrize("seed", range(20))
def test_counts_are_those_of_the_definition(seed: int) -> None:
    pick = random.Random(seed)
    size = 14
    below: list[list[int | None]] = [
        [pick.choice([None, *range(key + 1, size)]) for _ in range(pick.randrange(5))] for key in range(size)
    ]
    call = Call(below, {key for key in range(size) if pick.random() < 0.4})
    running = Running(cast(Any, None), cast(Any, call), 1, None, 0)
    seen = 0
    for _ in range(120):
        key = pick.randrange(size)
        counts = tuple((pick.randrange(3), pick.randrange(3)) for _ in range(pick.randrange(6)))
        what = pick.random()
        if what < 0.5:
            running.spoil(key, counts)
        elif what < 0.65:
            running.spoil(key, ())
        else:
            running.receive(key, (pick.randrange(3), pick.randrange(3)))
        if pick.random() < 0.5:
            for other in range(size):
                wanted = defined(running, call, other)
                assert running.given(other) == wanted
                seen += any(wanted)
    assert seen > 50, "the graph was given something"


def test_a_chain_of_nodes_asks_for_the_edges_of_each_once() -> None:
    """Every node of a long chain passes NaN on, and every one asks what it was given."""
    size = 300
    call = Call([[key + 1, None] for key in range(size)] + [[]], {7, 50})
    running = Running(cast(Any, None), cast(Any, call), 1, None, 0)
    for key in range(size):
        assert running.given(key) == ((4, 0) if key else (0, 0))
        running.receive(key, (4, 0))
        running.spoil(key, ((4, 0),))
        running.spoil(key, ((4, 0), (0, 0)))  # an edit
    assert running.given(size) == (4, 0)
    assert set(call.asked) == set(range(size))
    assert max(call.asked.values()) == 1

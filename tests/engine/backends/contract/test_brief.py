"""A call in which nothing can be of interest is reported in short."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any

import pytest
from support.watch import Watch
from support.worlds import World

from adbg.engine.backends.base import BackwardCall, HookPlan
from adbg.engine.types import BriefCall

pytestmark = pytest.mark.needs("brief_reports")


class Brief(Watch):
    """It passes over calls that have no node of the name ``wanted``."""

    def __init__(self, wanted: str = "") -> None:
        super().__init__(HookPlan(name=lambda name: name == wanted))
        self.wanted = wanted
        self.kinds: list[frozenset[str]] = []
        self.briefs: list[BriefCall] = []
        self.reports: list[tuple[str, int]] = []
        self.errors: list[BaseException | None] = []
        self.times: list[float] = []

    def passes_over(self, kinds: frozenset[str], alike: Hashable = None, watched: bool = False) -> bool:
        self.kinds.append(kinds)
        return self.wanted not in kinds

    def brief_begin(self, call: BriefCall) -> None:
        self.briefs.append(call)
        self.reports.append(("brief begin", call.number))

    def brief_end(self, number: int, us: float, error: BaseException | None) -> None:
        self.reports.append(("brief end", number))
        self.errors.append(error)
        self.times.append(us)

    def backward_begin(self, call: BackwardCall) -> None:
        self.reports.append(("begin", call.number))
        super().backward_begin(call)

    def backward_end(self, call: BackwardCall, error: BaseException | None) -> None:
        self.reports.append(("end", call.number))
        super().backward_end(call, error)


def chain(world: World) -> Any:
    """Four nodes with the accumulate node."""
    return world.total(world.scale(world.tanh(world.leaf([0.1, 0.2])), 3.0))


def seen_before(world: World, watch: Brief) -> None:
    """A backend may have to be asked for the names of one call before it knows those of the next one early."""
    world.backward(chain(world))
    for kept in (watch.kinds, watch.briefs, watch.reports, watch.errors, watch.times):
        kept.clear()


def test_a_call_passed_over_is_reported_in_short(world: World, watching: Any) -> None:
    watch = Brief(wanted="nothing")
    with watching(watch):
        seen_before(world, watch)
        for _ in range(2):
            world.backward(chain(world))
    assert watch.reports == [("brief begin", 2), ("brief end", 2), ("brief begin", 3), ("brief end", 3)]
    assert {world.names[op] for op in ("sum", "scale", "tanh")} <= watch.kinds[0]
    assert watch.kinds[1] == watch.kinds[0]
    first, second = watch.briefs
    assert (first.number, second.number, first.iteration, second.iteration) == (2, 3, 2, 3)
    assert first.nodes == 4 and tuple(first.roots) == (world.names["sum"],) and first.entry == "backward"
    assert first.thread == threading.get_ident()
    assert first.file.endswith("support/worlds.py") and first.line > 0
    assert watch.errors == [None, None] and min(watch.times) > 0


def test_a_call_of_interest_is_reported_in_full(world: World, watching: Any) -> None:
    watch = Brief(wanted=world.names["custom"])
    with watching(watch):
        seen_before(world, watch)
        world.backward(chain(world))
        world.backward(world.total(world.custom(world.leaf([1.0]), 2.0)))
    assert watch.reports == [("brief begin", 2), ("brief end", 2), ("begin", 3), ("end", 3)]
    assert watch.last.begun == watch.last.ended == [f"{world.names['custom']}#1"]


def test_an_exception_in_a_call_passed_over_is_reported_in_full(world: World, watching: Any) -> None:
    def fail(gradient: Any) -> None:
        raise ValueError("no such luck")

    watch = Brief(wanted="nothing")
    leaf = world.leaf([1.0])
    root = world.total(world.scale(world.tanh(leaf), 3.0))
    world.tensor_hook(leaf, fail)
    with watching(watch):
        seen_before(world, watch)
        with pytest.raises(Exception, match="no such luck") as raised:
            world.backward(root)
    assert watch.reports[0] == ("brief begin", 2)
    assert sorted(watch.reports) == [("brief begin", 2), ("brief end", 2), ("end", 2)]
    assert "no such luck" in str(watch.last.error)
    assert watch.errors[0] is raised.value


def test_a_nested_call_is_reported_in_full(world: World, watching: Any) -> None:
    watch = Brief(wanted="nothing")
    inner = chain(world)
    with watching(watch):
        world.backward(world.total(world.custom(world.leaf([1.0]), 2.0, lambda: world.backward(inner))))
    assert [report for report in watch.reports if report[1] == 2] == [("begin", 2), ("end", 2)]
    assert (watch.last.number, watch.last.depth, len(watch.last.order)) == (2, 1, 4)

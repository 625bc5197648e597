"""The stepping rules as data, without threads and sockets."""

from __future__ import annotations

import threading

import pytest

from adbg.engine.session.stepping import EVERY, NOTHING, Goal, Hooking, Kind, Place
from adbg.engine.types import Phase

ME = threading.get_ident()
BEGIN, BEFORE, AFTER, END = Phase.BEGIN, Phase.BEFORE, Phase.AFTER, Phase.END


def outer(phase: Phase, key: int | None = None, **facts: int) -> Place:
    """In call 1, an outermost one."""
    return Place(phase, **{"thread": ME, "serial": 1, "family": 1, "depth": 0, "index": key or 0, **facts}, key=key)  # type: ignore[arg-type]


def inner(phase: Phase, key: int | None = None, parent: int = 5) -> Place:
    """In call 2, run by node ``parent`` of call 1."""
    return Place(phase, ME, 2, 1, 1, key, key or 0, 1, parent, parent)


def later(phase: Phase, key: int | None = None, thread: int = ME) -> Place:
    """In call 9, the next outermost one."""
    return Place(phase, thread, 9, 9, 0, key, key or 0)


@pytest.mark.parametrize(
    ("kind", "start", "stops", "passes"),
    [
        (
            Kind.STEP,
            outer(BEFORE, 5),
            [outer(BEFORE, 6), inner(BEFORE, 1), later(BEFORE, 1)],
            [outer(AFTER, 5), inner(BEGIN), inner(END), outer(END), later(BEGIN)],
        ),
        (
            Kind.NEXT,
            outer(BEFORE, 5),
            [outer(BEFORE, 6), later(BEFORE, 1)],
            [inner(BEFORE, 1), inner(AFTER, 1), outer(AFTER, 5), outer(END)],
        ),
        (Kind.NEXT, inner(BEFORE, 1), [inner(BEFORE, 2), outer(BEFORE, 6)], [inner(AFTER, 1), inner(END)]),
        (
            Kind.FINISH,
            outer(BEFORE, 5),
            [outer(END), later(BEFORE, 1)],
            [outer(AFTER, 5), outer(BEFORE, 6), inner(END)],
        ),
        (
            Kind.FINISH,
            inner(BEFORE, 1),
            [outer(AFTER, 5), outer(BEFORE, 6), outer(END)],
            [inner(BEFORE, 2), inner(AFTER, 1), inner(END), outer(AFTER, 4)],
        ),
        (Kind.AFTER, outer(BEFORE, 5), [outer(AFTER, 5), outer(END)], [inner(BEFORE, 1), inner(AFTER, 5), inner(END)]),
        (Kind.AFTER, outer(BEGIN), [outer(AFTER, 1)], [outer(BEFORE, 1), inner(AFTER, 1)]),
        (Kind.UNTIL, outer(BEFORE, 5), [], [outer(BEFORE, 6), outer(END)]),
    ],
)
def test_where_a_goal_stops(kind: Kind, start: Place, stops: list[Place], passes: list[Place]) -> None:
    goal = Goal(kind, start)
    assert [place for place in stops if not goal.reached(place)] == []
    assert [place for place in passes if goal.reached(place)] == []


def test_another_thread_goes_on_freely_while_the_stepped_one_lives() -> None:
    other = ME + 1  # no thread of that ident exists
    goal = Goal(Kind.STEP, outer(BEFORE, 5))
    assert not goal.reached(later(BEFORE, 1, thread=other))
    assert goal.hooking(later(BEGIN, thread=other)) == NOTHING
    gone = Goal(Kind.STEP, Place(BEFORE, other, 1, 1, 0, 5, 5))
    assert gone.reached(later(BEFORE, 1, thread=ME))


def test_a_step_from_a_python_line_takes_the_next_node_of_any_thread() -> None:
    assert Goal(Kind.STEP, Place(Phase.PYTHON, ME)).reached(later(BEFORE, 1, thread=ME + 1))


@pytest.mark.parametrize(
    ("kind", "start", "place", "wanted"),
    [
        (Kind.STEP, outer(BEFORE, 5), inner(BEGIN), EVERY),
        (Kind.NEXT, outer(BEFORE, 5), outer(BEGIN), EVERY),
        (Kind.NEXT, outer(BEFORE, 5), inner(BEGIN), NOTHING),  # nested calls run at full speed
        (Kind.FINISH, outer(BEFORE, 5), outer(BEGIN), NOTHING),
        (Kind.FINISH, inner(BEFORE, 1), outer(BEGIN), Hooking(indices=frozenset({5}))),
        (Kind.FINISH, inner(BEFORE, 1), inner(BEGIN), NOTHING),
        (Kind.AFTER, outer(BEFORE, 5), outer(BEGIN), Hooking(indices=frozenset({5}))),
        (Kind.AFTER, outer(BEFORE, 5), inner(BEGIN), NOTHING),
        (Kind.UNTIL, outer(BEFORE, 5), outer(BEGIN), NOTHING),
    ],
)
def test_only_what_the_goal_needs_is_hooked(kind: Kind, start: Place, place: Place, wanted: Hooking) -> None:
    assert Goal(kind, start).hooking(place) == wanted

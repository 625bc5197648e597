"""What a process tells of itself as a rank, and the time-outs of its process groups: raised, and put back."""

from __future__ import annotations

import gc
import os
import time
import weakref
from typing import Any

from adbg.engine.agent.ranks import HeldGroups, RankFacts
from adbg.engine.errors import Unsupported
from adbg.engine.protocol.messages import GroupTimeout
from adbg.engine.session.session import Session


class Outlet:
    def event(self, body: Any, droppable: bool = False) -> None:
        raise AssertionError(f"nothing goes wrong here: {body}")


class Groups:
    """A backend with process groups, and no more."""

    backward_count, iteration, name = 7, 3, "fake"

    def __init__(self, **seconds: float) -> None:
        self.seconds = seconds

    def group_timeouts(self) -> list[GroupTimeout]:
        return [GroupTimeout("fake", g, "gloo", s, s, not g.startswith("fixed")) for g, s in self.seconds.items()]

    def set_group_timeout(self, group: str, backend: str, seconds: float) -> None:
        if group.startswith("fixed"):
            raise Unsupported("no way", "")
        self.seconds[group] = seconds


def held(**seconds: float) -> tuple[HeldGroups, Groups]:
    session, backend = Session(Outlet()), Groups(**seconds)
    session.backends.append(backend)  # type: ignore[arg-type]
    return HeldGroups(session), backend


def test_raised_and_put_back() -> None:
    groups, backend = held(short=3.0, long=900.0, fixed=30.0)
    rows = {row.group: (row.seconds, row.own) for row in groups.at_least(600.0)}
    assert rows == {"short": (600.0, 3.0), "long": (900.0, 900.0), "fixed": (30.0, 30.0)}
    groups.at_least(60.0)
    assert backend.seconds == {"short": 60.0, "long": 900.0, "fixed": 30.0}
    groups.put_back()
    assert backend.seconds == {"short": 3.0, "long": 900.0, "fixed": 30.0}


def test_when_each_was_set() -> None:
    groups, _backend = held(one=3.0)
    groups.at_least(60.0)
    between = time.monotonic()
    groups.at_least(600.0)
    groups.at_least(600.0)  # asked again: nothing is set, and it is as old as before
    before = time.monotonic()
    (row,) = groups.listing()
    after = time.monotonic()
    first, second = row.settings
    assert (first.seconds, second.seconds) == (60.0, 600.0)
    assert second.ago <= after - between and before - between <= first.ago
    assert row.of_one_begun((first.ago + second.ago) / 2) == 60.0 and row.of_one_begun(0.0) == 600.0
    assert row.of_one_begun(first.ago + 1) == 3.0


def test_what_the_program_has_set_meanwhile_is_its_own() -> None:
    groups, backend = held(one=3.0)
    groups.at_least(600.0)
    backend.seconds["one"] = 5.0
    assert [row.own for row in groups.listing()] == [5.0]
    groups.put_back()
    assert backend.seconds == {"one": 5.0}


def test_one_that_began_with_a_value_of_the_programs_in_between() -> None:
    groups, backend = held(one=3.0)
    groups.at_least(600.0)
    backend.seconds["one"] = 5.0
    between = time.monotonic()
    groups.look_again()
    (row,) = groups.listing()
    assert (row.seconds, row.own) == (600.0, 5.0)
    assert row.of_one_begun(time.monotonic() - between) == 5.0


def test_a_group_that_is_made_later() -> None:
    groups, backend = held(one=3.0)
    groups.at_least(600.0)
    backend.seconds["two"] = 4.0
    groups.look_again()
    assert backend.seconds == {"one": 600.0, "two": 600.0}
    groups.put_back()
    groups.look_again()
    assert backend.seconds == {"one": 3.0, "two": 4.0}


def test_the_state_is_the_systems_own_word() -> None:
    session, backend = Session(Outlet()), Groups(one=3.0)
    session.backends.append(backend)  # type: ignore[arg-type]
    state = RankFacts(session).state()
    assert (state.backward, state.iteration, state.running, state.stopped) == (7, 3, False, False)
    with open("/proc/self/status", encoding="ascii") as status:
        resident = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))
    assert abs(state.rss - resident) < 32 << 20 and state.rss % os.sysconf("SC_PAGE_SIZE") == 0
    assert [row.own for row in state.timeouts] == [3.0] and state.collective is None


def test_no_call_is_kept_alive() -> None:
    class Call:
        chain: tuple[Any, ...] = ()

    facts, call = RankFacts(Session(Outlet())), Call()
    call.chain = (call,)
    facts.backward_begin(call)  # type: ignore[arg-type]
    facts.release(call, None)  # type: ignore[arg-type]
    gone = weakref.ref(call)
    call.chain = ()
    del call
    gc.collect()
    assert gone() is None

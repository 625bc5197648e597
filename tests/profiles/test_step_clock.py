"""The parts of an iteration, on one thread, in moments that are given."""

from __future__ import annotations

from adbg.profiles.profilers.step_clock import BACKWARD, STOPPED, StepClock


def told(*moments: tuple[int, str, bool]) -> StepClock:
    clock = StepClock()
    clock.ended = 0
    for now, name, begins in moments:
        (clock.begin if begins else clock.end)(name, now)
    return clock


def test_the_parts_of_an_iteration() -> None:
    clock = told(
        (10, "optimizer", True), (30, "optimizer", False), (40, "data", True), (90, "data", False),
        (91, "forward", True), (98, "forward", False), (100, BACKWARD, True),
    )  # fmt: skip
    assert clock.take() == (100, {"optimizer": 20, "data": 50, "forward": 7}, {})
    clock.end(BACKWARD, 150)
    clock.ended = 160
    clock.begin(BACKWARD, 170)
    assert clock.take() == (10, {BACKWARD: 50}, {})


def test_each_moment_counts_once() -> None:
    """An optimizer's closure runs the forward, and backward."""
    clock = told((10, "optimizer", True), (20, "forward", True), (50, "forward", False), (60, BACKWARD, True))
    assert clock.take() == (60, {"optimizer": 20, "forward": 30}, {})
    clock.end(BACKWARD, 80)
    clock.ended = 80
    clock.end("optimizer", 85)
    clock.begin(BACKWARD, 90)
    assert clock.take() == (10, {BACKWARD: 20, "optimizer": 5}, {})


def test_a_backward_is_one_whatever_it_runs() -> None:
    """A checkpoint runs the forward again."""
    clock = told((0, BACKWARD, True), (10, "forward", True), (20, "forward", False), (30, BACKWARD, False))
    assert clock.spent == {BACKWARD: 30}


def test_stops_are_no_time_of_the_program() -> None:
    clock = told(
        (0, "forward", True), (10, STOPPED, True), (90, STOPPED, False), (100, "forward", False), (100, BACKWARD, True)
    )
    assert clock.take() == (20, {"forward": 20, STOPPED: 80}, {})


def test_ends_without_a_begin_are_none() -> None:
    clock = told((10, "data", False), (20, BACKWARD, False), (30, "forward", True), (40, "optimizer", False))
    assert clock.names == ["forward"] and clock.spent == {}
    assert StepClock().take() == (None, {}, {}), "before the first backward nothing is known"


def test_where_data_was_waited_for() -> None:
    clock = StepClock()
    clock.ended = 0
    for at in (0, 100):
        clock.where = ("train.py", 7)
        clock.begin("data", at)
        clock.begin(STOPPED, at + 10)
        clock.end(STOPPED, at + 20)
        clock.end("data", at + 50)
    clock.begin(BACKWARD, 200)
    assert clock.take() == (180, {"data": 80, STOPPED: 20}, {("train.py", 7): [80, 2]})

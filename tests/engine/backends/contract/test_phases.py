"""The parts of a training step, as a backend tells of them while somebody listens."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.worlds import World

from adbg.engine.types import SourceLine

pytestmark = pytest.mark.needs("phases")
STEP: list[Any] = [  # a loader may make a batch ahead of its step, on another thread
    ("data", True), ("data", False), ("forward", True), "forward", ("forward", False), ("optimizer", True),
    "optimizer", ("optimizer", False),
]  # fmt: skip


class Heard(list[Any]):
    """What was told, and what the program itself says in between."""

    lines: list[SourceLine | None]

    def __init__(self) -> None:
        super().__init__()
        self.lines = []
        self.threads: set[int] = set()

    def inside(self, phase: str) -> None:
        if phase != "data":
            self.append(phase)

    def tell(self, phase: str, begins: bool, line: SourceLine | None) -> None:
        self.append((phase, begins))
        self.threads.add(threading.get_ident())
        if begins:
            self.lines.append(line)


def test_each_part_is_told_once_around_what_it_is(world: World) -> None:
    heard = Heard()
    step = world.training(heard.inside)
    world.backend.watch_phases(heard.tell)
    step()
    assert heard == STEP, "the outermost alone"
    assert heard.threads == {threading.get_ident()}
    wait, *others = heard.lines
    assert wait is not None and wait.function == "step" and others == [None, None], "where data is waited for"


def test_nobody_listens_any_more(world: World) -> None:
    before = world.footprint()
    heard = Heard()
    step = world.training(lambda phase: None)
    before = world.footprint()
    world.backend.watch_phases(heard.tell)
    now = world.footprint()
    assert len(now) > len(before) or any(a is not b for a, b in zip(now, before, strict=True))
    world.backend.watch_phases(None)
    after = world.footprint()
    assert len(after) == len(before) and all(a is b for a, b in zip(after, before, strict=True))
    step()
    assert heard == []


def test_names_of_modules_and_phases_are_followed_side_by_side(world: World) -> None:
    before = world.footprint()
    heard = Heard()
    step = world.training(heard.inside)
    world.backend.set_stacks(True)
    world.backend.watch_phases(heard.tell)
    world.backend.set_stacks(False)
    step()
    world.backend.set_stacks(True)
    step()
    world.backend.watch_phases(None)
    world.backend.set_stacks(False)
    assert heard == [*STEP, *STEP]
    assert all(a is b for a, b in zip(world.footprint(), before, strict=True))


def test_the_program_computes_the_same(world: World) -> None:
    plain, watched = world.training(lambda phase: None), world.training(lambda phase: None)
    expected = [world.values(plain()) for _ in range(3)]
    world.backend.watch_phases(Heard().tell)
    assert [world.values(watched()) for _ in range(3)] == expected


def test_an_exception_ends_its_part_and_has_no_frame_of_ours(world: World) -> None:
    heard = Heard()
    raised: list[str] = []

    def inside(phase: str) -> None:
        if phase not in ("data", *raised):
            raised.append(phase)
            raise RuntimeError(phase)

    step = world.training(inside)
    world.backend.watch_phases(heard.tell)
    for phase in ("forward", "optimizer"):
        with pytest.raises(RuntimeError, match=phase) as error:
            step()
        entry, names = error.value.__traceback__, []
        while entry is not None:
            names.append(entry.tb_frame.f_globals.get("__name__", ""))
            entry = entry.tb_next
        assert names and not any(name.partition(".")[0] == "adbg" for name in names)
    del heard[:]
    step()
    assert [row for row in heard if row != ("optimizer", False)] == [row for row in STEP if isinstance(row, tuple)][:-1]

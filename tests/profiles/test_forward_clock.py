"""Which forwards the node timer times, what it says of them, and what it leaves behind."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.frameworks import only_here
from support.program import wait_until

from adbg.engine.backends import REGISTRY
from adbg.engine.protocol import messages as p
from adbg.engine.session.session import Session
from adbg.profiles.control import Profiling
from adbg.profiles.profilers import forward_clock
from adbg.profiles.report.formats import detect

pytestmark = only_here("paddle", "torch has no way to time a forward that is safe beside checkpoints")

STEPS = 24
#: Of calls 0, 1, … of a line those are hooked, and the forwards of these are timed: not the first, which keeps stacks.
HOOKED = [0, 2, 4, 6, 8, 12, 20]
TIMED = [4, 8, 12]


class _Silent:
    def event(self, body: object, droppable: bool = False) -> None:
        """Nobody is there."""


class Program:
    """A session, its profiles, and a training step with an operator of its own that takes 3 ms by its own clock."""

    def __init__(self, folder: Path) -> None:
        self.session = Session(_Silent())
        self.session.set_filters([])
        self.session.set_stacks(True)
        self.session.add_backend(REGISTRY["paddle"]())
        self.profiling = Profiling(self.session, lambda body: None, lambda: str(folder))
        self.session.observe(self.profiling)
        self.session.attach()
        self.taken: list[float] = []  # us of the slow operator's forward, by step
        self.inside: list[bool] = []  # whether operators are timed while a forward runs, by step
        timer = self.session.backends[0].forward_timer()
        assert timer is not None
        self.timer: Any = timer

    def start(self) -> None:
        self.profiling.answer(p.Profile("start", "nodes", p.ProfileRegion("run")))
        self.profiling.program_starts()

    def stop(self) -> dict[str, Any]:
        folder = self.profiling.answer(p.Profile("stop")).state.folder
        self.folder = Path(folder)
        found: dict[str, Any] = json.loads((self.folder / "nodes.json").read_text())
        return found

    def slow(self) -> None:
        begin = time.perf_counter()
        while time.perf_counter() - begin < 0.003:
            pass
        self.taken.append((time.perf_counter() - begin) * 1e6)
        self.inside.append(bool(self.timer._thread))

    def step(self, other: bool = False) -> Any:
        import paddle

        slow = self.slow

        class SlowLayer(paddle.autograd.PyLayer):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                slow()
                return x * 2

            @staticmethod
            def backward(ctx: Any, grad: Any) -> Any:
                return grad * 2

        x = paddle.ones([4])
        x.stop_gradient = False
        y = paddle.tanh(SlowLayer.apply(paddle.tanh(x))).sum()
        if other:
            y.backward()
        else:
            y.backward()
        return x.grad


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    program = Program(tmp_path)
    yield program
    program.session.detach()
    assert not program.timer._thread


def test_forwards_in_front_of_hooked_calls_alone(program: Program) -> None:
    program.start()
    for _ in range(STEPS):
        program.step()
    found = program.stop()
    assert [number for number, on in enumerate(program.inside) if on] == TIMED
    assert [number for number, row in enumerate(found["iterations"]) if row["hooked"]] == HOOKED
    assert found["forward"] == {"timed": len(TIMED), "why": ""}
    (slow,) = (row for row in found["nodes"] if "Slow" in row["name"])
    truth = statistics.median(program.taken[number] for number in TIMED)
    assert slow["forward_calls"] == len(TIMED) and truth <= slow["forward_us"] < truth * 1.5 + 300
    for row in found["nodes"]:
        leaf = "Accumul" in row["name"]
        assert (row["forward_us"] is None) is leaf and row["forward_calls"] == (0 if leaf else len(TIMED)), row
        assert row is slow or leaf or row["forward_us"] < truth / 2, "its time is no other node's"
    plain = [row for row in found["iterations"] if not row["disturbed"]]
    assert len(plain) >= STEPS - len(HOOKED) - 1
    profile = detect.read(program.folder)
    (node,) = (node for node in profile.nodes if "Slow" in node.name)
    assert node.forward == pytest.approx(slow["forward_us"] * 1e-6) and profile.meta["forwards"] == len(TIMED)


def test_two_lines_that_take_turns(program: Program) -> None:
    """The line of the next call is that of the one which came last time behind this one."""
    program.start()
    for _ in range(8):
        program.step()
        program.step(other=True)  # another line calls backward
    found = program.stop()
    hooked = [number for number, row in enumerate(found["iterations"]) if row["hooked"]]
    timed = [number for number, on in enumerate(program.inside) if on]
    assert set(timed) <= set(hooked) and timed


def test_no_backward_comes(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of an evaluation would grow: they end by themselves."""
    monkeypatch.setattr(forward_clock, "SHORTEST", 0.05)
    program.start()
    for _ in range(4):  # the forward behind these is timed
        program.step()
    assert program.timer._thread == threading.get_ident()

    def ended() -> bool:
        return not program.timer._thread  # a function of Python's: the interpreter looks at its queue

    wait_until(ended, "the end of the records")
    program.step()
    found = program.stop()
    assert found["forward"] == {"timed": 0, "why": forward_clock.TOO_LONG}
    assert {row["forward_us"] for row in found["nodes"]} == {None}
    assert str(detect.read(program.folder).meta["forward"]).startswith("not measured: no backward came")


def test_another_thread_than_the_main_one(program: Program) -> None:
    program.start()

    def train() -> None:
        for _ in range(8):
            program.step()

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    found = program.stop()
    assert found["forward"] == {"timed": 0, "why": forward_clock.OTHER_THREAD} and not any(program.inside)
    assert {row["forward_us"] for row in found["nodes"]} == {None}


def test_the_end_comes_while_a_forward_is_timed(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from another thread: the main one is asked to, and does between two instructions."""
    monkeypatch.setattr(forward_clock, "SHORTEST", 1e4)
    monkeypatch.setattr(forward_clock, "LONGEST", 1e4)
    program.start()
    for _ in range(4):
        program.step()
    assert program.timer._thread
    asks = threading.Thread(target=program.stop)
    asks.start()
    asks.join()
    wait_until(lambda: not program.timer._thread, "the end of the records")
    assert {row["forward_us"] for row in json.loads((program.folder / "nodes.json").read_text())["nodes"]} == {None}


def test_a_checkpoints_second_forward_is_not_timed(program: Program) -> None:
    import paddle
    from paddle.distributed.fleet.utils import recompute

    inside: list[bool] = []

    def part(x: Any) -> Any:
        inside.append(bool(program.timer._thread))
        return x.tanh().exp()

    program.start()
    for _ in range(9):
        x = paddle.ones([4])
        x.stop_gradient = False
        recompute(part, x * 2, use_reentrant=False).sum().backward()
    found = program.stop()
    forward, again = inside[::2], inside[1::2]
    assert [number for number, on in enumerate(forward) if on] == [4, 8] and not any(again)
    known = {row["name"]: row["forward_calls"] for row in found["nodes"]}
    assert next(calls for name, calls in known.items() if name.startswith("Sum")) == 2


def test_the_same_bits_with_and_without(program: Program) -> None:
    plain = [program.step() for _ in range(12)]
    program.start()
    during = [program.step() for _ in range(12)]
    assert any(program.inside)
    program.stop()
    assert [row.numpy().tobytes() for row in during] == [row.numpy().tobytes() for row in plain]

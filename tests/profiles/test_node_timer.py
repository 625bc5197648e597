"""The node timer against what it did not measure: a node of known duration, and calls that nothing was hooked in. Both
with hooks and, where the extension is there, by what it writes down."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.frameworks import on_frameworks

from adbg.engine.backends import REGISTRY
from adbg.engine.native import load
from adbg.engine.protocol.messages import BreakpointRequest
from adbg.engine.session.session import Session
from adbg.profiles.profilers import written_nodes
from adbg.profiles.profilers.node_timer import HOW, WRITTEN, NodeTimer
from adbg.profiles.region import Region
from adbg.profiles.report.formats import detect
from adbg.profiles.report.verdict import judge

SECONDS, FIRST = 0.004, 0.04  # of the slow node, which has to warm up
HOOKED = (2, 4, 6, 8, 12)  # of 20 calls, and the first one, which does not count


class _Silent:
    def event(self, body: object, droppable: bool = False) -> None:
        """Nobody is there."""


@pytest.fixture
def session(framework: str) -> Iterator[Session]:
    session = Session(_Silent())
    session.set_filters([])
    session.set_stacks(True)
    session.attach()
    session.add_backend(REGISTRY[framework]())
    yield session
    session.detach()


@pytest.fixture(params=["written", "hooked"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How nodes are timed."""
    if request.param == "hooked":
        monkeypatch.setattr(written_nodes, "collect", lambda running: False)
    elif load.core()[0] is None:
        pytest.skip(f"no extension here: {load.core()[1] or 'it was not built'}")
    return str(request.param)


def loss_of(framework: str, slept: list[float], inner: bool = False) -> Any:
    """A loss with a node of a custom function, which takes 4 ms by its own clock, and 40 the first time."""

    def sleep() -> None:
        begin = time.perf_counter()
        while time.perf_counter() - begin < (SECONDS if slept else FIRST):
            pass
        slept.append(time.perf_counter() - begin)

    if framework == "torch":
        import torch

        class Slow(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x * 2

            @staticmethod
            def backward(ctx: Any, grad: Any) -> Any:
                sleep()
                return grad * 2

        return torch.tanh(Slow.apply(torch.tanh(torch.ones(4, requires_grad=True)))).sum()
    import paddle

    class SlowLayer(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            sleep()
            return grad * 2

    x = paddle.ones([4])
    x.stop_gradient = False
    return paddle.tanh(SlowLayer.apply(paddle.tanh(x))).sum()


def outer_of(framework: str) -> Any:
    """A loss with a node whose backward runs one of another graph."""
    if framework == "torch":
        import torch

        class Outer(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x * 2

            @staticmethod
            def backward(ctx: Any, grad: Any) -> Any:
                with torch.enable_grad():
                    y = torch.ones(4, requires_grad=True)
                    torch.tanh(y).exp().sum().backward()
                return grad * 2

        return torch.tanh(Outer.apply(torch.tanh(torch.ones(4, requires_grad=True)))).sum()
    import paddle

    class OuterLayer(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            with paddle.enable_grad():
                y = paddle.ones([4])
                y.stop_gradient = False
                paddle.tanh(y).exp().sum().backward()
            return grad * 2

    x = paddle.ones([4])
    x.stop_gradient = False
    return paddle.tanh(OuterLayer.apply(paddle.tanh(x))).sum()


def measured(framework: str, session: Session, folder: Path, calls: int, slept: list[float]) -> dict[str, Any]:
    timer = NodeTimer()
    session.observe(timer)
    session.change(lambda: timer.start(Region("run"), str(folder)))
    taken: list[float] = []  # by the script's own clock
    for _ in range(calls):
        loss = loss_of(framework, slept)
        begin = time.perf_counter()
        loss.backward()
        taken.append((time.perf_counter() - begin) * 1e6)
    artifact = session.change(timer.stop)
    found: dict[str, Any] = json.loads((folder / artifact.file).read_text())
    return {**found, "taken": taken}


@on_frameworks()
def test_a_node_takes_what_its_own_clock_says(framework: str, session: Session, tmp_path: Path) -> None:
    slept: list[float] = []
    found = measured(framework, session, tmp_path, 20, slept)
    (slow,) = (row for row in found["nodes"] if "Slow" in row["name"])
    truth = statistics.median([slept[n] for n in HOOKED]) * 1e6
    assert truth <= slow["us"] * 1.001 < truth * 1.5, (slow, truth)
    assert slow["calls"] == len(HOOKED)
    assert [number for number, row in enumerate(found["iterations"]) if row["hooked"]] == [0, *HOOKED]
    # their forward keeps stacks until a hooked call has no node that is new
    assert [number for number, row in enumerate(found["iterations"]) if row["disturbed"]] == [0, 1, *HOOKED]
    assert (slow["file"], slow["nested"]) == (__file__, False)
    others = [row["us"] for row in found["nodes"] if row is not slow]
    assert len(others) >= 4 and max(others) < truth / 4, "its time is no other node's"


@on_frameworks()
def test_the_first_call_is_no_measure_of_others(framework: str, session: Session, tmp_path: Path) -> None:
    """Two calls are hooked of three: the median of both would be five times what the second one took."""
    slept: list[float] = []
    found = measured(framework, session, tmp_path, 3, slept)
    (slow,) = (row for row in found["nodes"] if "Slow" in row["name"])
    assert slow["calls"] == 1 and slept[2] * 1e6 <= slow["us"] * 1.001 < (slept[2] + FIRST / 4) * 1e6
    assert slow["total_us"] == pytest.approx(slow["us"])
    assert [row["hooked"] for row in found["iterations"]] == [True, False, True]
    profile = detect.read(tmp_path / "nodes.json")
    assert (profile.meta["measured"], profile.meta["backwards"]) == (1, 3) and judge(profile) is None


@on_frameworks()
def test_a_first_call_alone_is_told(framework: str, session: Session, tmp_path: Path) -> None:
    slept: list[float] = []
    found = measured(framework, session, tmp_path, 1, slept)
    (slow,) = (row for row in found["nodes"] if "Slow" in row["name"])
    assert slow["calls"] == 1 and slow["us"] * 1.001 >= slept[0] * 1e6


@on_frameworks()
def test_nodes_and_gaps_are_no_longer_than_a_call_without_hooks(
    framework: str, session: Session, tmp_path: Path, way: str
) -> None:
    slept: list[float] = []
    found = measured(framework, session, tmp_path, 30, slept)
    plain = [(row, taken) for row, taken in zip(found["iterations"], found["taken"], strict=True) if not row["hooked"]]
    assert all(row["nodes"] == 0 for row, _ in plain)
    assert all(0 < row["backward_us"] < taken for row, taken in plain), "the script's clock runs around it"
    in_all = sum(row["us"] + row["gap_us"] for row in found["nodes"])
    nodes = sum(row["us"] for row in found["nodes"])
    (cost,) = found["cost"]["by_line"].values()
    assert cost["plain_us"] == statistics.median([row["backward_us"] for row, _ in plain])
    # Whatever the machine does meanwhile, what the median of the calls without hooks took; or all that was measured,
    # where another program made those calls the longer ones, or the nodes alone longer than these.
    measured_us = nodes + sum(row["raw_gap_us"] for row in found["nodes"] if row["index"] > 1)
    assert in_all == pytest.approx(min(max(cost["plain_us"], nodes), measured_us), rel=0.001)
    assert (cost["hooked"], cost["plain"]) == (7, 22)
    assert found["cost"]["how"] == (WRITTEN if way == "written" else HOW)
    assert (cost["inside_us"] == 0) if way == "written" else (0 < cost["inside_us"] < 100)


@on_frameworks()
def test_a_stop_in_a_node_is_in_no_time(framework: str, session: Session, tmp_path: Path, way: str) -> None:
    """The thread stands a tenth of a second at each slow node."""

    def park(point: Any, running: Any) -> None:
        begin = time.perf_counter_ns()
        time.sleep(0.1)
        running.wait(time.perf_counter_ns() - begin)

    session.park = park  # type: ignore[assignment, method-assign]
    session.set_breakpoints([BreakpointRequest("*Slow*", 1)])
    slept: list[float] = []
    found = measured(framework, session, tmp_path, 20, slept)
    (slow,) = (row for row in found["nodes"] if "Slow" in row["name"])
    assert max(row["us"] + row["gap_us"] for row in found["nodes"]) < 0.05 * 1e6
    # The first call only showed that a thread stops in calls of that line: it is no measure of others in any case.
    assert slow["calls"] == len(HOOKED), found["iterations"]


@on_frameworks()
def test_a_node_that_runs_a_backward_has_those_nodes_inside(framework: str, session: Session, tmp_path: Path) -> None:
    timer = NodeTimer()
    session.observe(timer)
    session.change(lambda: timer.start(Region("run"), str(tmp_path)))
    for _ in range(4):
        outer_of(framework).backward()
    found = json.loads((tmp_path / session.change(timer.stop).file).read_text())
    (outer,) = (row for row in found["nodes"] if row["nested"])
    inner = [row for row in found["nodes"] if row["depth"] == 1]
    assert "Outer" in outer["name"] and len(inner) >= 3
    assert outer["raw_us"] > sum(row["raw_us"] for row in inner), "their time is in its own"


@on_frameworks()
def test_while_it_measures_nobody_else_is_told_of_nodes(framework: str, session: Session, tmp_path: Path) -> None:
    """A record of every node would be measured as part of the gaps."""
    from adbg.engine.session.observers import Observer

    seen: list[str] = []

    class Listener(Observer):
        def node_end(self, visit: Any) -> None:
            seen.append(visit.running.call.name(visit.key))

    session.observe(Listener())
    measured(framework, session, tmp_path, 2, [])
    assert seen == [] and session.notify.measures


@on_frameworks()
def test_nothing_ran(framework: str, session: Session, tmp_path: Path) -> None:
    timer = NodeTimer()
    session.observe(timer)
    session.change(lambda: timer.start(Region("run"), str(tmp_path)))
    assert session.change(timer.stop).file == "" and list(tmp_path.iterdir()) == []

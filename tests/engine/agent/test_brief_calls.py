"""Backward calls under a breakpoint that takes none of their nodes: told in short, and looked into when it matters."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from support.attach_targets import eventually
from support.dialled import Dialled
from support.frameworks import node_of, on_frameworks

from adbg.engine.agent.event_queue import EventQueue
from adbg.engine.protocol.messages import BackwardBegin, BackwardEnd, BackwardsRan, NodesRan
from adbg.engine.record.crash import crash_report
from adbg.engine.record.files import vlog_path
from adbg.engine.record.journal import Journal
from adbg.engine.record.reader import RunReader
from adbg.engine.types import BriefCall, BriefRun

START = {
    "torch": """
import torch, adbg
def leaf():
    return torch.ones(3, requires_grad=True)
def hooked(tensor, hook):
    tensor.register_hook(hook)
def tanh(tensor):
    return torch.tanh(tensor)
""",
    "paddle": """
import paddle, adbg
def leaf():
    value = paddle.ones([3])
    value.stop_gradient = False
    return value
def hooked(tensor, hook):
    tensor.register_hook(hook)
def tanh(tensor):
    return paddle.tanh(tensor)
""",
}
CALL = BriefCall(1, 4, ("Sum",), "backward", 1, 7, "train.py", 3)


def begun(run: Dialled) -> list[int]:
    """Numbers of the calls whose begin was told, in order; those told together one by one."""
    numbers = []
    for event in run.peer.events:
        if event["event"] == "adbg/backwardBegin":
            numbers.append(event["body"]["backward"])
        elif event["event"] == "adbg/backwards":
            first = event["body"]["first"]["backward"]
            numbers += range(first, first + len(event["body"]["us"]))
    return numbers


def ended(run: Dialled) -> int:
    together = sum(len(body["us"]) for body in run.peer.bodies("adbg/backwards"))
    return together + len(run.peer.bodies("adbg/backwardEnd"))


@on_frameworks()
def test_all_of_a_long_run_are_told_and_recorded(framework: str, tmp_path: Path) -> None:
    script = START[framework] + "for i in range(300):\n    tanh(leaf()).sum().backward()\nprint('done')\n"
    with Dialled(tmp_path, script, str(tmp_path / "run")) as run:
        run.peer.begin("NoSuchNode")
        run.peer.drain()
        assert run.end()[:2] == (0, "done\n")
    assert begun(run) == list(range(1, 301)) and ended(run) == 300
    together = run.peer.bodies("adbg/backwards")
    assert together and sum(len(body["us"]) for body in together) >= 150, "the later ones go together"
    first = together[0]["first"]
    assert (first["nodes"], first["file"], first["line"]) == (3, str(run.script), run.line("tanh(leaf())."))
    assert first["iteration"] == first["backward"] and first["roots"] and all(us > 0 for us in together[0]["us"])
    rows = RunReader(tmp_path / "run").backwards()
    assert [row.number for row in rows] == list(range(1, 301))
    assert all(row.us and row.nodes == 3 and row.line == first["line"] for row in rows)


@on_frameworks()
def test_breakpoint_in_a_hook_looks_into_it(framework: str, tmp_path: Path) -> None:
    script = START[framework] + (
        "for i in range(3):\n"
        "    x = tanh(leaf())\n"
        "    hooked(x, lambda g: adbg.breakpoint() if i == 1 else None)\n"
        "    (x * 2).sum().backward()\n"
    )
    with Dialled(tmp_path, script, str(tmp_path / "run")) as run:
        run.peer.begin("NoSuchNode")
        stop = run.peer.stopped()
        assert (stop["phase"], stop["reason"]) == ("python", "breakpoint")
        rows = run.peer.request("adbg/graph", start=0, count=10)["rows"]
        assert node_of(framework, "tanh") in [row["name"] for row in rows]
        assert begun(run)[:2] == [1, 2], "it began before the stop"
        run.peer.request("continue")
        run.peer.drain()
        assert run.end()[0] == 0
    assert begun(run) == [1, 2, 3] and ended(run) == 3
    assert [row.number for row in RunReader(tmp_path / "run").backwards()] == [1, 2, 3]


@on_frameworks()
def test_an_exception_in_it_stops_as_ever(framework: str, tmp_path: Path) -> None:
    script = START[framework] + (
        "def fail(grad):\n"
        "    raise ValueError('gone')\n"
        "for i in range(2):\n"
        "    x = tanh(leaf())\n"
        "    if i:\n"
        "        hooked(x, fail)\n"
        "    try:\n"
        "        (x * 2).sum().backward()\n"
        "    except Exception as error:\n"
        "        print('caught')\n"
    )
    with Dialled(tmp_path, script, str(tmp_path / "run")) as run:
        run.peer.begin("NoSuchNode")
        stop = run.peer.stopped()
        assert stop["reason"] == "error" and stop["backward"] == 2
        assert begun(run) == [1, 2], "it began before the stop"
        run.peer.request("continue")
        run.peer.drain()
        assert run.end()[:2] == (0, "caught\n")
    assert begun(run) == [1, 2] and ended(run) == 2
    last = RunReader(tmp_path / "run").backwards()[-1]
    assert "gone" in last.error


@on_frameworks()
def test_a_breakpoint_set_meanwhile_is_met(framework: str, tmp_path: Path) -> None:
    name = node_of(framework, "tanh")
    script = START[framework] + "while True:\n    tanh(leaf()).sum().backward()\n"
    with Dialled(tmp_path, script) as run:
        run.peer.begin("NoSuchNode")
        run.peer.until(lambda: run.peer.bodies("adbg/backwards"), "calls told together")
        run.peer.set("NoSuchNode", name)
        stop = run.peer.stopped()
        assert stop["node"]["name"] == name and stop["total"] == 3
        numbers = begun(run)
        assert numbers == list(range(1, stop["backward"] + 1))


LONG = """
import pathlib
wanted, begins = pathlib.Path(HERE, "wanted"), pathlib.Path(HERE, "begins")
while True:
    size = 2000 if wanted.exists() else 2
    losses = [tanh(x @ x).sum() for x in (leaf(size), leaf(2), leaf(2))]
    for loss in reversed(losses):  # a call that comes late is looked into, the next ones need not be
        if size > 2 and loss is losses[0]:
            begins.touch()
        loss.backward()
"""


@on_frameworks()
def test_a_breakpoint_set_while_one_of_them_runs(framework: str, tmp_path: Path) -> None:
    """A call that runs without Python, the GIL given up, ends where nobody listens to such calls any more."""
    name = node_of(framework, "tanh")
    script = START[framework].replace("def leaf()", "def leaf(size=1)").replace("ones([3]", "ones([size, size]")
    script = script.replace("ones(3", "ones(size, size") + LONG.replace("HERE", repr(str(tmp_path)))
    with Dialled(tmp_path, script) as run:
        run.peer.begin("NoSuchNode")
        run.peer.until(lambda: run.peer.bodies("adbg/backwards"), "calls told together")
        (tmp_path / "wanted").touch()
        eventually((tmp_path / "begins").exists)
        run.peer.set("NoSuchNode", name)
        stop = run.peer.stopped()
        assert stop["node"]["name"] == name
        assert begun(run) == list(range(1, stop["backward"] + 1))


def run_of(number: int, **more: Any) -> BriefRun:
    """The ``number``-th of a loop, ended."""
    return BriefRun(CALL._replace(number=number, iteration=number), 0.0, False, 10.0 + number)._replace(**more)


def test_calls_in_a_row_go_together() -> None:
    queue = EventQueue()
    for number in (1, 2, 3):
        queue.add(run_of(number))
    queue.node(4, 1, 2.0, None, False)
    queue.add(run_of(5))
    queue.add(run_of(6, error="ValueError: gone"))
    queue.add(run_of(7, told=True))
    queue.add(run_of(8))
    queue.add(run_of(9, call=CALL._replace(number=9, iteration=9, line=30)))
    together, nodes, five, begin, failed, told, eight, elsewhere = queue.take()
    assert isinstance(together, BackwardsRan) and together.us == [11.0, 12.0, 13.0] and together.first.backward == 1
    assert isinstance(nodes, NodesRan)
    assert [body.us for body in (five, eight, elsewhere)] == [[15.0], [18.0], [19.0]]
    assert isinstance(begin, BackwardBegin) and (failed.backward, failed.error) == (6, "ValueError: gone")
    assert isinstance(told, BackwardEnd) and told.backward == 7
    assert queue.take() == []


@pytest.mark.parametrize(("events", "wanted"), [("b", "backward 9 begins"), ("be", "backward 9 ends")])
def test_a_crash_report_knows_the_last_one(tmp_path: Path, events: str, wanted: str) -> None:
    journal = Journal(tmp_path, "0")
    journal.put("begin", 1)
    journal.put("end", 1)
    for event in itertools.chain("be", events):
        if event == "b":
            journal.brief_begin(9)
        else:
            journal.brief_end()
    assert wanted in crash_report(tmp_path, "0", vlog_path(tmp_path, "0"), 11)
    journal.put("begin", 10)
    assert "backward 10 begins" in crash_report(tmp_path, "0", vlog_path(tmp_path, "0"), 11), "what came later counts"

"""``adbg/info`` while the program runs: every table that needs no stop answers from another thread."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fake_backend import FakeBackend, FakeDebuggee, FakeGraph
from support.frameworks import on_frameworks
from support.front_end import FrontEnd, Refused
from support.stops import session_of

from adbg.engine.backends import REGISTRY
from adbg.engine.errors import CommandError
from adbg.engine.inspect.tables import info
from adbg.engine.protocol.messages import InfoBody

ANY_TIME = ("names", "params", "threads", "memory", "capabilities", "breakpoints")


@pytest.fixture
def front() -> Iterator[FrontEnd]:
    with FrontEnd() as front:
        yield front


def test_a_running_program_answers_over_the_wire(front: FrontEnd) -> None:
    go_on = threading.Event()

    def script(backend: FakeBackend) -> Any:
        backend.backward(FakeGraph.chain(3, 2.0))
        go_on.wait(20)
        return None

    debuggee = FakeDebuggee(front.config, script)
    peer = front.accept()
    peer.begin("Mul*")
    peer.stopped()
    peer.set()
    peer.request("continue")
    bodies = {what: peer.request("adbg/info", what=what) for what in ANY_TIME}
    assert ["MulBackward0", "name"] in [[row[0], row[2]] for row in bodies["names"]["rows"]]
    assert bodies["params"]["rows"] == [["w", "[4]", "f32", "cpu", None, None, False]]
    assert bodies["params"]["text"] == "1 parameter; gradients are shown only at a stop"
    assert all(row[2] == "running" for row in bodies["threads"]["rows"])
    assert all(".py:" in row[3] for row in bodies["threads"]["rows"])
    assert bodies["memory"]["rows"] == [["rss", 1000000, 1.0]]
    assert ["fake", "pre_hooks", "yes"] in [[row[0], *row[2:4]] for row in bodies["capabilities"]["rows"]]
    assert bodies["breakpoints"]["text"] == "no breakpoints"
    with pytest.raises(Refused, match="`info backward` needs a stop"):
        peer.request("adbg/info", what="backward")
    with pytest.raises(Refused, match="unknown table 'weather'"):
        peer.request("adbg/info", what="weather")
    go_on.set()
    debuggee.join()


TRAINING = {
    "torch": """
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())
def step():
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
""",
    "paddle": """
import paddle
model = paddle.nn.Sequential(paddle.nn.Linear(8, 8), paddle.nn.Tanh(), paddle.nn.Linear(8, 1))
optimizer = paddle.optimizer.Adam(parameters=model.parameters())
def step():
    optimizer.clear_grad()
    model(paddle.ones([4, 8])).sum().backward()
    optimizer.step()
""",
}


@on_frameworks()
def test_tables_are_read_beside_a_training_loop(framework: str) -> None:
    importlib.import_module(framework)
    names: dict[str, Any] = {}
    exec(TRAINING[framework], names)
    session = session_of(REGISTRY[framework]())
    bodies: list[tuple[str, InfoBody]] = []
    problems: list[BaseException] = []

    def read() -> None:
        try:
            while steps < 2 or len(bodies) < 30 * len(ANY_TIME):  # the first step imports much of the framework
                bodies.extend((what, info(session, what, None)) for what in ANY_TIME)
        except BaseException as error:
            problems.append(error)

    steps = 0
    reader = threading.Thread(target=read)
    reader.start()
    while reader.is_alive():
        names["step"]()
        steps += 1
    assert not problems
    for what, body in bodies:
        if what == "params":
            assert {("[8, 8]", "f32"), ("[8]", "f32")} <= {(row[1], row[2]) for row in body.rows}
            assert {(row[4], row[5]) for row in body.rows} == {(None, None)}, "no gradient is touched"
    assert any(row[0] == "rss" for row in dict(bodies)["memory"].rows)


def test_modules_that_change_while_they_are_read() -> None:
    class Changing(FakeBackend):
        left = 2

        def parameters(self) -> Any:
            if self.left:
                self.left -= 1
                raise RuntimeError("dictionary changed size during iteration")
            return super().parameters()

    assert len(info(session_of(Changing()), "params", None).rows) == 1
    never = Changing()
    never.left = 100
    with pytest.raises(CommandError, match="changing its modules"):
        info(session_of(never), "params", None)


def test_without_a_framework() -> None:
    session = session_of(None)
    assert info(session, "params", None).text == "no framework was imported yet"
    assert info(session, "capabilities", None).text == "no framework was imported yet"
    assert [row[0] for row in info(session, "memory", None).rows] == ["rss"]


def test_a_waiting_thread_is_told_apart() -> None:
    here = threading.get_ident()
    session = session_of(FakeBackend())
    session.parked, session.turn = None, SimpleNamespace(waiting=(here,))
    assert [row[2] for row in info(session, "threads", None).rows if row[0] == here] == ["waiting"]

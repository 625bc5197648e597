"""The node that a thread runs, told while it runs: of an autograd.Function by its frames, of a hooked node by the
session."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.patience import patience

from adbg.engine.backends.torch.backend import TorchBackend
from adbg.engine.inspect.threads import Threads
from adbg.engine.protocol.messages import BreakpointRequest, ThreadFacts
from adbg.engine.session.session import Session

entered: queue.Queue[str] = queue.Queue()
go_on: queue.Queue[None] = queue.Queue()


class Waits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        entered.put("backward")
        go_on.get()
        return grads[0] * 2


class Outlet:
    def event(self, body: Any, droppable: bool = False) -> None: ...


@pytest.fixture
def session() -> Iterator[Session]:
    session = Session(Outlet())
    session.add_backend(TorchBackend())
    session.attach()
    yield session
    session.detach()


def while_it_waits(session: Session) -> ThreadFacts:
    w = torch.ones(3, requires_grad=True)

    def work() -> None:
        Waits.apply(w).sum().backward()  # type: ignore[no-untyped-call]  # @made

    thread = threading.Thread(target=work, name="trains", daemon=True)
    thread.start()
    assert entered.get(timeout=patience(30)) == "backward"
    try:
        (facts,) = [each for each in Threads(session).all().threads if each.name == "trains"]
    finally:
        go_on.put(None)
        thread.join(patience(30))
    assert w.grad is not None and w.grad.tolist() == [2.0, 2.0, 2.0]
    return facts


def test_a_custom_function_is_named_with_its_forward_line(session: Session) -> None:
    session.set_stacks(True)
    node = while_it_waits(session).node
    assert node is not None and (node.name, node.seconds) == ("WaitsBackward", None)
    assert node.forward is not None and node.forward.file == __file__
    line = open(__file__).read().splitlines()[node.forward.line - 1]  # noqa: SIM115
    assert line.endswith("# @made")


def test_without_stacks_its_name_is_known(session: Session) -> None:
    node = while_it_waits(session).node
    assert node is not None and (node.name, node.forward) == ("WaitsBackward", None)


def test_a_hooked_node_tells_since_when_it_runs(session: Session) -> None:
    session.set_breakpoints([BreakpointRequest("Waits* after if False", id=1)])
    facts = while_it_waits(session)
    assert facts.node is not None and facts.node.name == "WaitsBackward#1" and facts.node.backward >= 1
    assert facts.node.index == 2 and facts.node.seconds is not None and 0 <= facts.node.seconds < patience(30)

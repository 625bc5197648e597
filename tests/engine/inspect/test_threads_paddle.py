"""The PyLayer that a thread runs, told by its frames while it runs."""

from __future__ import annotations

import queue
import threading
from typing import Any

import paddle
from support.patience import patience

from adbg.engine.backends.paddle.backend import PaddleBackend
from adbg.engine.inspect.threads import Threads
from adbg.engine.session.session import Session

entered: queue.Queue[str] = queue.Queue()
go_on: queue.Queue[None] = queue.Queue()


class Waits(paddle.autograd.PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        entered.put("backward")
        go_on.get()
        return grad * 2


class Outlet:
    def event(self, body: Any, droppable: bool = False) -> None: ...


def test_a_pylayer_is_named() -> None:
    session = Session(Outlet())
    session.add_backend(PaddleBackend())
    session.attach()
    x = paddle.ones([3])
    x.stop_gradient = False

    def work() -> None:
        Waits.apply(x).sum().backward()

    thread = threading.Thread(target=work, name="trains", daemon=True)
    thread.start()
    try:
        assert entered.get(timeout=patience(30)) == "backward"
        (facts,) = [each for each in Threads(session).all().threads if each.name == "trains"]
    finally:
        go_on.put(None)
        thread.join(patience(30))
        session.detach()
    assert facts.node is not None and facts.node.name == "GradNodePyLayer_Waits"
    assert x.grad.tolist() == [2.0, 2.0, 2.0]

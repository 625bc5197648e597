"""Time that somebody stood at a stop is no node's: not of those around it, not of another thread that waited."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.dialled import Dialled

pytest.importorskip("torch")

STOOD = 4.0  # seconds: what a busy machine takes for the rest is far less than half of it
NESTED = """
import threading, time, torch

class Outer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            began = time.perf_counter()
            y.exp().sum().backward()
            inside.append(time.perf_counter() - began)
        return grad * 2

def work():
    x = torch.ones(3, requires_grad=True)
    gate.wait()
    Outer.apply(x).sum().backward()

inside, gate = [], threading.Barrier(COUNT)
threads = [threading.Thread(target=work) for _ in range(COUNT)]
[t.start() for t in threads]
[t.join() for t in threads]
print(max(inside) > STOOD * 0.9)
"""


@pytest.mark.parametrize("count", [1, 2])
def test_standing_inside_a_nested_backward_is_not_the_time_of_what_is_around(tmp_path: Path, count: int) -> None:
    """By the script's own clock the nested calls took, one at least, as long as somebody stood there."""
    with Dialled(tmp_path, NESTED.replace("COUNT", str(count)).replace("STOOD", str(STOOD))) as run:
        run.peer.begin("Exp*", "Outer* after")
        stop = run.peer.stopped()
        assert stop["enclosing"] == ["OuterBackward#1"]
        time.sleep(STOOD)  # the other thread has come to its own stop by now, and waits
        body = run.peer.request("adbg/info", what="backward")
        ran = [row[body["columns"].index("ms run")] for row in body["rows"]]
        assert len(ran) == 2 and max(ran) < STOOD * 500
        outer = []
        for _ in range(2 * count - 1):
            stop = run.peer.go()
            if stop["phase"] == "after":
                outer.append(stop["elapsed_us"] / 1e6)
        assert len(outer) == count and max(outer) < STOOD / 2
        run.peer.request("continue")
        status, out, _ = run.end()
        assert (status, out) == (0, "True\n")

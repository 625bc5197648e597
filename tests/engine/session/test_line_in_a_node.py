"""``breakpoint()`` in the backward of a custom Function: the stop knows its node, whether anything was armed or not,
and stepping goes on from there."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.dialled import Dialled
from support.frameworks import on_frameworks

SCRIPTS = {
    "torch": """
import torch
class Inner(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        breakpoint()
        return grad * 2
class Outer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.rate = 0.5
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            out = Inner.apply(y.exp()).sin()
        (inner,) = torch.autograd.grad(out, y, grad)
        return inner
w = torch.ones(3, requires_grad=True)
for _ in range(2):
    Outer.apply(w.tanh()).sum().backward()
print("done")
""",
    "paddle": """
import paddle
from paddle.autograd import PyLayer
class Inner(PyLayer):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        breakpoint()
        return grad * 2
class Outer(PyLayer):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.rate = 0.5
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensor()
        y = x.detach()
        y.stop_gradient = False
        with paddle.enable_grad():
            out = Inner.apply(y.exp()).sin()
        out.backward(grad)  # of paddle.grad, which copies the nodes when it begins, nothing could be hooked any more
        return y.grad
w = paddle.ones([3])
w.stop_gradient = False
for _ in range(2):
    Outer.apply(w.tanh()).sum().backward()
print("done")
""",
}
OUTER = {"torch": "OuterBackward", "paddle": "GradNodePyLayer_Outer"}
INNER = {"torch": "InnerBackward", "paddle": "GradNodePyLayer_Inner"}


@pytest.mark.parametrize("armed", [False, True], ids=["unarmed", "armed"])
@on_frameworks()
def test_the_stop_knows_the_nodes_around_the_line(framework: str, armed: bool, tmp_path: Path) -> None:
    with Dialled(tmp_path, SCRIPTS[framework]) as run:
        run.peer.begin(*(["Sin*"] if armed else []))
        stop = run.peer.stopped()
        if armed:
            assert stop["phase"] == "before"
            stop = run.peer.go()
        assert (stop["phase"], stop["location"]["line"]) == ("python", run.line("breakpoint()"))
        assert stop["enclosing"] == [f"{OUTER[framework]}#1", f"{INNER[framework]}#1"]
        assert (stop["backward"], stop["depth"], stop["index"]) == (2, 1, 2)
        frames = run.peer.request("stackTrace", threadId=stop["thread"])["stackFrames"]
        assert frames[0]["kind"] == "live" and frames[0]["line"] == run.line("breakpoint()")
        around = [frame for frame in frames if frame["kind"] == "enclosing"]
        assert [frame["name"] for frame in around] == [
            f"{INNER[framework]}#1 (backward 2)",
            f"{OUTER[framework]}#1 (backward 1)",
        ]
        if framework == "torch":
            asked = run.peer.request("evaluate", expression="node.rate", frameId=around[1]["id"])
            assert asked["value"] == 0.5
        rows = run.peer.request("adbg/graph")
        assert (rows["backward"], rows["here"]) == (2, 2)


@on_frameworks()
def test_stepping_goes_on_from_the_line(framework: str, tmp_path: Path) -> None:
    with Dialled(tmp_path, SCRIPTS[framework]) as run:
        run.peer.begin()
        run.peer.stopped()
        stop = run.peer.go("stepIn")
        assert stop["node"]["name"].startswith("Exp") and (stop["backward"], stop["index"], stop["depth"]) == (2, 3, 1)
        stop = run.peer.go("stepOut")
        assert (stop["node"]["unique_name"], stop["phase"], stop["depth"]) == (f"{OUTER[framework]}#1", "after", 0)
        assert run.peer.go("next")["node"]["name"].startswith(("Tanh", "tanh"))
        stop = run.peer.go()
        assert (stop["phase"], stop["backward"], stop["enclosing"][0]) == ("python", 4, f"{OUTER[framework]}#1")
        stop = run.peer.go("stepOut")
        assert stop["phase"] in ("before", "after") and (stop["backward"], stop["depth"]) == (4, 1)
        run.peer.request("continue")
        assert run.end()[:2] == (0, "done\n")

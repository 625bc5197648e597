"""A stop at ``adbg.breakpoint()`` in a training loop: the graph of this iteration, not what the last left behind."""

from __future__ import annotations

from pathlib import Path

from support.dialled import Dialled
from support.frameworks import on_frameworks, only

TRAINING = {
    "torch": """
import torch
w = torch.ones(4, requires_grad=True)
for i in range(3):
    y = (w * 2).exp()
    if i == 2: breakpoint()
    half = y.sqrt()
    loss = half.tanh().sum()
    loss.backward(RETAIN)
""",
    "paddle": """
import paddle
w = paddle.ones([4]); w.stop_gradient = False
for i in range(3):
    y = (w * 2).exp()
    if i == 2: breakpoint()
    half = y.sqrt()
    loss = half.tanh().sum()
    loss.backward(RETAIN)
""",
}


def graph_at_the_stop(tmp_path: Path, script: str) -> tuple[list[str], str]:
    with Dialled(tmp_path, script) as run:
        run.peer.begin()
        run.peer.stopped()
        body = run.peer.request("adbg/graph")
        run.peer.request("continue")
        assert run.end()[0] == 0
    return [row["unique_name"] for row in body["rows"]], body["note"]


@on_frameworks()
def test_what_a_finished_backward_used_up_takes_no_number(framework: str, tmp_path: Path) -> None:
    names, note = graph_at_the_stop(tmp_path, TRAINING[framework].replace("RETAIN", ""))
    exp = [name for name in names if name.startswith("Exp")]
    assert [name.partition("#")[2] for name in exp] == ["1"]
    assert not any("anh" in name for name in names)
    assert note.startswith("left out") and "half, loss" in note and "p half.grad_fn" in note and "\n" not in note


@on_frameworks()
def test_a_retained_graph_is_not_lost(framework: str, tmp_path: Path) -> None:
    names, note = graph_at_the_stop(tmp_path, TRAINING[framework].replace("RETAIN", "retain_graph=True"))
    assert len([name for name in names if name.startswith("Exp")]) == 2
    assert any("anh" in name for name in names)
    assert note == ""


@on_frameworks()
def test_a_used_up_graph_alone_is_shown(framework: str, tmp_path: Path) -> None:
    script = TRAINING[framework].replace("    if i == 2: breakpoint()\n", "").replace("RETAIN", "")
    names, note = graph_at_the_stop(tmp_path, script + "breakpoint()\n")
    assert any("anh" in name for name in names) and note == ""


SECOND = {
    "torch": """
import torch
w = torch.ones(4, requires_grad=True)
loss = w.exp().tanh().sum()
(first,) = torch.autograd.grad(loss, w, create_graph=True)
second = first.sin().sum()
breakpoint()
second.backward()
""",
    "paddle": """
import paddle
w = paddle.ones([4]); w.stop_gradient = False
loss = w.exp().tanh().sum()
(first,) = paddle.grad(loss, w, create_graph=True)
second = first.sin().sum()
breakpoint()
second.backward()
""",
}


@on_frameworks()
def test_the_graph_of_a_gradient_is_not_lost(framework: str, tmp_path: Path) -> None:
    names, note = graph_at_the_stop(tmp_path, SECOND[framework])
    assert any(name.lower().startswith("sin") for name in names) and any("anh" in name for name in names)
    assert note == ""


@only("torch", "Paddle shows nothing of what a node saved: a graph is known by the tensor that a backward began at")
def test_a_loss_that_reaches_back_into_a_used_up_graph_is_shown(tmp_path: Path) -> None:
    script = """
import torch
w = torch.ones(4, requires_grad=True)
hidden = w.exp()
hidden.sum().backward()
loss = (hidden.tanh()).sum()
breakpoint()
"""
    names, note = graph_at_the_stop(tmp_path, script)
    assert "TanhBackward0#1" in names and "ExpBackward0#1" in names
    assert note.startswith("left out") and "of hidden (" in note

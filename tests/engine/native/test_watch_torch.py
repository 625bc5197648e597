"""A NaN watch without hooks stops where the one with hooks does, in an iteration that begins like those before it; and
calls that pass without Python are told all, in order."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from support.dialled import Dialled

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

# Each case: eight iterations that are alike to the last bit of their graphs, the seventh of which comes to a gradient
# that is not finite, in another way each.
CASES = """
import sys
import torch

class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x ** 3
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        out = 3 * grad * x * x
        if at_fault:
            out.data[0] = float("nan")
        return out

class Poison(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        if at_fault:
            grad.detach().numpy()[1] = float("inf")  # what flowed in, behind torch's back
        return grad * 1

def leaf(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype, requires_grad=True)

def at_a_node(bad):
    (leaf(0.0 if bad else 1.0, 4.0).sqrt() * 2).sum().backward()

def by_a_sum(bad):
    x = leaf(1.0, 2.0)
    y = x * 1
    big = 3e38 if bad else 1.0
    (y * big + y * big).sum().backward()

def at_the_root(bad):
    (leaf(1.0, 2.0) * 3).backward(torch.tensor([1.0, float("inf") if bad else 1.0]))

def in_half(bad):
    x = leaf(1.0, 2.0, dtype=torch.float16)
    (x * (60000.0 if bad else 2.0) * 3).sum().backward()

def in_bfloat(bad):
    x = leaf(0.0 if bad else 1.0, 2.0, dtype=torch.bfloat16)
    x.log().sum().backward()

def in_a_function(bad):
    (Cube.apply(leaf(1.0, 2.0) * 2) * 2).sum().backward()

def behind_torchs_back(bad):
    x = leaf(*([1.0] * 600))
    Poison.apply(x * 2).mul(3).sum().backward()

def large(bad):
    x = torch.ones(40, 50, requires_grad=True)
    y = x * (torch.zeros(40, 50) if bad else torch.ones(40, 50))
    y.t().pow(0.5).sum().backward()

def by_a_hook(bad):
    x = leaf(1.0, 2.0)
    y = x * 2
    y.register_hook(lambda grad: grad / (0.0 if at_fault else 1.0))
    (y * 3).neg().sum().backward()

def by_a_hook_of_a_leaf(bad):
    x = leaf(1.0, 2.0)
    x.register_hook(lambda grad: grad / (0.0 if at_fault else 1.0))
    (x * 3).cos().sum().backward()

def sparse(bad):
    table = torch.nn.Embedding(5, 3, sparse=True)
    (table(torch.tensor([1, 1, 2])) * (float("inf") if bad else 1.0)).sum().backward()

def in_place(bad):
    x = leaf(1.0, 2.0)
    y = x * 2
    z = y + y
    z.mul_(float("inf") if bad else 3.0)
    z.sum().backward()

def to_a_leaf(bad):
    w = leaf(0.0 if bad else 1.0)
    w.rsqrt().sum().backward()

def nothing(bad):
    (leaf(1.0, 2.0).exp() * 2).sum().backward()

def the_end(bad):
    (leaf(1.0) * 2).sin().backward(torch.tensor([float("nan") if bad else 1.0]))

at_fault = False
for _ in range(2):  # where nodes keep what is found by a graph with several leaves
    (leaf(1.0) * leaf(2.0)).sum().backward()
for case in (at_a_node, by_a_sum, at_the_root, in_half, in_bfloat, in_a_function, behind_torchs_back, large, by_a_hook,
             by_a_hook_of_a_leaf,
             sparse, in_place, to_a_leaf, nothing, the_end):
    print(case.__name__, flush=True)
    for iteration in range(8):
        at_fault = iteration == 6
        case(at_fault)
"""


HANDED = "[len(each._handed_over) for each in __import__('gc').get_objects() if type(each).__name__ == 'Surveyor']"
IN = "[None if g is None else g.float().to_dense().reshape(-1)[:5].tolist() for g in grad_outputs]"


def stops(folder: Path, native: str) -> tuple[list[dict[str, Any]], int]:
    """What is seen at each stop of the watch, and how many calls were watched without hooks until a bad gradient."""
    folder.mkdir()
    seen = []
    with Dialled(folder, CASES, env={**os.environ, "ADBG_NATIVE": native}) as run:
        run.peer.begin("nonfinite")
        while True:
            stop = run.peer.stopped()
            if stop["node"]["name"] == "SinBackward0":
                break
            facts = {name: stop[name] for name in ("backward", "phase", "reason", "message", "index", "evidence")}
            seen.append({**facts, "node": stop["node"]["unique_name"], "in": run.peer.value(IN)})
            run.peer.request("continue")
        handed = run.peer.value(HANDED)
        run.peer.request("disconnect")
        status, _, err = run.end()
        assert status == 0, err
    return seen, handed[0]


def test_it_stops_where_hooks_do(extension: Path, tmp_path: Path) -> None:
    hooked, none = stops(tmp_path / "hooks", "0")
    watched, handed = stops(tmp_path / "native", str(extension))
    assert watched == hooked
    firsts = [next(group) for _, group in itertools.groupby(watched, lambda stop: stop["backward"])]
    assert [stop["backward"] for stop in firsts] == [9 + 8 * case for case in range(13)], "in the seventh of each case"
    assert (none, handed) == (0, 12), "by types: each case but those with a Function, and the one that ends it"


# Sums, views, large gradients, one that is handed on by two nodes; what turns bad is made first and runs last.
DEEP = """
import torch

def loss_of(bad):
    torch.manual_seed(0)
    w = torch.randn(40, 30, requires_grad=True)
    root = (w.abs() * (0.0 if bad else 1.0)).pow(0.5).sum()
    h = torch.randn(50, 40) @ w
    for _ in range(5):
        h = h.tanh() + h.t().contiguous().t() * 0.5
    return (h * h).sum(1).mean() + (h[:, 3] + h[:, 4]).exp().sum() + root
"""
STEPS = """
for _ in range(2):  # where nodes keep what is found by a graph with several leaves
    (torch.ones(1, requires_grad=True) * torch.ones(1, requires_grad=True)).sum().backward()
for iteration in range(8):
    loss_of(iteration == 6).backward()
"""


def told_by_hooks() -> list[tuple[str, float]]:
    """The nodes of the bad call as they run, each with the 2-norm of its first gradient: from hooks of torch's own,
    without adbg."""
    namespace: dict[str, Any] = {}
    exec(DEEP, namespace)
    loss = namespace["loss_of"](True)
    nodes: list[Any] = [loss.grad_fn]
    norms: list[tuple[str, float]] = []

    def hook(name: str) -> Any:
        return lambda grads: norms.append((name, float(grads[0].double().norm())))

    for node in nodes:
        nodes += [below for below in dict(node.next_functions) if below is not None and below not in nodes]
        node.register_prehook(hook(node.name().removeprefix("torch::autograd::")))
    loss.backward()
    return norms


def test_what_ran_before_the_bad_gradient_is_known(extension: Path, tmp_path: Path) -> None:
    expected = told_by_hooks()
    with Dialled(tmp_path, DEEP + STEPS, env={**os.environ, "ADBG_NATIVE": str(extension)}) as run:
        run.peer.begin("nonfinite")
        stop = run.peer.stopped()
        rows = run.peer.request("adbg/graph", start=1, count=2000)["rows"]
        handed = run.peer.value(HANDED)
        run.peer.request("disconnect")
        status, _, err = run.end()
        assert status == 0, err
    assert (stop["backward"], handed) == (9, [1]), "watched without hooks until then"
    done = [row for row in rows if row["state"] == "done"]
    assert len(done) == stop["index"] - 1 > 30
    told = [(row["name"], row["norm"]) for row in done]
    assert told == [(name, pytest.approx(norm)) for name, norm in expected[: len(done)]]
    assert all(row["us"] > 0 for row in done)

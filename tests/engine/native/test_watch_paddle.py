"""The watch on Paddle where no Python runs: what a call did before its gradient went bad is known."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.dialled import Dialled

pytest.importorskip("paddle.autograd")
pytestmark = pytest.mark.paddle

# A chain, so that the order is one: what turns bad is made first and runs last. `seen`: norms of gradients, by
# hooks.
CHAIN = """
import paddle

def loss_of(bad, seen=None):
    paddle.seed(0)
    w = paddle.randn([40, 30])
    w.stop_gradient = False
    def note(value):
        if seen is not None:
            value.register_hook(lambda grad: seen.append(float(grad.astype("float64").norm())))
        return value
    h = note(w.abs())
    h = note(h * (0.0 if bad else 1.0))
    h = note(h.sqrt())
    for scale in (1.5, -0.25, 3.0):
        h = note(h.transpose([1, 0]))
        h = note(h * scale)
        h = note(paddle.tanh(h))
    return note(h.sum())
"""
STEPS = """
for iteration in range(150):
    loss_of(iteration == 140).backward()
"""
# The second witness: hooks of Paddle's own, without adbg.
HOOKED = """
seen = []
loss_of(True, seen).backward()
print(*seen)
"""


def test_what_ran_before_the_bad_gradient_is_known(extension: Path, tmp_path: Path) -> None:
    told = subprocess.run([sys.executable, "-c", CHAIN + HOOKED], capture_output=True, text=True, check=True).stdout
    expected = [float(norm) for norm in told.split()]
    with Dialled(tmp_path, CHAIN + STEPS, env={**os.environ, "ADBG_NATIVE": str(extension)}) as run:
        run.peer.begin("nonfinite")
        stop = run.peer.stopped()
        rows = run.peer.request("adbg/graph", start=1, count=2000)["rows"]
        run.peer.request("disconnect")
        status, _, err = run.end()
        assert status == 0, err
    done = [row for row in rows if row["state"] == "done"]
    assert (stop["backward"], stop["node"]["name"], stop["index"]) == (141, "SqrtGradNode", len(done) + 1)
    assert [row["norm"] for row in done] == pytest.approx(expected[: len(done)]) and len(done) == 10
    assert all(row["us"] > 0 for row in done)


# An expert that gets no rows: its gradients have no elements, and lie where others have lain.
EXPERT = """
import paddle

def leaf(shape):
    return paddle.create_parameter(shape, "float32", default_initializer=ONES)

ONES = paddle.nn.initializer.Constant(1.0)
rows_of, scale_of = leaf([6, 5]), leaf([5])

def step(rows, bad):
    expert, other = rows_of[0:rows], rows_of
    for _ in range(6):
        expert, other = paddle.scale(expert, 1.5), paddle.scale(other, 2.0)
    last = paddle.sqrt(paddle.scale(scale_of, 0.0 if bad else 1.0))
    for _ in range(8):
        last = paddle.scale(last, 1.25)
    (expert.sum() + other.sum() + last.sum()).backward()

for _ in range(140):
    step(3, False)
step(0, False)
step(0, True)
"""


def test_a_gradient_without_elements_has_the_norm_of_no_other(extension: Path, tmp_path: Path) -> None:
    with Dialled(tmp_path, EXPERT, env={**os.environ, "ADBG_NATIVE": str(extension)}) as run:
        run.peer.begin("nonfinite")
        run.peer.stopped()
        rows = run.peer.request("adbg/graph", start=1, count=2000)["rows"]
        run.peer.request("disconnect")
        status, _, err = run.end()
        assert status == 0, err
    empty = [row for row in rows if row["state"] == "done" and "[0," in str(row["shape"]).replace("(", "[")]
    assert len(empty) >= 5, rows
    assert {row["norm"] for row in empty} <= {0, None}, [(row["name"], row["norm"]) for row in empty]

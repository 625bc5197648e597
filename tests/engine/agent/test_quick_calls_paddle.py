"""Calls on Paddle that the extension runs and writes down by itself, in a real process with a front end: what is told
and recorded of them, and what happens where one needs Python after all. The script keeps its own count."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.dialled import Dialled

from adbg.engine.native import load
from adbg.engine.record.crash import crash_report
from adbg.engine.record.reader import RunReader
from tests.engine.agent.test_brief_calls import begun, ended

pytestmark = pytest.mark.skipif(load.core()[0] is None, reason="the extension is not there")
pytest.importorskip("paddle.autograd")

START = """
import os, sys
import paddle, adbg
leaf = paddle.ones([3])
leaf.stop_gradient = False
def step(hook=None, times=2.0):
    x = paddle.tanh(leaf)
    if hook is not None:
        x.register_hook(hook)
    loss = (x * times).sum()
    loss.backward()
def train(count, **more):
    for _ in range(count):
        step(**more)
"""


def test_no_python_runs_for_them_and_all_are_told(tmp_path: Path) -> None:
    """``sys.setprofile`` of the script's own is the witness: how often adbg's ``run_backward`` is called."""
    script = START + (
        "train(150)\n"
        "seen = []\n"
        "sys.setprofile(lambda frame, event, what: seen.append(frame.f_code.co_name) if event == 'call' else None)\n"
        "train(60)\n"
        "sys.setprofile(None)\n"
        "print(seen.count('step'), seen.count('run_backward') < 30)\n"
        "leaf.clear_grad()\n"
        "step()\n"
        "expected = paddle.grad((paddle.tanh(leaf) * 2.0).sum(), [leaf])[0].numpy().tolist()\n"
        "print(leaf.grad.numpy().tolist() == expected)\n"
    )
    with Dialled(tmp_path, script, str(tmp_path / "run")) as run:
        run.peer.begin("NoSuchNode", "nowhere.py:3", "nonfinite")
        run.peer.drain()
        assert run.end()[:2] == (0, "60 True\nTrue\n")
    assert begun(run) == list(range(1, 213)) and ended(run) == 212
    rows = RunReader(tmp_path / "run").backwards()
    assert [row.number for row in rows] == list(range(1, 213)) and all(row.us for row in rows)
    assert {row.line for row in rows[:211]} == {run.line("loss.backward()")}
    assert [row.iteration for row in rows] == list(range(1, 213))


def test_what_needs_python_after_all(tmp_path: Path) -> None:
    """A stop at a Python line in a hook, an exception, a PyLayer with a backward of its own inside, a number that is
    not finite: each behind calls that no Python ran for."""
    script = START + (
        "class Inner(paddle.autograd.PyLayer):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x):\n"
        "        return x * 2.0\n"
        "    @staticmethod\n"
        "    def backward(ctx, gradient):\n"
        "        step()\n"
        "        return gradient * 2.0\n"
        "def stop(gradient):\n"
        "    adbg.breakpoint()\n"
        "def fail(gradient):\n"
        "    raise ValueError('gone')\n"
        "train(130)\n"
        "step(hook=stop)\n"
        "train(20)\n"
        "try:\n"
        "    step(hook=fail)\n"
        "except OSError as error:\n"
        "    print('caught', 'gone' in str(error), paddle.is_grad_enabled())\n"
        "train(20)\n"
        "paddle.tanh(Inner.apply(leaf)).sum().backward()\n"
        "train(20)\n"
        "step(times=float('inf'))\n"
        "train(20)\n"
        "print('done')\n"
    )
    with Dialled(tmp_path, script, str(tmp_path / "run")) as run:
        run.peer.begin("NoSuchNode", "nonfinite")
        stop = run.peer.stopped()
        assert (stop["phase"], stop["reason"]) == ("python", "breakpoint")
        assert begun(run) == list(range(1, 132)), "all before it are told at a stop"
        assert "TanhGradNode" in [row["name"] for row in run.peer.request("adbg/graph", start=0, count=10)["rows"]]
        run.peer.request("continue")
        stop = run.peer.stopped()
        assert stop["reason"] == "error" and stop["backward"] == 152
        run.peer.request("continue")
        stop = run.peer.stopped()
        assert stop["reason"] == "inf" and stop["backward"] == 195, "173 and 174 are the PyLayer's and what it began"
        run.peer.set("NoSuchNode")  # it flows on
        run.peer.request("continue")
        run.peer.drain()
        assert run.end()[:2] == (0, "caught True True\ndone\n")
    assert begun(run) == list(range(1, 216)) and ended(run) == 215


def test_a_crash_report_names_the_one_that_ran(tmp_path: Path) -> None:
    script = START + "train(140)\nstep(hook=lambda gradient: os.kill(os.getpid(), 11))\n"
    with Dialled(tmp_path, script, str(tmp_path / "run")) as run:
        run.peer.begin("NoSuchNode")
        run.peer.drain()
        assert run.end()[0] == -11
    label = next((tmp_path / "run").glob(".journal-r*.bin")).name.removeprefix(".journal-r").removesuffix(".bin")
    assert "backward 141" in crash_report(tmp_path / "run", label, tmp_path / "none", 11)

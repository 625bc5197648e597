"""Ctrl-C at any instruction of a backward: the script gets its KeyboardInterrupt, and the next call is whole again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("paddle.autograd")

ROOT = Path(__file__).resolve().parents[4]
PROGRAM = """
import random, signal, time
import paddle
from adbg.engine.backends.base import HookPlan
from tests.support.paddle_watch import Watch, watching

class Quiet(Watch):
    def backward_begin(self, call):
        depths.add(call.depth)
        call.hook(HookPlan(name=lambda name: name == "TanhGradNode"))

    def node_begin(self, call, key, outs):
        return None

    def node_end(self, call, key, ins, outs):
        return None

    def backward_end(self, call, error):
        return None

def met():  # from Python 3.12 on a signal is met where a function begins
    pass

depths, rng = set(), random.Random(0)
x = paddle.ones([3])
x.stop_gradient = False
interrupted, others = 0, []
signal.signal(signal.SIGALRM, signal.default_int_handler)
with watching(Quiet()) as backend:
    paddle.tanh(x).sum().backward()
    until = time.monotonic() + 6
    while time.monotonic() < until:
        loss = paddle.tanh(x).sum()
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-6 + rng.random() * 6e-4)
            loss.backward()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupted += 1
        except BaseException as error:
            others.append(repr(error)[:200])
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
            time.sleep(5e-4)  # one may be on its way still, by another thread
            met()
        except KeyboardInterrupt:
            pass
        before = backend.iteration
        paddle.tanh(x).sum().backward()
        assert backend.iteration > before and paddle.is_grad_enabled()
print(depths, others[:3], interrupted > 200, flush=True)
"""


def test_an_interrupt_at_any_instruction() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and done.stdout == "{0} [] True\n", (done.stdout, done.stderr[-2000:])

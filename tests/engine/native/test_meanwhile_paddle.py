"""What another thread or a finalizer changes while the extension's code for Paddle runs. Each program
runs by itself: what went wrong here lost a breakpoint for good, or wrote past a list."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.program import ROOT, Outcome, run

pytest.importorskip("paddle.autograd")

SESSION = """
import gc, threading
import paddle
from adbg.engine.backends.paddle.backend import PaddleBackend
from adbg.engine.protocol.messages import BreakpointRequest
from adbg.engine.session.observers import Observer
from adbg.engine.session.session import Session
from adbg.engine.session.told_later import Gatherer

class Outlet:
    def event(self, body, droppable=False):
        pass

def begin(observer, *specs):
    session = Session(Outlet())
    session.observe(Gatherer(session), observer)
    session.set_filters([])
    session.attach()
    session.add_backend(PaddleBackend())
    ask(session, *specs)
    return session

def ask(session, *specs):
    session.set_breakpoints([BreakpointRequest(spec, number, trace=True) for number, spec in enumerate(specs, 1)])

leaf = paddle.ones([3])
leaf.stop_gradient = False
"""


def ran(extension: Path, text: str) -> Outcome:
    env = {**os.environ, "ADBG_NATIVE": str(extension), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return run([sys.executable, "-c", SESSION + text], cwd=ROOT, env=env, limit=110)


def test_a_breakpoint_set_while_a_call_is_judged_is_met(extension: Path) -> None:
    """The fourth call was found to be of no interest, and is told of, as another thread sets a breakpoint on one of its
    nodes: what was decided before counts for no later call."""
    done = ran(
        extension,
        """
looked = set()
class Between(Observer):
    patient = True
    def brief_begin(self, call):
        if call.number == 4:
            other = threading.Thread(target=ask, args=(session, "TanhGradNode"))
            other.start()
            other.join()
    def backward_begin(self, running):
        looked.add(running.call.number)
session = begin(Between(), "NoSuchNode")
def step(of):
    of(leaf).sum().backward()
for number in range(1, 301):
    step(paddle.square if number % 2 else paddle.tanh)
session.detach()
print("met", sorted(set(range(6, 301, 2)) - looked))
""",
    )
    assert done.stdout.endswith("met []\n"), str(done)


def test_a_survey_in_a_finalizer_leaves_the_answer_of_another_alone(extension: Path) -> None:
    done = ran(
        extension,
        """
session = begin(Observer(), "NoSuchNode")
from adbg.engine.backends.paddle.native.core import core
module = core().module
kinds = module.paddle_kinds
small, large = paddle.tanh(leaf), leaf
for of in (paddle.tanh, paddle.exp, paddle.square, paddle.sin, paddle.cos, paddle.abs, paddle.sqrt):
    large = of(large)
small_at, large_at = small.grad_fn.node_ptr(), large.grad_fn.node_ptr()
class Late:
    def __init__(self):
        self.itself = self
    def __del__(self):
        surveyed.append(module.paddle_survey([large_at])[0])
surveyed = []
module.paddle_survey([small_at])
expected = kinds()
gc.collect()
gc.disable()
Late()
kept = [[] for _ in range(20)]
gc.set_threshold(1)
gc.enable()
found = kinds()
gc.disable()
print("kinds", surveyed, found == expected)
""",
    )
    assert done.stdout.endswith("kinds [8] True\n"), str(done)

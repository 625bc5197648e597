"""What a hook, a finalizer or a signal handler of the program's changes while the extension's code for torch runs. Each
program runs by itself: what went wrong here ended processes, or lost an exception."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.program import ROOT, Outcome, run

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SESSION = """
import gc, signal, sys, threading
import torch
from adbg.engine.backends.base import HookPlan
from adbg.engine.backends.torch.backend import TorchBackend
from adbg.engine.native import load
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
    session.add_backend(TorchBackend())
    session.set_breakpoints([BreakpointRequest(spec, number, trace=True) for number, spec in enumerate(specs, 1)])
    return session

leaf, other = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)

class Alarm(Exception):
    pass
def handler(number, frame):
    raise Alarm
signal.signal(signal.SIGUSR1, handler)
"""


def ran(extension: Path, text: str) -> Outcome:
    env = {**os.environ, "ADBG_NATIVE": str(extension), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return run([sys.executable, "-c", SESSION + text], cwd=ROOT, env=env, limit=110)


def test_nodes_are_hooked_while_the_engine_is_in_a_hook_of_one(extension: Path) -> None:
    """As a stop in a hook of the script's asks for more: the engine goes on in the list of hooks as it was."""
    done = ran(
        extension,
        """
calls, hooked = [], []
class Calls(Observer):
    def backward_begin(self, running):
        calls.append(running.call)
session = begin(Calls(), "nonfinite")
def step(hook=None):
    x = leaf
    for _ in range(1200):
        x = x * 1.0
    x = x.sum()
    if hook is not None:
        x.grad_fn.register_prehook(hook)
    x.backward()
def hook(grads):
    hooked.append(calls[-1].hook(HookPlan(every=True, post=True)))
    junk = [bytes(8) for _ in range(1000)]
for _ in range(4):
    step()
for _ in range(10):
    step(hook)
session.detach()
print("gradient", len(hooked), min(hooked) > 1200, leaf.grad.tolist())
""",
    )
    assert done.stdout.endswith("gradient 10 True [14.0, 14.0, 14.0]\n"), str(done)


def test_a_walk_that_is_released_while_it_is_read(extension: Path) -> None:
    """By a finalizer in a collection, which begins as the answer is made: a backward in one closes the calls that it
    takes for left open."""
    done = ran(
        extension,
        """
session = begin(Observer(), "NoSuchNode")
for _ in range(3):
    (leaf * leaf).sum().backward()
x = leaf
for _ in range(60000):
    x = x * 2
walk = load.core()[0].torch_walk([x.sum().grad_fn])
del x
class Late:
    def __init__(self):
        self.itself = self
    def __del__(self):
        walk.release()
gc.collect()
Late()
found = walk.producers()
try:
    print(len(walk))
except ValueError:
    print("released", len(found), found[0], found[-1])
""",
    )
    assert done.stdout.endswith("released 60002 (1,) ()\n"), str(done)


def test_what_a_handler_raises_in_a_question_reaches_the_script(extension: Path) -> None:
    """About a call that may pass without Python."""
    done = ran(
        extension,
        """
class Asked(Observer):
    patient = True
    alarm = False
    def needs_calls(self):
        if self.alarm:
            self.alarm = False
            signal.raise_signal(signal.SIGUSR1)
        return False
asked = Asked()
session = begin(asked, "NoSuchNode")
def step():
    (leaf * other).sum().backward()
for _ in range(120):
    step()
step()
try:
    asked.alarm = True
    step()
except Alarm:
    print("came", asked.alarm)
session.detach()
""",
    )
    assert done.stdout.endswith("came False\n"), str(done)


def test_what_a_handler_raises_as_a_watched_call_is_handed_over_reaches_the_script(extension: Path) -> None:
    """The exception itself, not its kind alone: the exit status of a handler that ends the program lies in it."""
    done = ran(
        extension,
        """
class Asked(Observer):
    patient = True
    def backward_begin(self, running):
        if armed:
            signal.raise_signal(signal.SIGUSR1)
asked, armed = Asked(), False
session = begin(asked, "nonfinite")
def step(factor):
    (leaf * factor).sqrt().sum().backward()
for _ in range(120):
    step(other)
armed, came = True, None
try:
    step(other * 0)
    for _ in range(100):
        pass
except Alarm as error:
    came = error
armed = False
print("came", came is not None)
leaf.grad = None
step(other)
print(leaf.grad.isfinite().all().item(), session.attached)
session.detach()
""",
    )
    assert done.stdout.endswith("came True\nTrue True\n"), str(done)

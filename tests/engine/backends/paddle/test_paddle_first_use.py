"""The first hook in a process and on a thread: what adbg tries and makes for it must not show in the program."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("paddle.autograd")

ROOT = Path(__file__).resolve().parents[4]
BEGIN = """
import threading
import paddle
from paddle.base import core
from tests.support.paddle_watch import Watch, watching
from adbg.engine.backends.paddle.native import symbols

x = paddle.ones([3])
x.stop_gradient = False
loss = lambda: (x * 2.0).sum()
"""


def outcome(program: str) -> str:
    command = [sys.executable, "-c", BEGIN + textwrap.dedent(program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done
    return done.stdout


@pytest.mark.parametrize("waiting", [0, 1, 2, 5])
def test_what_waits_for_the_end_of_a_backward_waits_for_the_scripts(waiting: int) -> None:
    """Master gradients of AMP are made there: called at the end of a run of adbg's own, they would never be."""
    program = f"""
    called = []
    for number in range({waiting}):
        core.eager._add_backward_final_hook(lambda number=number: called.append((number, x.grad is not None)))
    with watching(Watch()):
        loss().backward()
        assert symbols.native() is not None, symbols.native_problem()
        core.eager._add_backward_final_hook(lambda: called.append("next"))
        loss().backward()
    print(called == [(number, True) for number in range({waiting})] + ["next"], called)
    """
    assert outcome(program).startswith("True"), program


def test_a_threads_first_backward_may_come_under_no_grad() -> None:
    program = """
    def other():
        y = paddle.ones([3])
        y.stop_gradient = False
        end = (y * 2.0).sum()
        with paddle.no_grad():
            end.backward()
        print(y.grad.numpy().tolist(), watch.last.begun == watch.last.order)

    watch = Watch()
    with watching(watch):
        loss().backward()
        for _ in range(3):
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
    """
    assert outcome(program) == "[2.0, 2.0, 2.0] True\n" * 3


def test_a_threads_first_hook_takes_no_number_of_the_scripts_operators() -> None:
    program = """
    paddle.set_flags({"FLAGS_enable_unique_name": True})
    def other():
        y = paddle.ones([3])
        y.stop_gradient = False
        (y * 2.0).sum().backward()
        print(paddle.scale(y, 2.0).name)

    with watching(Watch(), armed=ARMED):
        loss().backward()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    """
    assert outcome(program.replace("ARMED", "True")) == outcome(program.replace("ARMED", "False"))

"""The extension on Paddle: stacks, results, the watch for numbers that are not finite, and what is left behind. One
process tries all of it (``paddle_program.py``); some tests have one of their own."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from support.program import ROOT, Outcome, run

pytest.importorskip("paddle.autograd")
INF = math.inf


def ran(extension: Path, *command: str | Path) -> Outcome:
    path = os.pathsep.join((str(ROOT / "tests"), str(ROOT)))
    env = {**os.environ, "ADBG_NATIVE": str(extension), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return run([sys.executable, *command], cwd=ROOT, env=env, limit=110)


@pytest.fixture(scope="module")
def answers(extension: Path) -> dict[str, Any]:
    done = ran(extension, ROOT / "tests" / "engine" / "native" / "paddle_program.py")
    assert done.status == 0, str(done)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_stacks_are_paddles_own_node_for_node(answers: dict[str, Any]) -> None:
    told = answers["stacks"]
    assert told["different"] == [] and told["compared"] >= 70 and told["nodes"] > 100
    assert told["orders_distinct"]
    # A leaf's node keeps the stack of its first user; the level, which costs 2.8 times, has none for a convolution.
    assert told["without"] == ["GradNodeAccumulation"] and "Conv2dGradNodeFinal" in told["paddle_without"]


def test_results_flags_and_random_numbers_are_those_without_it(answers: dict[str, Any]) -> None:
    assert answers["results"] == {"same": True, "flags": [1, False]}


EXPECTED = {
    "sqrt": ([["end", "SqrtGradNode", [True], [False]], ["end", "ScaleGradNode", [True], [True]]], [INF, 0.75]),
    "strided": (
        [
            ["end", name, [True], [name != "SqrtGradNode"]]
            for name in ("SqrtGradNode", "TransposeGradNode", "ScaleGradNode")
        ],
        [[0.5, 0.25, 1 / 6], [0.5, INF, 1 / 6]],
    ),
    "sum": ([["begin", "ScaleGradNode", [True], []], ["end", "ScaleGradNode", [True], [True]]], [INF, INF]),
    "leaf": ([], [INF]),
    "finite": ([], [2.0, 2.0]),
}
IN_PYTHON = {"hook", "pylayer", "concat"}  # graphs with these are left to the Python hooks


def flat(values: Any) -> list[float]:
    return [each for value in values for each in flat(value)] if isinstance(values, list) else [values]


def test_the_watch_tells_what_the_arithmetic_says(answers: dict[str, Any]) -> None:
    for name, (told, gradient) in EXPECTED.items():
        native, *_ = answers["watch"][f"{name} None"]
        last = [] if name == "finite" else [["begin", "GradNodeAccumulation", [True], []]]
        assert native[0] == told + last
        assert flat(json.loads(native[1])) == pytest.approx(flat(gradient))


def test_the_watch_tells_what_the_python_hooks_tell(answers: dict[str, Any]) -> None:
    """Reports and edits; and it was C++ that looked, where that is possible."""
    for name, (native, python, brief, course) in answers["watch"].items():
        assert native[:2] == python[:2] == brief[:2], name
        assert native[2] == (name.split()[0] not in IN_PYTHON) and not python[2], name
        assert name.endswith("None") or len(native[0]) <= 1  # what was edited is finite from there on
        if name.split()[0] in IN_PYTHON:
            assert course == ["begin", "end"], name
        elif native[0]:  # nothing is made of the call before there is something to tell
            assert course[0].startswith("brief ") and course[1:] == ["begin", "end", "brief end"], name
        else:
            assert course == [course[0], "brief end"] and course[0].startswith("brief "), name


def test_everything_is_put_back(answers: dict[str, Any]) -> None:
    """Three functions' slots and one virtual table; marks of nodes count no more."""
    assert answers["restored"] == {"changed": 4, "back": True, "marked": True, "forgotten": True}


def test_what_ends_a_stop_ends_the_backward_and_nothing_else(answers: dict[str, Any]) -> None:
    told = answers["abort"]
    assert told["raised"] == ["KeyboardInterrupt"] * 8 and told["reached"] == [False, True] * 4
    assert told["grad_mode"] and told["later"] == [2.0, 2.0]


def test_a_forked_child_goes_on(answers: dict[str, Any]) -> None:
    assert answers["fork"] == {"status": 0}


def test_values_that_are_none_raise(answers: dict[str, Any]) -> None:
    assert answers["errors"] == {"raised_nothing": [], "null": [0, 0], "empty": 0, "begun": [0, 0, 0]}


def test_python_may_end_while_a_thread_makes_nodes(extension: Path) -> None:
    program = """
import threading, time
import paddle
from tests.support.paddle_watch import Watch
from adbg.engine.backends.paddle.backend import PaddleBackend
from adbg.engine.backends.base import HookPlan
backend = PaddleBackend(); backend.prepare(False); backend.install(Watch(HookPlan(screen=True)))
backend.set_stacks(True); backend.arm(True)
x = paddle.ones([3]); x.stop_gradient = False
ran = threading.Event()
def work(depth):
    while True:
        if depth: work(depth - 1)
        (x * 2.0).sum().backward(); x.clear_grad(); ran.set()
threading.Thread(target=work, args=(0,), daemon=True).start()
ran.wait()
time.sleep(0.2)
assert backend._stacks.native
print("ends", flush=True)
"""
    for _ in range(2):
        done = ran(extension, "-c", program)
        assert "ends" in done.stdout and done.status in (0, -6), str(done)  # -6: a daemon's thread ends so in Paddle


@pytest.mark.parametrize("fails", ["_check", "paddle_begin"])
def test_where_a_check_fails_python_does_the_work_and_the_doctor_says_so(extension: Path, fails: str) -> None:
    program = f"""
import paddle
from adbg.engine.native import load
from adbg.engine.backends.paddle.native import core as cores
from adbg.engine.backends.paddle.backend import PaddleBackend
def fail(*args):
    raise LookupError("the sky is green")
if {fails!r} == "_check":
    cores.NativeCore._check = fail
else:
    class Module:
        paddle_begin = staticmethod(fail)
        def __getattr__(self, name): return getattr(load.core()[0], name)
    real = cores.load.core()
    class Load:
        @staticmethod
        def core(): return Module(), ""
    cores.load = Load
backend = PaddleBackend(); backend.prepare(False)
backend.set_stacks(True)
x = paddle.ones([3]); x.stop_gradient = False
made = x * 2.0
lines = backend._stacks.lines(made.grad_fn)[0]
print([line.function for line in lines], backend._stacks.native, flush=True)
print([line.detail for line in backend.doctor() if line.what == "native core"], flush=True)
backend.uninstall()
"""
    done = ran(extension, "-c", program)
    assert done.status == 0, str(done)
    stack, doctor = done.stdout.splitlines()[-2:]
    assert stack == "['<module>'] False"
    assert "the sky is green" in doctor and "Python hooks" in doctor


def test_a_watch_beside_breakpoints_that_take_nothing(extension: Path, tmp_path: Path) -> None:
    """Breakpoints by name, line and module with a watch: calls are passed over until a gradient is not finite, and the
    stop is the one of the Python hooks, at the node that the arithmetic names."""
    script = tmp_path / "train.py"
    script.write_text(
        """
import os, paddle
from paddle import nn
from adbg.engine.backends.paddle.call import PaddleCall
made, real = [], PaddleCall.__init__
def counted(self, *args, **kwargs):
    made.append(step)
    real(self, *args, **kwargs)
PaddleCall.__init__ = counted
paddle.seed(0)
net = nn.Linear(3, 3)
x = paddle.ones([1, 3])
x.stop_gradient = False
for step in range(8):
    loss = (paddle.sqrt(x * (0.0 if step == 6 else 1.0)) + net(x) * 0.5).sum()
    loss.backward()
    net.clear_gradients()
print("looked into:", made)
"""
    )
    told = []
    for way in (str(extension), "0"):
        options = ["-b", "NoSuchNode", "-b", "nowhere.py:10", "-b", "module:no.such", "-b", "nonfinite"]
        command = [sys.executable, "-m", "adbg", "run", "--batch", *options]
        env = {**os.environ, "ADBG_NATIVE": way, "OMP_NUM_THREADS": "1"}
        done = run([*command, script], cwd=tmp_path, env=env, limit=110)
        assert done.status == 0, str(done)
        told.append(done)
    native, python = (each.stdout.splitlines() for each in told)
    assert [line for line in native if "looked into" not in line] == [
        line for line in python if "looked into" not in line
    ], f"{told[0]}\n{told[1]}"
    assert any("SqrtGradNode" in line for line in native) and not any("MatmulGradNode" in line for line in native)
    (calls,) = (line.partition(": ")[2] for line in native if line.startswith("looked into"))
    assert json.loads(calls)[0] == 0 and 6 in json.loads(calls) and not {2, 3, 4, 5} & {*json.loads(calls)}, calls

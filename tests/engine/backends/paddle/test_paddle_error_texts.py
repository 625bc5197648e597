"""The text of a backward's exception is the one without adbg, at every call stack level of Paddle."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.frameworks import only_here

pytestmark = only_here("paddle", "call stack levels are Paddle's")

SCRIPT = """
import paddle
from paddle.autograd import PyLayer

x = paddle.ones([3])
x.stop_gradient = False

class TwoForOne(PyLayer):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g, g

class Raising(TwoForOne):
    @staticmethod
    def backward(ctx, g):
        raise ValueError("no luck")

class Nested(TwoForOne):
    @staticmethod
    def backward(ctx, g):
        with paddle.enable_grad():
            inner = paddle.ones([3])
            inner.stop_gradient = False
            Raising.apply(inner).sum().backward()
        return g

def changed_in_place():
    y = paddle.exp(x)
    loss = (y * y).sum()
    y.add_(y)
    loss.backward()

def twice():
    loss = paddle.exp(x).sum()
    loss.backward()
    loss.backward()

def grad_of_a_stranger():
    paddle.grad((x * 2).sum(), paddle.ones([1]))

def conv_in_place():
    image = paddle.ones([1, 1, 4, 4])
    image.stop_gradient = False
    kernel = paddle.ones([1, 1, 2, 2])
    kernel.stop_gradient = False
    mid = image * 2
    loss = paddle.nn.functional.conv2d(mid, kernel).sum()
    mid.add_(mid)
    loss.backward()

cases = [changed_in_place, twice, grad_of_a_stranger, conv_in_place]
cases += [lambda kind=kind: kind.apply(x).sum().backward() for kind in (TwoForOne, Raising, Nested)]
for number, case in enumerate(cases):
    try:
        case()
    except Exception as error:
        print("CASE", number, type(error).__name__, repr(str(error)))
"""


@pytest.mark.parametrize("level", ["", "0", "1", "2", "3"])
def test_the_script_reads_the_text_that_it_reads_without_adbg(tmp_path: Path, level: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, **({"FLAGS_call_stack_level": level} if level else {})}
    environment.pop("PYTHONUNBUFFERED", None)  # print() would write a line in pieces, and Paddle's log come in between

    def read(*command: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, *command, str(script)], capture_output=True, text=True, timeout=120, env=environment
        )
        return [re.sub("0x[0-9a-f]+", "0x", line) for line in done.stdout.splitlines() if line.startswith("CASE")]

    plain = read()
    assert len(plain) == 7, plain
    adbg = ["-m", "adbg", "run", "--batch", "--no-record"]
    assert read(*adbg, "-e", "disable error", "-b", "nan", "-e", "c") == plain
    assert read(*adbg) == plain

"""A stop at an exception in a Python backward shows the gradients that the node was given, with nothing armed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.frameworks import on_frameworks
from support.program import adbg, commands

TORCH = """
import sys
import torch
from torch.autograd import Function as Layer
def leaf(): return torch.full((3, 4), 0.5, requires_grad=True)
exp, enable_grad = torch.exp, torch.enable_grad
"""
PADDLE = """
import sys
import paddle
from paddle.autograd import PyLayer as Layer
def leaf():
    x = paddle.full([3, 4], 0.5)
    x.stop_gradient = False
    return x
exp, enable_grad = paddle.exp, paddle.enable_grad
"""
COMMON = """
class Bad(Layer):
    @staticmethod
    def forward(ctx, x):
        return x * 2, x * 3
    @staticmethod
    def backward(ctx, g, h):
        sys.stdout.write(f"GIVEN {float(g.sum())} {float(h.sum())}\\n")
        raise ValueError("no")

class Outer(Layer):
    @staticmethod
    def forward(ctx, x):
        return x * 1
    @staticmethod
    def backward(ctx, g):
        if "nested" in sys.argv:
            inner()
        return g

def inner():
    with enable_grad():
        a, b = Bad.apply(exp(leaf()))
        (a * 5 + b * 7).sum().backward()

if "nested" in sys.argv:
    Outer.apply(exp(leaf())).sum().backward()
else:
    inner()
"""
HEADS = {"torch": TORCH, "paddle": PADDLE}


@on_frameworks()
@pytest.mark.parametrize("words", [(), ("nested",)], ids=["plain", "nested"])
def test_the_gradients_of_the_node_that_failed(tmp_path: Path, framework: str, words: tuple[str, ...]) -> None:
    script = tmp_path / "bad.py"
    script.write_text(HEADS[framework] + COMMON)
    asks = commands("continue", "p [float(g.sum()) for g in grad_outputs]", "info node")
    done = adbg("run", "--batch", "--no-record", *asks, script, *words)
    assert "GIVEN 60.0 84.0" in done.stdout, str(done)
    shown = done.stdout + done.stderr
    assert "[60.0, 84.0]" in shown, str(done)
    assert "grad_outputs[1]  f32[3, 4]  norm 24.25" in shown, str(done)

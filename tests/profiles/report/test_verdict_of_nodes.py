"""The node timer on real loops, one of small kernels and one of large ones, on both frameworks."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.program import adbg

from adbg.profiles.report.formats import detect
from adbg.profiles.report.verdict import Bound, judge

LOOP = """
step = make({size}, {tiny})
for _ in range(16):
    step()
"""
MAKE = {
    "torch": """
import torch
torch.set_num_threads(1)
def make(n, tiny):
    x, w = torch.randn(n, n), torch.randn(n, n, requires_grad=True)
    def step():
        w.grad = None
        y = (x @ w).tanh().view(-1)
        for _ in range(tiny): y = y + 1.0  # by far the most nodes
        y.sum().backward()
    return step
""",
    "paddle": """
import paddle
def make(n, tiny):
    x, w = paddle.randn([n, n]), paddle.randn([n, n])
    w.stop_gradient = False
    def step():
        w.clear_grad()
        y = (x @ w).tanh().reshape([-1])
        for _ in range(tiny): y = y + 1.0  # by far the most nodes
        y.sum().backward()
    return step
""",
}


NO_VIEWS = """
import {framework}
def step(n, tiny):
    x, w = {framework}.{random}, {framework}.{random}
    w.{grad}
    y = x
    for _ in range(tiny): y = y * 0.5 + w * 0.1  # by far the most nodes
    {sum}.backward()
for _ in range(16):
    step({size}, 100)
"""
WORDS = {
    "torch": {"random": "randn(n, n)", "grad": "requires_grad_()", "sum": "y.mul(y).exp().sum()"},
    "paddle": {"random": "randn([n, n])", "grad": "stop_gradient = False", "sum": "(y * y).exp().sum()"},
}


@pytest.mark.parametrize("framework", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in MAKE])
def test_without_views_by_small_operators_and_by_nothing_else(tmp_path: Path, framework: str) -> None:
    for size in (8, 512):
        script = tmp_path / f"loop{size}.py"
        script.write_text(NO_VIEWS.format(framework=framework, size=size, **WORDS[framework]))
        run = tmp_path / f"run{size}"
        done = adbg("profile", "--with", "nodes", "--iterations", "12", "--run-dir", str(run), str(script))
        assert done.status == 0, str(done)
        profile = detect.read(next((run / "profiles").iterdir()))
        verdict = judge(profile)
        if size == 512:  # all of its nodes compute: what launching takes is in none of them alone
            assert verdict is None and profile.launch_cost is None, (verdict, profile)
            continue
        assert verdict is not None and verdict.bound is Bound.SCHEDULING and verdict.share > 0.6, (verdict, profile)
        assert "y * 0.5" in script.read_text().splitlines()[verdict.lines[0].line - 1]
        assert "by those that compute next to nothing" in " ".join(done.stderr.replace("adbg:", "").split()), str(done)


@pytest.mark.parametrize("framework", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in MAKE])
@pytest.mark.parametrize(("size", "tiny", "bound"), [(8, 200, Bound.SCHEDULING), (768, 0, Bound.KERNEL)])
def test_by_what_views_take(tmp_path: Path, framework: str, size: int, tiny: int, bound: Bound) -> None:
    script = tmp_path / "loop.py"
    script.write_text(MAKE[framework] + LOOP.format(size=size, tiny=tiny))
    run = tmp_path / "run"
    done = adbg("profile", "--with", "nodes", "--iterations", "12", "--run-dir", str(run), str(script))
    assert done.status == 0, str(done)
    profile = detect.read(next((run / "profiles").iterdir()))
    verdict = judge(profile)
    assert verdict is not None and verdict.bound is bound and verdict.share > 0.6, (verdict, profile)
    at, source = verdict.lines[0], script.read_text().splitlines()
    assert at.file == str(script)
    assert ("y + 1.0" if tiny else "x @ w") in source[at.line - 1], "where most would be won"
    assert f"{bound.value}: {100 * verdict.share:.0f}%" in done.stderr and f"loop.py:{at.line}" in done.stderr
    assert "not seen: forward (no " in done.stderr, "what is null, and why"

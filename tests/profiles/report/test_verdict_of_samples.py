"""Real loops on real frameworks, sampled by libprofiler: of small kernels, of large ones, and of what is neither."""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from adbg.profiles.report.formats import detect
from adbg.profiles.report.tables import Grouping, table
from adbg.profiles.report.verdict import Bound, judge

pytestmark = pytest.mark.skipif(
    ctypes.util.find_library("profiler") is None, reason="libprofiler (apt: libgoogle-perftools4) is not installed"
)
LOOP = """
import ctypes, hashlib, sys, time
profiler = ctypes.CDLL("libprofiler.so.0")
def foreign():  # a C function that is no framework's
    hashlib.pbkdf2_hmac("sha256", b"x", b"y", 20_000)
def python():
    sum(number * number for number in range(1000))
for name, step in {"tiny": make(8), "large": make(768), **large, "foreign": foreign, "python": python}.items():
    step()
    assert profiler.ProfilerStart(f"{sys.argv[1]}/{name}.prof".encode())
    end = time.process_time() + 0.5
    while time.process_time() < end:
        step()
    profiler.ProfilerStop()
"""
MAKE = {
    "torch": """
import torch
torch.set_num_threads(1)
def make(n):
    x, w = torch.randn(n, n), torch.randn(n, n, requires_grad=True)
    def step():
        w.grad = None
        (x @ w).tanh().sum().backward()
    return step
long = torch.randn(1_000_000)
large = {"sort": long.sort, "shuffle": lambda: torch.randperm(1_000_000), "fft": lambda: torch.fft.fft(long)}
""",
    "paddle": """
import paddle
def make(n):
    x, w = paddle.randn([n, n]), paddle.randn([n, n])
    w.stop_gradient = False
    def step():
        w.clear_grad()
        (x @ w).tanh().sum().backward()
    return step
long = paddle.randn([1 << 20])
large = {"sort": lambda: paddle.sort(long), "shuffle": lambda: paddle.randperm(1 << 20)}
large["fft"] = lambda: paddle.fft.fft(long)
""",
}


@pytest.mark.parametrize("framework", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in MAKE])
def test_small_kernels_are_bound_by_scheduling_and_large_ones_are_not(tmp_path: Path, framework: str) -> None:
    environment = {**os.environ, "CPUPROFILE_FREQUENCY": "400", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-c", MAKE[framework] + LOOP, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    tiny, large = (detect.read(tmp_path / f"{name}.prof") for name in ("tiny", "large"))
    verdict = judge(tiny)
    assert verdict is not None and verdict.bound is Bound.SCHEDULING and verdict.share > 0.7, verdict
    verdict = judge(large)
    assert verdict is not None and verdict.bound is Bound.KERNEL and verdict.share > 0.7, verdict
    parts = {row.frame.name: row.own / tiny.total for row in table(tiny, Grouping.PHASE).rows}
    assert parts["forward"] > 0.02 and parts["backward"] > 0.02
    for name in ("sort", "shuffle", "fft"):  # one operator a step: nothing is launched to speak of
        verdict = judge(detect.read(tmp_path / f"{name}.prof"))
        assert verdict is None or (verdict.bound is Bound.KERNEL and verdict.share > 0.7), (name, verdict)
        assert verdict is not None or (name, framework) == ("shuffle", "torch"), "by its names nobody can say"
    for name in ("foreign", "python"):
        assert judge(detect.read(tmp_path / f"{name}.prof")) is None, f"{name}: no operator runs at all"

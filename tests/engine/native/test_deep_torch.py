"""Graphs of more nodes than torch can free once Python has touched them: stepped through, stopped in by name and line,
listed, and freed as without adbg."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.dialled import Dialled
from support.program import ROOT

pytest.importorskip("torch")

# One thread's stack of 8 MB holds the recursion over 40,000 touched nodes, not that over 45,000.
MANY = 60_000
CHAIN = f"""
import gc, resource, torch
resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))
start = torch.full((2,), 0.5, requires_grad=True)
def forward():
    x = start
    for i in range({MANY}):
        if i == 10:
            x = x.cos()
        elif i == {MANY} - 100:
            x = x.sin()
        else:
            x = x * 1.00001
    return x.sum()
loss = forward()
loss.backward()
print(start.grad.tolist())
del loss
gc.collect()
print("freed", flush=True)
"""
# sum, 99 products, then the sine at index 101; the cosine has 10 products below it, and the accumulate node.
SINE, TOTAL = 101, MANY + 2
COSINE = TOTAL - 11


def plain(script: Path) -> str:
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_long_chain_is_stepped_through_and_freed(tmp_path: Path, extension: Path) -> None:
    with Dialled(tmp_path, CHAIN, env={**os.environ, "ADBG_NATIVE": str(extension), "PYTHONPATH": str(ROOT)}) as run:
        peer = run.peer
        peer.begin("SinBackward0")
        stop = peer.stopped()
        assert (stop["index"], stop["total"], stop["truncated"]) == (SINE, TOTAL, False)
        products = MANY - 2
        for step in (1, 2, 3):
            stop = peer.go("stepIn")
            names = (stop["index"], stop["node"]["unique_name"])
            assert names == (SINE + step, f"MulBackward0#{products - 99 - step + 1}")
        page = peer.request("adbg/graph", start=COSINE - 1, count=13)
        assert page["total"] == TOTAL and not page["truncated"]
        told = [(row["index"], row["name"], row["edges"], row["shape"]) for row in page["rows"]]
        cosine, leaf = "CosBackward0", "AccumulateGrad"
        expected = [
            cosine if i == COSINE else leaf if i == TOTAL else "MulBackward0" for i in range(COSINE - 1, TOTAL + 1)
        ]
        assert told == [
            (i, name, [i + 1] if i < TOTAL else [], [2])
            for i, name in zip(range(COSINE - 1, TOTAL + 1), expected, strict=True)
        ]
        peer.set("MulBackward0#50000")
        stop = peer.go()
        assert (stop["node"]["unique_name"], stop["index"]) == ("MulBackward0#50000", COSINE - (50_000 - 10))
        peer.set(f"{run.script}:{run.line('x.cos()')}")
        stop = peer.go()
        assert (stop["node"]["name"], stop["index"]) == ("CosBackward0", COSINE)
        assert peer.go("stepIn")["node"]["unique_name"] == "MulBackward0#10"
        peer.set()
        peer.send("continue")
        status, out, err = run.end()
    assert (status, out) == (0, plain(run.script)), err[-2000:]
    assert out.endswith("freed\n")

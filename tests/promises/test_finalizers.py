"""Python's collector may run a finalizer of the program's in the midst of adbg's work, on any of its threads, and a
finalizer may run a backward. The witness is the program: it knows how many of its backwards make Inf."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.frameworks import FRAMEWORKS, case
from support.program import adbg, commands

HEAD = {
    "torch": "import torch as fw\nleaf = lambda values: fw.tensor(values, requires_grad=True)\n",
    "paddle": "import paddle as fw\nleaf = lambda values: fw.to_tensor(values, stop_gradient=False)\n",
}
BAD = 40
PROGRAM = f"""
import gc

class Finalized:
    left = 6

    def __init__(self):
        self.me = self  # the collector alone frees it

    def __del__(self):
        if Finalized.left:
            Finalized.left -= 1
            with fw.enable_grad():
                (leaf([1.0, 2.0]) * 2).sum().backward()
            Finalized()

gc.set_threshold(60)
Finalized()
for _ in range({BAD}):
    (fw.sqrt(leaf([0.0, 4.0])) * 2).sum().backward()
print("left", Finalized.left)
"""


@pytest.mark.parametrize("native", ["1", "0"])
@pytest.mark.parametrize("framework", [case(name, name) for name in FRAMEWORKS])
def test_a_backward_in_a_finalizer_takes_no_stop_away(framework: str, native: str, tmp_path: Path) -> None:
    script = tmp_path / "finalizers.py"
    script.write_text(HEAD[framework] + PROGRAM)
    going_on = commands(*["c"] * (BAD + 1))
    environment = {**os.environ, "ADBG_NATIVE": native}
    outcome = adbg("run", "--batch", "--json", "-b", "nonfinite", *going_on, script, env=environment)
    stops = [line for line in outcome.of("stopped") if line["reason"] in ("nan", "inf")]
    assert "left 0" in str(outcome) and "a hook failed" not in str(outcome)
    assert len(stops) == BAD, [line["message"] for line in stops]

"""What a signal handler of the program's raises reaches it, also where a norm is asked for in the midst of a backward:
of gradients that the extension cannot read in memory. The program counts both."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.program import adbg, commands

pytestmark = pytest.mark.paddle

PROGRAM = """
import random, signal
import paddle

class Alarm(Exception):
    pass

raised, caught, armed = 0, 0, False

def handler(*given):
    global raised, armed
    if armed:
        armed, raised = False, raised + 1
        raise Alarm

signal.signal(signal.SIGALRM, handler)
x = paddle.to_tensor([1.0, 2.0], stop_gradient=False)

def step():
    z = paddle.complex(x, x * 2)
    for _ in range(60):
        z = z * 1.001
    z.abs().sum().backward()
    x.clear_grad()

for _ in range(20):
    step()
random.seed(1)
for _ in range(200):
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-4, 2e-2))
        for _ in range(3):
            step()
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Alarm:
        caught += 1
    armed = False
print("raised", raised, "caught", caught)
"""


def test_no_exception_is_lost(tmp_path: Path) -> None:
    script = tmp_path / "alarms.py"
    script.write_text(PROGRAM)
    outcome = adbg("run", "--batch", *commands("record on", "c"), script)
    _, raised, _, caught = next(line for line in outcome.stdout.splitlines() if line.startswith("raised")).split()
    assert int(raised) > 10, "too few to tell"
    assert raised == caught

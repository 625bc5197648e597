"""Whole numbers that a cast rounds before a sine or a cosine tells them apart. Witness: how many different numbers
there are before and after it, by Python's sets."""

from __future__ import annotations

import re

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as fw
from torch import nn
fw.manual_seed(0)
arange, no_grad = fw.arange, fw.no_grad
def to(value, kind):
    return value.to(getattr(fw, kind))
def sgd(net):
    optimizer = fw.optim.SGD(net.parameters(), 0.05)
    return optimizer, optimizer.zero_grad
""",
    "paddle": """
import paddle as fw
from paddle import nn
fw.seed(0)
arange, no_grad = fw.arange, fw.no_grad
def to(value, kind):
    return value.astype(kind)
def sgd(net):
    optimizer = fw.optimizer.SGD(0.05, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
""",
}
START = """
rates = 1.0 / 100.0 ** (to(arange(4), "float32") / 4)
net = nn.Linear(4, 1)
optimizer, clear = sgd(net)
def waves(times):
    BODY
kept = None
for at in range(5):
    times = to(arange(256), "float32") * STEP + (FROM + at)
    seen = waves(times)
    loss = (net(to(seen, "float32")) - 1).square().mean()
    loss.backward()
    optimizer.step()
    clear()
print("different:", len(set(times.tolist())), "left:", len(set(to(kept, "float32").tolist())))
"""
KEEP = "globals()['kept'] = late"


def program(*lines: str, step: float = 3.0, start: float = 0.0) -> str:
    return START.replace("BODY", "\n    ".join(lines)).replace("STEP", str(step)).replace("FROM", str(start))


ANGLES = "angles = to(late, 'float32')[:, None] * rates[None, :]"
CAST = "late = to(times, 'bfloat16')  # CAUSE"
HALF = "angles = late[:, None] * to(rates, 'bfloat16')[None, :]"
# On a CPU Paddle computes nothing of half precision.
BUGGY = {
    "a sine": program(CAST, KEEP, HALF, "return fw.sin(angles)"),
    "a cosine": program(CAST, KEEP, HALF, "return fw.cos(angles)", step=5.0),
    "with all of the batch": program("late, other = to(times, 'bfloat16'), to(times * 0, 'bfloat16')  # CAUSE",
                                     KEEP, HALF, "return fw.sin(angles) + other[:, None]"),
    "of float16": program("late = to(times, 'float16')  # CAUSE", KEEP, HALF.replace("bfloat16", "float16"),
                          "return fw.sin(angles)", step=1.0, start=3000.0),
    "by its method": program("late = times.bfloat16()  # CAUSE", KEEP, HALF, "return angles.sin()"),
    "divided": program(CAST, KEEP, "return fw.sin(late.reshape([256, 1]) / 2.0)", "").replace(
        "nn.Linear(4, 1)", "nn.Linear(1, 1)"),
}  # fmt: skip
MISSED = {
    # FAULT: what was rounded is float32 again as the angle is made of it, as by ``t.float() * rates``: not followed
    "float32 again": program(CAST, KEEP, ANGLES, "return fw.sin(angles)"),
    "float32 again, a cosine": program(CAST, KEEP, "wide = to(late.unsqueeze(1), 'float32')",
                                       "return fw.cos(wide * rates)", step=7.0),
    "float32 again, of float16": program("late = to(times, 'float16')  # CAUSE", KEEP, ANGLES,
                                         "return fw.sin(angles)", step=1.0, start=3000.0),
}  # fmt: skip
HEALTHY = {
    "cast behind the sine": program("late = times", KEEP, ANGLES, "return to(fw.sin(angles), 'bfloat16')"),
    "small numbers": program("late = to(times - times.min(), 'bfloat16')", KEEP, ANGLES, "return fw.sin(angles)",
                             step=1.0),
    "numbers that the type holds": program("late = to(times - times.min(), 'bfloat16')", KEEP, ANGLES,
                                           "return fw.sin(angles)", step=32.0),
    "fewer of float16": program("late = to(times, 'float16')", KEEP, ANGLES, "return fw.sin(angles)", step=7.0),
    "the float32 ones are used": program("late = times", KEEP, ANGLES, "other = to(times, 'bfloat16')",
                                         "return fw.sin(angles) + 0 * to(other, 'float32')[:, None]"),
}  # fmt: skip
# Numbers that are rounded, of which no sine is taken.
NO_SINE = {
    "a feature": program("late = to(times, 'bfloat16')", KEEP,
                         "return to(late, 'float32')[:, None] / 500.0 * rates"),
    "a logarithm": program("late = to(times, 'bfloat16')", KEEP,
                           "return fw.log1p(to(late, 'float32'))[:, None] * rates"),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = {**(BUGGY if request.param == "torch" else {}), **MISSED, **HEALTHY, **NO_SINE}
    by = {"torch": r"times.to(fw.\1)", "paddle": r"times.astype('\1')"}[request.param]
    texts = {name: HEAD[request.param] + re.sub(r"to\(times, '(\w+)'\)", by, part) for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"phases-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)
torch = pytest.mark.parametrize("runs", [cases["torch"]], indirect=True)


def check_rounded(run: Run) -> None:
    assert "different: 256 left: " in run.plain and "left: 256\n" not in run.plain, run
    first = run.check_first("rounded-gradient")
    assert first["severity"] == "warning" and "which changes" in first["message"], first


@torch
@pytest.mark.parametrize("name", BUGGY)
def test_numbers_that_become_one(runs: dict[str, Run], name: str) -> None:
    check_rounded(runs[name])


@each
@pytest.mark.parametrize("name", MISSED)
@pytest.mark.xfail(reason="see MISSED")
def test_numbers_that_are_wide_again(runs: dict[str, Run], name: str) -> None:
    check_rounded(runs[name])


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_numbers_that_stay_apart(runs: dict[str, Run], name: str) -> None:
    assert "different: 256 left: 256\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()


@each
@pytest.mark.parametrize("name", NO_SINE)
def test_numbers_without_a_phase(runs: dict[str, Run], name: str) -> None:
    assert "different: 256 left: " in runs[name].plain and "left: 256\n" not in runs[name].plain, runs[name]
    runs[name].check_healthy()

"""The commands that a finding names are tried at a prompt: they show what the program itself says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.diagnosing import diagnose
from support.frameworks import on_frameworks
from support.program import adbg

PROGRAMS = {
    "torch": """
import torch
from torch import nn
torch.manual_seed(0)
x, y = torch.randn(16, 6), torch.randn(16, 1)
model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 1)).bfloat16()
model.eval()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
for batch, target in zip(x.bfloat16().split(4), y.bfloat16().split(4)):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(batch), target).backward()
    optimizer.step()
print(f"{model[0].weight.float().norm().item():.4f}")
""",
    "paddle": """
import paddle
from paddle import nn
paddle.seed(0)
x, y = paddle.randn([16, 6]), paddle.randn([16, 1])
model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 1))
model.eval()
optimizer = paddle.optimizer.SGD(1e-20, parameters=model.parameters())
for batch, target in zip(x.split(4), y.split(4)):
    optimizer.clear_grad()
    nn.functional.mse_loss(model(batch) + 3, target).backward()
    optimizer.step()
print(f"{model[0].weight.norm().item():.4f}")
""",
}


@on_frameworks()
def test_what_the_commands_show(framework: str, tmp_path: Path) -> None:
    outcome = diagnose(tmp_path, PROGRAMS[framework])
    told = {each["kind"]: each["next"] for each in outcome.of("finding")}
    assert {"lost-update", "wrong-mode"} <= set(told), str(outcome)
    spec, on, weight, rate = told["lost-update"]
    assert on == "c"
    (mode,) = set(told["wrong-mode"]) - {spec, on}
    plain = subprocess.run([sys.executable, tmp_path / "train.py"], capture_output=True, text=True, cwd=tmp_path)
    text = "".join(f"{line}\n" for line in (spec, "r", weight, rate, mode, "q"))
    shown = adbg("run", "--repl", tmp_path / "train.py", cwd=tmp_path, input=text)
    answers = [line.rpartition("(adbg) ")[2].removeprefix("adbg: ") for line in shown.stdout.splitlines()]
    assert "False" in answers, f"{mode}\n{shown}"
    assert any(_number(each) == (1e-9 if framework == "torch" else 1e-20) for each in answers), f"{rate}\n{shown}"
    norm = float(plain.stdout)
    assert any(abs((_number(each) or 0.0) - norm) < 1e-3 for each in answers), f"{weight}: {norm}\n{shown}"


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None

"""The text of a backward's exception is the one without adbg: torch words it by its anomaly mode, which stacks need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.frameworks import only_here

pytestmark = only_here("torch", "anomaly mode is torch's")

SCRIPT = """
import sys, warnings
import torch

warnings.simplefilter("ignore")
torch.autograd.set_detect_anomaly(sys.argv[1] == "on")
y = torch.ones(3, requires_grad=True).exp()
loss = (y * y).sum()
y.add_(1)
try:
    loss.backward()
except RuntimeError as error:
    sys.stdout.write(f"TEXT {error}\\n")  # in one piece, also where PYTHONUNBUFFERED is set
again = torch.ones(3, requires_grad=True).exp().sum()
again.backward()
try:
    again.backward()
except RuntimeError as error:
    sys.stdout.write(f"TEXT {error}\\n")  # in one piece, also where PYTHONUNBUFFERED is set
"""


@pytest.mark.parametrize("anomaly", ["off", "on"])
def test_the_script_reads_the_text_that_it_reads_without_adbg(tmp_path: Path, anomaly: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def read(*command: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, *command, str(script), anomaly], capture_output=True, text=True, timeout=120
        )
        return [line for line in done.stdout.splitlines() if line.startswith("TEXT")]

    plain = read()
    assert len(plain) == 2 and ("enable anomaly" in plain[0]) is (anomaly == "off")
    assert read("-m", "adbg", "run", "--batch", "--no-record") == plain
    assert read("-m", "adbg", "run", "--batch", "--no-record", "-b", "nan") == plain

"""What may make two runs differ, read from source. Whether such a program does differ is tested where it runs."""

from __future__ import annotations

from pathlib import Path

from adbg.tui.debugger.findings.unrepeated import likely, sources

TRAIN = """
import random, time
import numpy as np
import torch
import data
random.seed(1)
torch.manual_seed(0)
x = torch.randn(3) * random.random()
rng = np.random.default_rng(7)
y = np.random.rand(3)
parts = {1, 2}
"""
DATA = """
import numpy as np
noise = np.random.default_rng().normal()
"""


def test_what_nothing_seeds(tmp_path: Path) -> None:
    train, data = tmp_path / "train.py", tmp_path / "data.py"
    train.write_text(TRAIN)
    data.write_text(DATA)
    found = [(Path(each.cause.file).name, each.cause.line, each.sure) for each in sources([str(train)])]
    assert found == [("data.py", 3, True), ("train.py", 10, True), ("train.py", 11, False)]
    assert likely([str(train)]) is None, "one of two"
    data.write_text("")
    one = likely([str(train)])
    assert one is not None and one.cause.text == "y = np.random.rand(3)" and "nothing seeds np.random" in one.what
    train.write_text(TRAIN.replace("y = np.random.rand(3)", "y = rng.normal()"))
    order = likely([str(train)])
    assert order is not None and order.cause.line == 11 and "order" in order.what
    assert sources([str(tmp_path / "gone.py")]) == [] and likely([]) is None

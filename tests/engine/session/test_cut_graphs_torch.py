"""A graph that is too large to be walked: every place that shows its size says that there is more, the end note too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.dialled import Dialled

from adbg.engine.protocol.codec import from_json
from adbg.engine.types import NodeStop
from adbg.tui.app.panels.status_bar import progress_field
from adbg.tui.text.formatting import stop_title

pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def python_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The native core walks graphs of any size."""
    monkeypatch.setenv("ADBG_NATIVE", "0")


# The bound itself is in test_torch_deep: a small one here, so that the graph need not be large.
DEEP = """
import sys, torch
touched = sys.modules.get("adbg.engine.backends.torch.touched")
if touched:
    touched.SAFE_NODES, touched.SMALL = 60, 10
def train(n):
    x = torch.ones(2, requires_grad=True)
    y = (x * 0).sqrt() * 0
    for i in range(n):
        y = y + 1
    y.sum().backward()
train(20)
train(200)
"""


def test_a_stop_in_a_cut_graph_says_so_and_one_in_a_whole_graph_does_not(tmp_path: Path) -> None:
    with Dialled(tmp_path, DEEP) as run:
        run.peer.begin("#3")
        whole = from_json(NodeStop, run.peer.stopped())
        # sum, additions, mul, sqrt, mul, accumulate
        assert (whole.total, whole.truncated) == (25, False)
        assert stop_title(whole).endswith("node 3 of 25 of backward 1")
        cut = from_json(NodeStop, run.peer.go())
        assert cut.truncated and cut.total < 205
        assert stop_title(cut).endswith(f"node 3 of more than {cut.total} of backward 2 (those after run unseen)")
        assert run.peer.request("adbg/graph", start=1, count=1)["truncated"] is True
        text = "".join(text for text, _ in progress_field(cut.index, cut.total, 16, cut.truncated))
        assert text == f"3/{cut.total}+ rest unseen", "no share of a total that is not known"


def test_what_was_never_hit_is_told_with_what_was_not_seen(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(DEEP.replace("train(20)\n", ""))
    command = [sys.executable, "-m", "adbg", "run", "--batch", "--no-record", "-b", "nan", "-b", "Sqrt*", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    said = done.stdout + done.stderr
    assert "the rest runs unseen, and neither breakpoints nor nan" in said
    assert "no nan was seen in the first 60 nodes of a backward, and the rest ran unseen" in said
    assert "(Sqrt*) was never hit" in said and "looked at in the first 60 nodes" in said

"""The promise "no harm" where the run directory is full, fills, or is taken away while the program runs: it ends as
it would without adbg, and what could not be kept is said once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.frameworks import debuggee_of, on_frameworks
from support.program import Outcome, batch, commands, plain

MODEL = {
    "torch": "import torch as framework\nw = framework.ones(3, requires_grad=True)\n",
    "paddle": "import paddle as framework\nw = framework.ones([3])\nw.stop_gradient = False\n",
}
TRAINING = """
import os, pathlib, shutil, sys, time
run = pathlib.Path(sys.argv[1])
def harm():
    {harm}
print("on", flush=True)
for number in range(40):
    (w * 2).exp().sin().sum().backward()
    print("step", number, flush=True)
    if number == 10:
        harm()
    time.sleep(0.01)
print("done", w.grad.tolist())
"""
HARM = {
    "deleted": "shutil.rmtree(run)",
    "truncated": "[os.truncate(path, 0) for path in run.iterdir() if path.is_file() and path.name[0] != '.']",
    "truncated later": "time.sleep(0.3); [os.truncate(path, 0) for path in run.iterdir() if path.name[0] != '.']",
    "moved away": "run.rename(str(run) + '-gone')",
    "replaced by a file": "shutil.rmtree(run); run.write_text('mine')",
    "no rights": "os.chmod(run, 0)",
}
ARMED = commands("record on", "vlog 4", "break Sin*", "continue", "continue", "disable 1")


def check(outcome: Outcome, expected: str) -> None:
    assert outcome.status == 0, str(outcome)[-3000:]
    assert outcome.program_output == expected


@pytest.mark.parametrize("harm", list(HARM))
@on_frameworks()
def test_taken_away_while_it_runs(framework: str, harm: str, tmp_path: Path) -> None:
    script, run = tmp_path / "train.py", tmp_path / "run"
    script.write_text(MODEL[framework] + TRAINING.format(harm=HARM[harm]))
    (tmp_path / "plain").mkdir()
    expected = plain(str(script), str(tmp_path / "plain")).stdout
    outcome = batch(str(script), "--run-dir", str(run), *ARMED, arguments=[str(run)])
    check(outcome, expected)
    said = [line["text"] for line in outcome.lines if "record" in line.get("text", "") and line["type"] != "result"]
    assert len(said) == len(set(said)), "each trouble is told once"
    if harm == "replaced by a file":
        assert run.read_text() == "mine", "nothing of adbg's in a file of the user's"


@on_frameworks()
def test_a_disk_that_fills(framework: str, tmp_path: Path) -> None:
    """RLIMIT_FSIZE makes write() fail in mid-file as a full disk does."""
    script = tmp_path / "train.py"
    harm = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))"
    script.write_text(MODEL[framework] + TRAINING.format(harm=harm))
    outcome = batch(str(script), "--run-dir", str(tmp_path / "run"), *ARMED, arguments=["-"])
    check(outcome, plain(str(script), "-").stdout)
    troubles = [line["text"] for line in outcome.lines if "recording stopped" in line.get("text", "")]
    assert len(troubles) == 1 and "continues without a record" in troubles[0], str(outcome)[-3000:]


@on_frameworks()
def test_a_disk_that_is_full(framework: str, tmp_path: Path) -> None:
    """/dev/full stands for the files that a run makes: each can be opened, none written."""
    name = debuggee_of(framework, "mlp")
    expected = plain(name)
    run = tmp_path / "run"
    run.mkdir()
    for file in ("vlog-r0.log", "output-r0.log"):
        (run / file).symlink_to("/dev/full")
    outcome = batch(name, "--run-dir", str(run), *commands("vlog 4"))
    assert outcome.status == expected.status, str(outcome)
    assert outcome.program_output == expected.stdout


def test_a_run_that_was_deleted_does_not_come_back(tmp_path: Path) -> None:
    script, run = tmp_path / "train.py", tmp_path / "run"
    script.write_text("import shutil, sys, time\nshutil.rmtree(sys.argv[1])\ntime.sleep(0.2)\nprint('done')\n")
    outcome = batch(str(script), "--run-dir", str(run), arguments=[str(run)])
    assert outcome.status == 0 and outcome.program_output == "done\n", str(outcome)
    left = sorted(path.name for path in run.iterdir()) if run.exists() else []
    shutil.rmtree(run, ignore_errors=True)
    assert left in ([], ["exit.json"]), json.dumps(left)

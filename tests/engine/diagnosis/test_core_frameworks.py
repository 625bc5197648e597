"""Diagnosis of real programs: exit statuses, ways to end, workers, ranks, records, a start at a stop.

The one bug in all of them is a gradient that is never cleared; what is looked at here is not how that is found.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.diagnosing import findings
from support.frameworks import on_frameworks
from support.job import torchrun
from support.program import Outcome, adbg

TRAINING = {
    "torch": """
import os, signal, sys
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.01)

def train(data):
    for x in data:
        loss = ((net(x) - x.sum(1, keepdim=True)) ** 2).mean()
        loss.backward()
        opt.step()  # CAUSE
    print(f"{loss.item():.6f}")

def rows(count=6):
    return [torch.randn(16, 4) for _ in range(count)]
""",
    "paddle": """
import os, signal, sys
import paddle
paddle.seed(0)
net = paddle.nn.Sequential(paddle.nn.Linear(4, 8), paddle.nn.Tanh(), paddle.nn.Linear(8, 1))
opt = paddle.optimizer.SGD(0.01, parameters=net.parameters())

def train(data):
    for x in data:
        loss = ((net(x) - x.sum(1, keepdim=True)) ** 2).mean()
        loss.backward()
        opt.step()  # CAUSE
    print(f"{loss.item():.6f}")

def rows(count=6):
    return [paddle.randn([16, 4]) for _ in range(count)]
""",
}
LOADING = {
    "torch": "from torch.utils.data import DataLoader\ntrain(DataLoader(torch.randn(96, 4), 16, num_workers=2))\n",
    "paddle": """
from paddle.io import DataLoader, Dataset
class Rows(Dataset):
    def __init__(self):
        self.rows = paddle.randn([96, 4]).numpy()
    def __getitem__(self, i):
        return self.rows[i]
    def __len__(self):
        return len(self.rows)
loader = DataLoader(Rows(), batch_size=16, num_workers=2)
train(batch[0] if isinstance(batch, (list, tuple)) else batch for batch in loader)
""",
}


def script(folder: Path, framework: str, rest: str) -> Path:
    path = folder / "train.py"
    path.write_text(TRAINING[framework] + rest)
    return path


def diagnosed(folder: Path, framework: str, rest: str, *options: str) -> Outcome:
    return adbg("diagnose", "--json", *options, script(folder, framework, rest), cwd=folder)


def check(outcome: Outcome, whole: bool = True) -> None:
    """The bug, once, and nothing else above a note."""
    told = [each for each in findings(outcome) if each["severity"] != "note"]
    assert [each["kind"] for each in told] == ["zero-grad"], str(outcome)
    assert told[0]["cause"]["text"].endswith("# CAUSE") and told[0]["cause"]["file"].endswith("train.py")
    (end,) = outcome.of("diagnosis")
    assert end["whole"] is whole and outcome.lines[-1] == end, str(outcome)


@on_frameworks()
def test_the_script_s_own_status_comes_first(framework: str, tmp_path: Path) -> None:
    for rest, status in (("train(rows())", 1), ("train(rows())\nsys.exit(3)", 3), ("train(rows())\nsys.exit()", 1)):
        outcome = diagnosed(tmp_path, framework, rest)
        assert outcome.status == status, str(outcome)
        check(outcome)
    plain = subprocess.run([sys.executable, tmp_path / "train.py"], capture_output=True, text=True, cwd=tmp_path)
    assert outcome.program_output == plain.stdout, str(outcome)


@on_frameworks()
def test_what_was_told_stays_told_however_it_ends(framework: str, tmp_path: Path) -> None:
    for rest, status in (("os._exit(0)", 1), ("os.kill(os.getpid(), signal.SIGKILL)", 137)):
        outcome = diagnosed(tmp_path, framework, f"train(rows())\n{rest}")
        assert outcome.status == status, str(outcome)
        check(outcome, whole=False)
    endless = tmp_path / "endless.py"
    endless.write_text(f"import {framework}\nprint('begun', flush=True)\nwhile True: pass\n")
    text = adbg("diagnose", "--timeout", "15", endless, cwd=tmp_path)
    assert text.status == 124 and "diagnosis: cut short by --timeout 15 s" in text.stderr, str(text)
    assert "nothing found" not in text.stderr, str(text)


@on_frameworks()
def test_ctrl_c_is_no_all_clear_but_behind_the_iterations_asked_for(framework: str, tmp_path: Path) -> None:
    """Python ends such a program as if it came to its end: everything that is done at an exit is done."""
    rest = "for _ in range(6):\n    train(rows(1))\nsignal.raise_signal(signal.SIGINT)\n"
    path = script(tmp_path, framework, rest)
    path.write_text(path.read_text().replace("opt.step()", "opt.step(); net.clear_gradients()"))
    if framework == "torch":
        path.write_text(path.read_text().replace("net.clear_gradients()", "opt.zero_grad()"))
    text = adbg("diagnose", "--run-dir", tmp_path / "run", path, cwd=tmp_path)
    said = "cut short by SIGINT after 6 iterations: nothing was told; more may be there"
    assert text.status == 130 and f"diagnosis: {said}" in text.stderr and "nothing found" not in text.stderr, str(text)
    again = adbg("diagnose", tmp_path / "run", cwd=tmp_path)
    assert again.stdout.startswith(said) and "looked for in 6 iterations" in again.stdout, str(again)
    lines = adbg("diagnose", "--json", tmp_path / "run", cwd=tmp_path)
    assert lines.lines[-1]["whole"] is False, str(lines)
    few = adbg("diagnose", "--iterations", "3", path, cwd=tmp_path)
    assert few.status == 130 and "diagnosis: nothing found" in few.stderr, str(few)


@on_frameworks()
def test_a_program_without_a_backward(framework: str, tmp_path: Path) -> None:
    outcome = diagnosed(tmp_path, framework, "print(net(rows()[0]).shape)")
    (end,) = outcome.of("diagnosis")
    assert outcome.status == 0 and not findings(outcome) and end["iterations"] == 0, str(outcome)
    text = adbg("diagnose", tmp_path / "train.py", cwd=tmp_path)
    assert "diagnosis: no backward began" in text.stderr and "nothing found" not in text.stderr, str(text)


@on_frameworks()
def test_workers_that_load_data_tell_nothing_again(framework: str, tmp_path: Path) -> None:
    outcome = diagnosed(tmp_path, framework, LOADING[framework])
    check(outcome)
    (end,) = outcome.of("diagnosis")
    assert end["iterations"] == 6, str(outcome)


@on_frameworks()
def test_so_many_iterations_and_kinds(framework: str, tmp_path: Path) -> None:
    outcome = diagnosed(tmp_path, framework, "train(rows(12))", "--iterations", "5", "--only", "zero-grad,in-place")
    check(outcome)
    (end,) = outcome.of("diagnosis")
    assert end["iterations"] == 5 and [row["kind"] for row in end["examined"]] == ["in-place", "zero-grad"], str(end)
    wrong = adbg("diagnose", "--only", "zerograd", tmp_path / "train.py", cwd=tmp_path)
    assert wrong.status == 2 and "closest: zero-grad" in wrong.stderr and "Traceback" not in wrong.stderr, str(wrong)


@on_frameworks()
def test_a_recorded_run_says_it_again(framework: str, tmp_path: Path) -> None:
    folder = tmp_path / "20261122-184100-train.py"  # as runs are named
    live = diagnosed(tmp_path, framework, "train(rows())", "--run-dir", str(folder))
    again = adbg("diagnose", "--json", folder, cwd=tmp_path)
    assert again.status == 1 and again.of("finding")[-1] == live.of("finding")[-1], f"{live}{again}"
    assert again.of("diagnosis") == live.of("diagnosis"), f"{live}{again}"
    text = adbg("diagnose", folder, cwd=tmp_path)
    assert text.status == 1 and text.stdout.startswith("1 finding, an error") and "# CAUSE" in text.stdout, str(text)


@on_frameworks()
def test_a_start_at_a_stop(framework: str, tmp_path: Path) -> None:
    path = script(tmp_path, framework, "train(rows(12))")
    words = ["-b", "backward 3", "-e", "c", "-e", "diagnose start", "-e", "b backward 10"]
    outcome = adbg("run", "--batch", "--json", *words, "-e", "c", "-e", "diagnose", "-e", "diagnose stop", path)
    assert outcome.status == 0, str(outcome)
    (listed,) = outcome.of("result", command="diagnose")
    (found,) = [each for each in listed["value"]["findings"] if each["severity"] != "note"]
    assert found["kind"] == "zero-grad" and found["iteration"] > 4, str(outcome)
    assert outcome.of("result", command="diagnose stop")[0]["value"]["on"] is False


@pytest.mark.torch
def test_ranks_tell_the_same_once(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    rest = """
import torch.distributed as dist
dist.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(net)
train(rows())
dist.destroy_process_group()
"""
    path = script(tmp_path, "torch", rest)
    outcome = adbg("diagnose", "--json", "--", *torchrun(2, path), cwd=tmp_path)
    check(outcome)
    (end,) = outcome.of("diagnosis")
    assert [row["ranks"] for row in end["findings"] if row["kind"] == "zero-grad"] == [[0, 1]], str(outcome)
    assert {line["rank"] for line in outcome.of("finding") if line["kind"] == "zero-grad"} == {0, 1}


@pytest.mark.torch
def test_a_record_alone_shows_where_nan_began(tmp_path: Path) -> None:
    """Of a run without diagnosis, whose nodes were recorded."""
    pytest.importorskip("torch")
    path = tmp_path / "nan.py"
    path.write_text(
        "import torch\np = torch.tensor([0.0, 0.5], requires_grad=True)\n"
        "for i in range(2):\n    loss = ((p * 2).sqrt() * 0).sum()\n    loss.backward()\n"
    )
    folder = tmp_path / "run"
    ran = adbg("run", "--batch", "--run-dir", str(folder), "-e", "record on", path)
    assert ran.status == 0, str(ran)
    outcome = adbg("diagnose", "--json", folder)
    (found,) = findings(outcome)
    assert (found["kind"], found["severity"], found["backward"]) == ("nonfinite", "error", 1), str(outcome)
    assert found["node"]["unique_name"] == "SqrtBackward0#1" and found["forward"]["line"] == 4
    assert outcome.status == 1
    bare = tmp_path / "bare"
    adbg("run", "--batch", "--run-dir", str(bare), path)
    text = adbg("diagnose", bare)
    assert text.status == 0 and text.stdout.count("\n") == 1 and "and no node was recorded" in text.stdout, str(text)
    text = adbg("diagnose", folder)
    said = r"diagnosis was not on in this run: \d+ nodes of 1 backward call were looked at, which can be judged for"
    assert re.match(said + " nonfinite alone\n1 finding, an error\n", text.stdout), str(text)
    text = adbg("diagnose", "--only", "zero-grad", folder)
    assert text.status == 0 and text.stdout.count("\n") == 1 and "nothing found" not in text.stdout, str(text)


REPEATED = {
    "seeds": """
import random
train([x * (1 + random.random() * (i == 2)) for i, x in enumerate(rows())])  # DIFFERS
""",
    "the order of a set": """
names = {f"part {n}" for n in range(9)}  # DIFFERS
shares = dict(zip(names, range(9)))
for i, x in enumerate(rows()):
    opt.clear_grad() if hasattr(opt, "clear_grad") else opt.zero_grad()
    # Of the whole order: two parts alone lie where they lay in one of 72 second runs.
    train([x * (1 + sum(shares[f"part {n}"] * 10.0**-n for n in range(7))) if i >= 2 else x])
""",
    "a generator without a seed": """
import numpy as np
def noisy(x):
    return x + float(np.random.default_rng().normal())  # DIFFERS
class Noise:
    def __init__(self, rows):
        self.rows = rows
    def __iter__(self):
        for i, x in enumerate(self.rows):
            yield noisy(x) if i == 2 else x
train(Noise(rows()))
""",
}
SAME = """
import numpy as np, random
random.seed(0)
np.random.seed(0)
for x in rows():
    opt.clear_grad() if hasattr(opt, "clear_grad") else opt.zero_grad()
    train([x * random.random() + float(np.random.rand())])
"""


@on_frameworks()
def test_two_runs_that_do_not_differ(framework: str, tmp_path: Path) -> None:
    outcome = diagnosed(tmp_path, framework, SAME, "--deep", "--only", "run-differs")
    assert outcome.status == 0 and not findings(outcome) and outcome.program_output.count("\n") == 6, str(outcome)
    looked = [(row["kind"], row["result"]) for row in outcome.lines[-1]["examined"]]
    assert looked == [("run-differs", "clear")], str(outcome)


@on_frameworks()
@pytest.mark.parametrize("what", REPEATED)
def test_two_runs_that_differ(framework: str, tmp_path: Path, what: str) -> None:
    outcome = diagnosed(tmp_path, framework, REPEATED[what], "--deep", "--only", "run-differs")
    (found,) = findings(outcome)
    assert (found["kind"], found["severity"], found["backward"]) == ("run-differs", "warning", 3), str(outcome)
    assert found["node"]["unique_name"] and "2 backward calls before are the same" in found["evidence"][1]
    assert found["cause"]["text"].endswith("# DIFFERS") and "1 files" not in str(found), str(outcome)
    assert outcome.lines[-1]["examined"] == [{"kind": "run-differs", "result": "finding", "why": ""}], str(outcome)
    lines = 6 if what == "the order of a set" else 1
    assert outcome.program_output.count("\n") == lines, "the second run is not heard"


@on_frameworks()
def test_what_a_compiled_program_does_not_show(framework: str, tmp_path: Path) -> None:
    """Operators are not watched from there on: that is said of every kind that needs them, and is no all-clear."""
    compiled = {
        "torch": "net = torch.compile(net, backend='eager')",
        "paddle": "net = paddle.jit.to_static(net)",
    }
    outcome = diagnosed(tmp_path, framework, f"{compiled[framework]}\ntrain(rows())")
    check(outcome)
    (end,) = outcome.of("diagnosis")
    rows = {row["kind"]: row for row in end["examined"]}
    assert rows["zero-grad"]["result"] == "finding", str(outcome)
    for kind in ("loss-broadcast", "loss-input"):  # they need nothing else
        assert rows[kind]["result"] == "could not look" and "compiles" in rows[kind]["why"], str(rows[kind])
    text = adbg("diagnose", "--only", "loss-broadcast", tmp_path / "train.py", cwd=tmp_path)
    assert "1 kind of findings could not be looked for" in text.stderr and "compiles" in text.stderr, str(text)

"""A job that runs already, in one session with a process that `adbg join --pid` brings in, as from another host."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.frameworks import only_here
from support.patience import patience
from support.program import Outcome, alive, commands, wait_until

pytestmark = [
    *only_here("torch", "the way in and the way between hosts are the same for every framework"),
    pytest.mark.skipif(sys.platform != "linux", reason="attach needs Linux"),
]
SCRIPT = """
import os, sys, time, hashlib
import torch
torch.set_num_threads(1)
torch.manual_seed(3)
layer = torch.nn.Linear(3, 3)
open(f"{sys.argv[1]}/ready-{os.environ['RANK']}", "w").close()
while not os.path.exists(f"{sys.argv[1]}/finish"):
    layer(torch.ones(2, 3)).tanh().sum().backward()
    time.sleep(0.01)
print(hashlib.sha256(layer.weight.detach().numpy().tobytes()).hexdigest())
"""
ADBG = [sys.executable, "-m", "adbg"]


def _facts(session: Path) -> dict[str, object] | None:
    try:
        facts: dict[str, object] = json.loads((session / "session.json").read_text())
        return facts
    except (OSError, ValueError):
        return None


def test_processes_that_run_already(tmp_path: Path) -> None:
    script, session, copied = tmp_path / "train.py", tmp_path / "s", tmp_path / "copied.json"
    script.write_text(SCRIPT)
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started: list[subprocess.Popen[str]] = []

    def start(*words: object) -> subprocess.Popen[str]:
        started.append(subprocess.Popen([str(word) for word in words], **pipes))  # type: ignore[call-overload]
        return started[-1]

    try:
        ranks = [start("env", f"RANK={n}", "WORLD_SIZE=2", sys.executable, script, tmp_path) for n in (0, 1)]
        for number in (0, 1):
            wait_until((tmp_path / f"ready-{number}").exists, f"rank {number}")
        asked = commands("c &", "rank diff params", "info processes", "detach")
        near = start(
            *ADBG, "attach", "--batch", "--json", "--session", session, "--listen", "127.0.0.1:0", *asked, ranks[0].pid
        )
        wait_until(lambda: near.poll() is not None or _facts(session), "the session")
        copied.touch(mode=0o600)
        facts = _facts(session)
        assert facts is not None, near.communicate()
        copied.write_text(json.dumps({**facts, "socket": "/nowhere/client.sock"}))
        far = start(*ADBG, "join", copied, "--pid", ranks[1].pid)
        output, errors = near.communicate(timeout=patience(90))
        outcome = Outcome(["adbg", "attach"], near.returncode, output, errors, 0.0)
        _, said = far.communicate(timeout=patience(60))
        assert far.returncode == 0 and f"process {ranks[1].pid} has joined the session" in said, f"{said}\n{outcome}"
        (table,) = outcome.of("result", command="info processes")
        assert {row["pid"] for row in table["value"]} == {rank.pid for rank in ranks}, str(outcome)
        (found,) = outcome.of("result", command="rank diff params")
        assert found["value"]["compared"] == 2 and found["value"]["differ"] == 0
        assert all(alive(rank.pid) for rank in ranks), "let go, both train on"
        (tmp_path / "finish").touch()
        hashes = {rank.communicate(timeout=patience(60))[0] for rank in ranks}
        assert [rank.returncode for rank in ranks] == [0, 0] and len(hashes) == 1
    finally:
        (tmp_path / "finish").touch()
        for process in started:
            if process.poll() is None:
                process.kill()
            process.communicate()

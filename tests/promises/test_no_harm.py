"""The promise "no harm": a front end that dies leaves the program to itself, whatever it was doing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.frameworks import FRAMEWORKS, case, debuggee_of, node_of, on_frameworks
from support.program import LIMIT, alive, batch, commands, debuggee, digest_of, plain, wait_until
from support.terminal import Terminal

pytestmark = pytest.mark.xdist_group("no-harm")
DEEP = {"torch": "100000", "paddle": "5000"}  # plain Paddle 3.3.1 itself dies of SIGSEGV when it frees 100,000 nodes
SLOW_STATUS = 7  # slow_training.py ends with it


@pytest.fixture(scope="session")
def slow_digests() -> dict[str, str]:
    return {}


@pytest.fixture
def slow_digest(framework: str, slow_digests: dict[str, str]) -> str:
    """The digest of the plain run, made once."""
    if framework not in slow_digests:
        outcome = plain(debuggee_of(framework, "slow_training"))
        assert outcome.status == SLOW_STATUS
        slow_digests[framework] = outcome.digest
    return slow_digests[framework]


class FrontEnd:
    """``adbg run --batch`` of slow_training.py in a run directory of this test."""

    def __init__(self, framework: str, run_dir: Path, options: Sequence[str]) -> None:
        self.run_dir = run_dir
        command = [sys.executable, "-m", "adbg", "run", "--batch", "--run-dir", str(run_dir), *options]
        command.append(str(debuggee(debuggee_of(framework, "slow_training"))))
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=LIMIT)


def recorded_output(run_dir: Path) -> str:
    path = run_dir / "output-r0.log"
    return path.read_text() if path.exists() else ""


def recorded_exit(run_dir: Path) -> dict[str, Any] | None:
    """The keeper's word on how the program ended; None while it runs."""
    path = run_dir / "exit.json"
    return json.loads(path.read_text()) if path.exists() else None


def check_it_ended_by_itself(run_dir: Path, digest: str) -> None:
    ended = wait_until(lambda: recorded_exit(run_dir), "the program's end")
    assert (ended["code"], ended["signal"]) == (SLOW_STATUS, None)
    output = recorded_output(run_dir)
    assert digest_of(output) == digest
    assert output.count("iteration") == 40


def hold(terminal: Terminal, framework: str, run_dir: Path) -> None:
    """Wait for the stop in the first backward, at the prompt or on the screen."""
    node = node_of(framework, "tanh")
    terminal.wait_for(lambda text: node in text and (text.rstrip().endswith("(adbg)") or "STOPPED" in text))
    assert "iteration 0" not in recorded_output(run_dir)


@on_frameworks()
def test_killed_while_it_runs(framework: str, tmp_path: Path, slow_digest: str) -> None:
    front_end = FrontEnd(framework, tmp_path / "run", ["-b", "NoSuchNodeAnywhere", "-e", "vlog 4"])
    wait_until(lambda: "iteration 3" in recorded_output(front_end.run_dir), "the third iteration")
    front_end.kill()
    assert recorded_exit(front_end.run_dir) is None
    check_it_ended_by_itself(front_end.run_dir, slow_digest)


@on_frameworks()
def test_killed_while_it_is_stopped(framework: str, tmp_path: Path, slow_digest: str) -> None:
    run_dir = tmp_path / "run"
    command = [sys.executable, "-m", "adbg", "run", "--repl", "--run-dir", str(run_dir), "-b", "Tanh"]
    with Terminal([*command, str(debuggee(debuggee_of(framework, "slow_training")))], 40, 120) as terminal:
        hold(terminal, framework, run_dir)
        terminal.kill(signal.SIGKILL)
        assert terminal.wait_end() == 128 + signal.SIGKILL
    check_it_ended_by_itself(run_dir, slow_digest)


@on_frameworks()
def test_killed_in_the_middle_of_a_request(framework: str, tmp_path: Path, slow_digest: str) -> None:
    begun = tmp_path / "begun"
    statement = f"! open({str(begun)!r}, 'w').close(); import time; time.sleep(2)"
    front_end = FrontEnd(framework, tmp_path / "run", ["-b", "Tanh", *commands("continue", statement, "continue")])
    wait_until(begun.exists, "the statement")
    front_end.kill()
    assert "iteration 0" not in recorded_output(front_end.run_dir)
    check_it_ended_by_itself(front_end.run_dir, slow_digest)


WAITS = {  # the others are in tests/engine/session/test_interrupted_jobs.py
    "sleep": "import time; time.sleep(9999)",
    "lock": "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()",
}


@pytest.mark.parametrize("wait", WAITS)
@on_frameworks()
def test_killed_while_an_expression_waits(framework: str, wait: str, tmp_path: Path, slow_digest: str) -> None:
    """In C, where Python looks for nothing: it would wait for ever."""
    begun = tmp_path / "begun"
    statement = f"! open({str(begun)!r}, 'w').close(); {WAITS[wait]}"
    front_end = FrontEnd(framework, tmp_path / "run", ["-b", "Tanh", *commands("continue", statement, "continue")])
    wait_until(begun.exists, "the statement")
    front_end.kill()
    check_it_ended_by_itself(front_end.run_dir, slow_digest)


@pytest.mark.parametrize("front_end", ["--repl", "--screen"])
@on_frameworks()
def test_terminal_closed(framework: str, front_end: str, tmp_path: Path, slow_digest: str) -> None:
    """The window is closed, or the connection dropped: the front end ends, the program goes on and ends by itself."""
    run_dir = tmp_path / "run"
    options = [front_end] if front_end == "--repl" else []
    command = [sys.executable, "-m", "adbg", "run", *options, "--run-dir", str(run_dir), "-b", "Tanh"]
    with Terminal([*command, str(debuggee(debuggee_of(framework, "slow_training")))], 40, 120) as terminal:
        hold(terminal, framework, run_dir)
        terminal.hang_up()
        wait_until(lambda: not alive(terminal.pid), "the front end's end")
    check_it_ended_by_itself(run_dir, slow_digest)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
@pytest.mark.parametrize("front_end", ["--repl", "--screen"])
@on_frameworks()
def test_front_end_told_to_end(
    framework: str, front_end: str, number: signal.Signals, tmp_path: Path, slow_digest: str
) -> None:
    run_dir = tmp_path / "run"
    options = [front_end] if front_end == "--repl" else []
    command = [sys.executable, "-m", "adbg", "run", *options, "--run-dir", str(run_dir), "-b", "Tanh"]
    with Terminal([*command, str(debuggee(debuggee_of(framework, "slow_training")))], 40, 120) as terminal:
        hold(terminal, framework, run_dir)
        terminal.kill(number)
        assert terminal.wait_end() == 128 + number
    check_it_ended_by_itself(run_dir, slow_digest)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """After an ordinary end no process of the session lives on, and its private folder is gone."""
    script = tmp_path / "pids.py"
    script.write_text("import os\nprint('pids', os.getpid(), os.getppid())\n")
    outcome = batch(str(script))
    assert outcome.status == 0, str(outcome)
    pids = [int(word) for word in outcome.program_output.split()[1:]]
    wait_until(lambda: not any(alive(pid) for pid in pids), "the end of program and keeper", 5)
    assert list(Path(os.environ["XDG_RUNTIME_DIR"]).iterdir()) == []


def test_status_of_a_signal(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    outcome = batch(str(script))
    assert outcome.status == 128 + signal.SIGKILL, str(outcome)


@on_frameworks()
@pytest.mark.parametrize(
    "arming",
    [
        ["--no-stacks"],
        ["-b", "NoSuchNodeAnywhere"],
        commands("break Mul* ignore 99", "continue", "where", "p grad_outputs[0]", "step", "next", "delete 1"),
        ["-b", "nonfinite"],
    ],
    ids=["unarmed", "armed", "stopped in the middle", "nan watch"],
)
def test_deep_chain(framework: str, arming: list[str]) -> None:
    """Many nodes in a row: no overflow of the C stack when the graph is freed, no hang."""
    name, length = debuggee_of(framework, "deep_chain"), DEEP[framework]
    outcome = batch(name, *arming, arguments=[length])
    assert outcome.status == 0, str(outcome)
    assert outcome.digest == plain(name, length).digest


@pytest.mark.parametrize(
    "name",
    [
        case(framework, debuggee_of(framework, name))
        for framework in FRAMEWORKS
        for name in ("inplace_error", "wrong_shape")
    ],
)
@pytest.mark.parametrize("stacks", ["--stacks", "--no-stacks"])
def test_error_goes_on_as_it_would(name: str, stacks: str) -> None:
    """A failing backward stops first; then the exception reaches the program unchanged: same status, same last line.

    With stacks on, the framework itself words the end of its message in another way.
    """
    undisturbed = plain(name)
    outcome = batch(name, stacks, *commands("where", "info node"))
    assert [line["reason"] for line in outcome.of("stopped")] == ["error"], str(outcome)
    assert outcome.status == undisturbed.status == 1
    stderr = "".join(line["text"] for line in outcome.of("output", stream="stderr"))
    said, expected = (text.strip().splitlines()[-1] for text in (stderr, undisturbed.stderr))
    if stacks == "--stacks":
        said, expected = said.partition(" Hint: ")[0], expected.partition(" Hint: ")[0]
    if name.startswith("paddle_") and stacks == "--stacks":  # at call stack level 3 Paddle words its text anew
        core = expected.partition(" (at ")[0].rpartition(") ")[2]
        assert core in stderr
        return
    assert said == expected

"""Attach as a user has it: to a process that was started with nothing special, by the real command, and away again."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.frameworks import debuggee_of, on_frameworks, only
from support.patience import patience
from support.program import LIMIT, adbg, alive, commands, debuggee, digest_of, marked, plain, wait_until
from support.terminal import Terminal

ONE = "the way to the process is the same for every framework"


@contextlib.contextmanager
def running(*command: str | Path, until: str, **options: object) -> Iterator[subprocess.Popen[str]]:
    """A program that has said ``until``; killed where the test left it."""
    words = [sys.executable, *map(str, command)]
    with subprocess.Popen(  # type: ignore[call-overload]
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if until in line:
                    break
            else:
                raise AssertionError(process.stderr and process.stderr.read())
            yield process
        finally:
            process.terminate()  # a launcher takes its ranks with it
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience(10))
            process.kill()


def rest_of(process: subprocess.Popen[str]) -> str:
    """Everything it still says, once it ended by itself with 0."""
    output, errors = process.communicate(timeout=patience(LIMIT))
    assert process.returncode == 0, errors
    assert "adbg" not in errors and "Traceback" not in errors, errors  # Paddle itself warns of what it does not find
    return output


@on_frameworks()
def test_a_training_that_nobody_prepared(framework: str, tmp_path: Path) -> None:
    """Stopped, looked at, let go: it ends with the result of a run that nobody looked at."""
    name = debuggee_of(framework, "unprepared")
    done, finish = tmp_path / "done", tmp_path / "finish"
    done.touch()
    expected = plain(name, str(done)).digest
    with running(debuggee(name), finish, until="half") as process:
        threads = set(os.listdir(f"/proc/{process.pid}/task"))
        look = commands("break Sin*", "continue", "p float(grad_outputs[0].sum())", "where", "delete", "next", "detach")
        outcome = adbg("attach", "--batch", "--json", *look, str(process.pid))
        assert outcome.status == 0 and not outcome.of("error"), str(outcome)
        (told,) = [line["text"] for line in outcome.of("notice") if line["text"].startswith("attached")]
        assert f"process {process.pid}" in told and framework in told and f"{name}.py" in told
        assert [stop["reason"] for stop in outcome.of("stopped")][-2:] == ["breakpoint", "step"], str(outcome)
        assert outcome.of("stopped")[-1]["location"]["line"] == marked(name, "backward")
        assert outcome.of("result", command="p float(grad_outputs[0].sum())")[0]["value"] == 4.0
        watched = adbg("attach", "--batch", "--json", "-b", "Sin*", str(process.pid))  # waits for that
        assert [stop["reason"] for stop in watched.of("stopped")] == ["breakpoint"] and watched.status == 0, str(
            watched
        )
        assert process.poll() is None
        wait_until(lambda: set(os.listdir(f"/proc/{process.pid}/task")) <= threads, "no thread of adbg's is left")
        finish.touch()
        assert digest_of(rest_of(process)) == expected


@only("torch", ONE)
def test_a_process_without_a_backward(tmp_path: Path) -> None:
    """It waits for bytes that do not come: the pause is not waited for in silence, and the process not ended."""
    script = tmp_path / "waiting.py"
    script.write_text(
        "import socket, sys\n"
        "inner = socket.socket(fileno=int(sys.argv[1]))\n"
        "print('up', flush=True)\n"
        "def waits_for_bytes():\n"
        "    return inner.recv(5)\n"
        "print(waits_for_bytes().decode(), flush=True)\n"
    )
    outer, inner = socket.socketpair()
    with outer, inner, running(script, str(inner.fileno()), until="up", pass_fds=[inner.fileno()]) as process:
        outcome = adbg("attach", "--batch", *commands("pause", "info processes"), str(process.pid))
        assert outcome.status == 0, str(outcome)
        assert "has reached no node in 5 s" in outcome.stderr and "waits_for_bytes" in outcome.stderr, str(outcome)
        assert "running" in outcome.stdout, "the next command is run"
        asked = adbg("attach", "--batch", "--timeout", "3", *commands("continue"), str(process.pid))
        assert asked.status == 124 and "lets go" in asked.stderr, str(asked)
        assert process.poll() is None
        outer.sendall(b"bytes")
        assert rest_of(process) == "bytes\n"


@only("torch", ONE)
def test_the_prompt_of_a_program_that_runs_on(tmp_path: Path) -> None:
    """Attached without a breakpoint there is a prompt at once; what is typed acts; leaving leaves it running."""
    finish = tmp_path / "finish"
    with running(debuggee("unprepared"), finish, until="half") as process:
        command = [sys.executable, "-m", "adbg", "attach", "--repl", str(process.pid)]
        with Terminal(command, 40, 120) as terminal:
            terminal.wait_for(lambda text: "attached to process" in text and text.rstrip().endswith("(adbg)"))
            terminal.send("pause\r")
            terminal.wait_for("Paused, before SumBackward0")
            terminal.send("quit\r")
            assert terminal.wait_end() == 0
        assert alive(process.pid)
        finish.touch()
        assert len(digest_of(rest_of(process))) == 64


@only("torch", ONE)
def test_all_ranks_of_a_launcher(tmp_path: Path) -> None:
    """torchrun and two ranks, none of them prepared: all are entered by the launcher's number, or by one rank's."""
    finish = tmp_path / "finish"
    job = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    quiet = {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"}
    with running(*job, debuggee("rank_job"), finish, until="rank", env=quiet) as launcher:
        ranks = wait_until(lambda: both_ranks(launcher.pid), "two ranks")
        for pid in (launcher.pid, ranks[1]):
            look = commands("break Sin*", "continue", "continue all", "delete", "info processes", "detach")
            outcome = adbg("attach", "--batch", "--json", "--job", *look, str(pid))
            assert outcome.status == 0, str(outcome)
            told = [line["text"] for line in outcome.of("notice") if line["text"].startswith("attached")]
            assert len(told) == 2, str(outcome)
            (processes,) = outcome.of("result", command="info processes")
            assert {row["pid"] for row in processes["value"]} == set(ranks), str(outcome)
        finish.touch()
        output, errors = launcher.communicate(timeout=patience(LIMIT))
        assert launcher.returncode == 0, errors
        assert len(digest_of(output)) == 64


def both_ranks(launcher: int) -> list[int] | None:
    """The launcher's children by rank, once both have the framework's threads."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    found = {}
    for child in children:
        environment = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        for word in environment:
            if word.startswith(b"RANK="):
                found[int(word[5:])] = int(child)
    return [found[0], found[1]] if len(found) == 2 else None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("way", ["pid", "job"])
@only("torch", ONE)
def test_a_process_that_ends_while_adbg_is_in_it(way: str, tmp_path: Path) -> None:
    """Its status is not adbg's, and that is said."""
    finish = tmp_path / "finish"
    with running(debuggee("unprepared"), finish, until="half") as process:
        words = ["--job"] if way == "job" else []
        lines = commands(f"! open({str(finish)!r}, 'w').close()", "continue", "continue")
        outcome = adbg("attach", "--batch", *words, "-e", "pause", *lines, str(process.pid))
        assert outcome.status == 0, str(outcome)
        assert len(digest_of(rest_of(process))) == 64

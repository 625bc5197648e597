"""Children of a debugged process: adbg comes into a forked one as it begins to train, and into no other; what ends a
child of ``multiprocessing`` is seen, however it was started."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.dialled import Dialled
from support.frameworks import node_of, on_frameworks, only
from support.program import Outcome, adbg, commands, own_lines

from adbg.engine.agent.child_process import ForkedChild
from adbg.engine.backends.common.observing.training_start import TrainingStart
from adbg.engine.protocol.rendezvous import SessionConfig

PARTS = {
    "torch": """
import torch as fw
seed = fw.manual_seed
def descent(model):
    return fw.optim.SGD(model.parameters(), 0.1)
def clear(opt):
    opt.zero_grad()
""",
    "paddle": """
import paddle as fw
seed = fw.seed
def descent(model):
    return fw.optimizer.SGD(0.1, parameters=model.parameters())
def clear(opt):
    opt.clear_grad()
""",
}
# Two ranks, each with a pool of its own; beside them a pool that trains nothing.
RANKS = """
import multiprocessing, os, sys
def train(rank):
    seed(rank)
    model = fw.nn.Sequential(fw.nn.Linear(4, 8), fw.nn.ReLU(), fw.nn.Linear(8, 1))
    opt = descent(model)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        for step in range(4):
            assert pool.map(abs, [-1]) == [1]
            out = model(fw.randn([16, 4]))
            loss = fw.tanh(out).square().mean()  # LOSS
            loss.backward()
            opt.step()
            clear(opt)
    os.write(1, f"rank {rank}: {loss.item()!r}\\n".encode())
def held(number):
    return number
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.map(held, [1, 2])
    for rank in range(2):
        rank = multiprocessing.get_context("fork").Process(target=train, args=(rank,))
        rank.start()
        rank.join()
        print("exit status", rank.exitcode, flush=True)
"""
RAISES = """
import multiprocessing, sys
def train(rank):
    model = fw.nn.Linear(4, 1)
    model(fw.ones([2, 4])).sum().backward()
    raise ValueError("what ends it")  # RAISED
if __name__ == "__main__":
    rank = multiprocessing.get_context(sys.argv[1]).Process(target=train, args=(0,))
    rank.start()
    rank.join()
    print("exit status", rank.exitcode)
"""


def written(folder: Path, framework: str, program: str) -> Path:
    script = folder / "train.py"
    script.write_text(PARTS[framework] + program)
    return script


def line_of(script: Path, mark: str) -> int:
    return next(number for number, line in enumerate(script.read_text().splitlines(), 1) if f"# {mark}" in line)


def run_batch(script: Path, *lines: str, arguments: tuple[str, ...] = ()) -> Outcome:
    return adbg("run", "--batch", "--json", *commands(*lines), script, *arguments, cwd=script.parent)


@on_frameworks()
def test_ranks_that_are_forked_are_debugged_and_what_trains_nothing_is_not(framework: str, tmp_path: Path) -> None:
    """Witness: what the program prints without adbg; the operating system's tree of processes has six."""
    script = written(tmp_path, framework, RANKS)
    plain = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path)
    ran = run_batch(script, f"b {node_of(framework, 'tanh')}", "c", "info processes", "c", *["c"] * 7)
    stops = ran.of("stopped")
    assert [stop["backward"] for stop in stops] == [1, 2, 3, 4] * 2, str(ran)
    assert {stop["forward"]["line"] for stop in stops} == {line_of(script, "LOSS")}, str(ran)
    assert len({stop["process"] for stop in stops}) == 2, str(ran)
    (processes,) = (line["text"] for line in ran.of("result") if line["command"] == "info processes")
    assert len(processes.splitlines()) == 3, f"a header, the program and a rank; nothing of a pool\n{processes}"
    # Between these Paddle tells, with the time, of the SIGTERM by which a pool is ended.
    told, expected = (re.findall(r"^(?:rank|exit) .*", text, re.M) for text in (ran.program_output, plain.stdout))
    assert told == expected and len(expected) == 4, f"{ran}\n{plain.stdout}"
    assert ran.status == 0, str(ran)


@pytest.mark.parametrize("method", ["fork", "spawn"])
@on_frameworks()
def test_without_a_breakpoint_the_first_process_that_calls_backward_stops_there(
    framework: str, method: str, tmp_path: Path
) -> None:
    """The main process never does, and the second child is not stopped again."""
    script = written(
        tmp_path, framework, RANKS.replace('get_context("fork").Process', f'get_context("{method}").Process')
    )
    ran = run_batch(script, "step", "info processes", "c")
    (stop,) = ran.of("stopped")
    assert (stop["reason"], stop["backward"]) == ("entry", 1), str(ran)
    assert stop["process"] == 2, str(ran)
    assert len(re.findall(r"^rank \d", ran.program_output, re.M)) == 2 and ran.status == 0, str(ran)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@on_frameworks()
def test_an_exception_that_ends_a_child_is_shown_at_its_line(framework: str, method: str, tmp_path: Path) -> None:
    script = written(tmp_path, framework, RAISES)
    ran = run_batch(script, "b error", "c", arguments=(method,))
    (stop,) = ran.of("stopped")
    assert "ValueError: what ends it" in stop["message"], str(ran)
    assert stop["location"]["line"] == line_of(script, "RAISED"), str(ran)
    assert "exit status 1" in ran.program_output, str(ran)
    errors = "".join(line["text"] for line in ran.of("output", stream="stderr")) + ran.stderr
    assert "ValueError: what ends it" in errors and not own_lines(errors), str(ran)


@only("torch", "the import is watched by the same finder for every framework")
def test_a_child_that_imports_the_framework_itself_is_debugged(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("""
import os
if os.fork() == 0:
    import torch
    x = torch.ones(3, requires_grad=True)
    x.tanh().sum().backward()
    print(x.grad.tolist(), flush=True)
    os._exit(0)
os.wait()
""")
    ran = run_batch(script, "b TanhBackward0", "c", "p grad * 0 + 2", "set grad 2", "c")
    (stop,) = ran.of("stopped")
    assert stop["backward"] == 1 and stop["forward"]["line"] == 6, str(ran)


@only("torch", "the agent's part is the same for every framework")
def test_a_child_runs_on_by_itself_where_nobody_listens(tmp_path: Path) -> None:
    """``detach`` before the fork; and a front end that is gone by the time the child trains."""
    text = """
import os, sys, time, torch
x = torch.ones(3, requires_grad=True)
x.tanh().sum().backward()
if os.fork() == 0:
    while len(sys.argv) > 1 and not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    (x * 2).sum().backward()
    os.write(1, f"child {x.grad.tolist()}\\n".encode())
    os._exit(0)
print("status", os.wait()[1])
"""
    with Dialled(tmp_path, text) as run:
        run.peer.begin("TanhBackward0")
        run.peer.stopped()
        run.peer.close()
        status, out, err = run.end()
    assert status == 0 and "child" in out and "status 0" in out and err == "", err


@only("torch", "the agent's part is the same for every framework")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_threads_that_go_on_after_the_target_are_debugged(method: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("""
import multiprocessing, sys, threading, time, torch
def work():
    for _ in range(3):
        time.sleep(0.3)
        torch.ones(3, requires_grad=True).tanh().sum().backward()
    print("worked", flush=True)
def target():
    torch.ones(1, requires_grad=True).exp().backward()
    threading.Thread(target=work).start()
if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[1]).Process(target=target)
    child.start()
    child.join()
""")
    ran = run_batch(script, "b TanhBackward0", "c", "c", "c", "c", arguments=(method,))
    assert [stop["backward"] for stop in ran.of("stopped")] == [2, 3, 4], str(ran)
    assert "worked" in ran.program_output, str(ran)


@only("torch", "the agent's part is the same for every framework")
def test_an_exception_that_is_handled_around_the_fork_ends_no_child(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("""
import multiprocessing, torch
def train():
    torch.ones(3, requires_grad=True).tanh().sum().backward()
if __name__ == "__main__":
    try:
        raise OSError("no checkpoint")
    except OSError:
        child = multiprocessing.get_context("fork").Process(target=train)
        child.start()
        child.join()
    print("exit status", child.exitcode)
""")
    ran = run_batch(script, "b error", "c")
    assert not ran.of("stopped") and "exit status 0" in ran.program_output, str(ran)


@only("torch", "the agent's part is the same for every framework")
def test_a_lock_of_adbgs_that_a_thread_held_at_the_fork_is_not_waited_for(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("""
import os, threading, time, torch
def parses():
    from adbg.engine import places
    with places._PARSES:
        time.sleep(3)
torch.ones(3, requires_grad=True).sum().backward()
threading.Thread(target=parses, daemon=True).start()
time.sleep(0.5)
if os.fork() == 0:
    net = torch.nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    opt.zero_grad()
    os.write(1, b"child trains\\n")
    os._exit(0)
os.wait()
""")
    ran = adbg("diagnose", "--json", script, cwd=tmp_path)
    assert "child trains" in ran.program_output and ran.status == 0, str(ran)


def test_a_child_whose_front_end_is_gone_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    started: list[SessionConfig] = []
    there = tmp_path / "s"
    child = ForkedChild(SessionConfig(str(there), ""), started.append)
    child.trains()
    assert started == [] and capsys.readouterr() == ("", "")
    there.touch()
    child = ForkedChild(SessionConfig(str(there), ""), started.append)
    child.trains()
    child.trains()
    assert len(started) == 1, "what waits for it tells it once each"


def test_a_child_that_cannot_be_debugged_runs_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(config: SessionConfig) -> None:
        raise ValueError(config.token)

    (tmp_path / "s").touch()
    ForkedChild(SessionConfig(str(tmp_path / "s"), "why"), fails).trains()
    assert f"process {os.getpid()} runs undebugged: ValueError: why" in capsys.readouterr().err


# ------------------------------------------------------------------ what waits in it


def owner() -> Any:
    return SimpleNamespace(one=lambda x: x + 1, two=lambda: 2)


def test_the_first_call_tells_once_and_everything_is_as_it_was() -> None:
    of, told = owner(), []
    one, two = of.one, of.two
    TrainingStart([(of, "one"), (of, "two"), (of, "absent")], lambda: told.append(of.one is one))
    assert of.one is not one and of.two is not two and told == [] and not hasattr(of, "absent")
    assert of.one(1) == 2 and told == [True], "told before the call, with all of it put back"
    assert of.one is one and of.two is two
    assert of.two() == 2 and len(told) == 1


def test_a_call_that_begins_goes_through_what_the_debugger_put_there() -> None:
    of = owner()

    def comes_in() -> None:
        of.one = lambda x: -x

    TrainingStart([(of, "one")], comes_in)
    assert of.one(1) == -1


def test_what_another_tool_wrapped_stays() -> None:
    of, told = owner(), []
    TrainingStart([(of, "one"), (of, "two")], lambda: told.append(1))
    inner: Callable[[int], int] = of.one
    of.one = wrapper = lambda x: inner(x) * 10
    assert of.one(1) == 20 and of.one is wrapper and told == [1]
    assert of.one(2) == 30 and told == [1]

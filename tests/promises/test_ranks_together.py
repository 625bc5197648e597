"""Ranks stop together and go on together: real jobs over gloo. The witness is what the ranks print, with adbg and
without."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.frameworks import only
from support.job import LAUNCHER, told, torchrun
from support.patience import patience
from support.program import Outcome, adbg, alive, commands, debuggee, run, wait_until

from adbg.engine.protocol import messages as protocol
from adbg.tui.commands.table import execute
from adbg.tui.debugger import events
from adbg.tui.debugger.debugger import Debugger, State
from adbg.tui.debugger.job.ranks import Life
from adbg.tui.debugger.program import Script, StartedProgram

SHORT = 3  # seconds that a collective waits for the other ranks
STAND = "! import time; time.sleep(5)"  # longer than that


def job(*options: str, steps: int = 4) -> Outcome:
    return adbg("run", "--batch", "--json", *options, "--", *torchrun(2, debuggee("ranks"), steps, SHORT), limit=240)


@only("torch", "torchrun; Paddle's launcher is below")
def test_a_long_stop_of_one_rank_costs_nothing() -> None:
    plain = run(torchrun(2, debuggee("ranks"), 4, SHORT), limit=240)
    assert plain.status == 0, str(plain)
    lines = ["c", "info ranks", "rank all p scale", STAND, "info ranks", "rank 1 step", "delete", "c"]
    outcome = job("-b", "Tanh* rank 1 backward 2", *commands(*lines))
    assert outcome.status == 0, str(outcome)
    assert told(outcome.program_output, "END") == told(plain.stdout, "END")
    assert told(outcome.program_output, "TIMEOUT") == {0: f"{SHORT}.0", 1: f"{SHORT}.0"}, "put back before the end"
    assert [(line["rank"], line["reason"]) for line in outcome.of("stopped")] == [(1, "breakpoint"), (1, "step")]
    first, second = (table["value"] for table in outcome.of("result", command="info ranks"))
    pids = {rank: int(text.split()[1]) for rank, text in told(outcome.program_output, "RANK").items()}
    assert {row["rank"]: row["pid"] for row in first} == pids
    assert second[1]["state"] == "stopped" and second[0]["waits"], "rank 0 waits for rank 1"
    assert second[0]["collective"]["op"] == "all_reduce" and second[0]["gives_up_in"] > 3600
    assert [row["own"] for row in second[0]["timeouts"]] == [SHORT]


@only("torch", "a time-out that can be raised")
def test_without_that_it_would_have_ended_the_job() -> None:
    lines = ["set group-timeout keep", "c", STAND, "c"]
    outcome = job("-b", "Tanh* rank 1 backward 2", *commands(*lines))
    assert outcome.status != 0 and "Timed out waiting" in outcome.stdout, str(outcome)


@only("torch", "a time-out that can be raised")
def test_both_stop_and_the_last_bit_shows_and_detach_leaves_nothing() -> None:
    lines = ["c", "rank all p scale", "rank all p index", "rank all step", "rank all p index", "detach"]
    outcome = job("-b", "Tanh* backward 2", *commands(*lines))
    assert outcome.status == 0, str(outcome)
    scale, index, after = (line["value"] for line in outcome.of("result") if line["command"].startswith("rank all p"))
    values = [row["value"] for row in scale["ranks"]]
    assert not scale["same"] and f"{values[0]:.6g}" == f"{values[1]:.6g}" and values[0] != values[1]
    assert index["same"] and after["same"] and after["ranks"][0]["value"] == index["ranks"][0]["value"] + 1
    assert told(outcome.program_output, "TIMEOUT") == {0: f"{SHORT}.0", 1: f"{SHORT}.0"}


@only("torch", "torchrun, which gives each rank a session of its own")
def test_kill_ends_the_ranks_too() -> None:
    with watched(torchrun(2, debuggee("ranks"), 1_000_000, 60)) as (debugger, wrote):
        wait_until(lambda: len(told(wrote(), "RANK")) == 2 and len(debugger.ranks.connected()) == 2, "two ranks", 120)
        pids = [int(text.split()[1]) for text in told(wrote(), "RANK").values()]
        assert all(map(alive, pids))
        debugger.kill()
        assert debugger.model.wait_state(State.EXITED, timeout=patience(60))
        wait_until(lambda: not any(map(alive, pids)), "no rank runs on", 30)


LIVES = """
import multiprocessing, os, pathlib, sys, time
from datetime import timedelta
import torch, torch.distributed as dist

def backward_until(stop):
    torch.set_num_threads(1)
    x = torch.ones(3, requires_grad=True)
    while not stop.exists():
        x.tanh().sum().backward()
        time.sleep(0.02)

if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank < count:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=count)
        dist.barrier()
    if rank == 0:
        worker = multiprocessing.get_context("spawn").Process(target=backward_until, args=(folder / "stop",))
        worker.start()
        os.write(1, f"WORKER 0 {worker.pid}\\n".encode())  # in one piece: the ranks share a pipe
    os.write(1, f"RANK {rank} {os.getpid()}\\n".encode())
    backward_until(folder / "stop")
    if rank == 0:
        worker.join()
    os._exit(20 + rank)
"""


@contextmanager
def watched(command: list[str]) -> Iterator[tuple[Debugger, Callable[[], str]]]:
    """A debugger of the command, which has begun; and what the program wrote so far."""
    debugger = Debugger(StartedProgram(Script(command, "job", mode="split", record=False, python=False)))
    wrote: list[str] = []
    lock = threading.Lock()

    def listen(event: events.Event) -> None:
        if isinstance(event, events.Output):
            with lock:
                wrote.append(event.text)

    debugger.model.subscribe(listen)
    debugger.start()
    try:
        debugger.begin(False)
        yield debugger, lambda: "".join(wrote)
    finally:
        debugger.close()


@only("torch", "a job of four; what is tested is the front end's")
def test_a_rank_that_dies_or_comes_late_changes_its_row_alone(tmp_path: Path) -> None:
    launcher, script = tmp_path / "launcher.py", tmp_path / "lives.py"
    launcher.write_text(LAUNCHER)
    script.write_text(LIVES)
    with watched([sys.executable, str(launcher), "4", str(tmp_path), str(script)]) as (debugger, wrote):
        ranks = debugger.ranks

        def lives() -> dict[int, Life]:
            return {row.rank: row.life for row in ranks.members()}

        wait_until(lambda: len(told(wrote(), "RANK")) == 4 and len(ranks.connected()) == 4, "four ranks", 120)
        pids = {rank: int(text) for rank, text in told(wrote(), "RANK").items()}
        worker = int(told(wrote(), "WORKER")[0])
        wait_until(lambda: worker in [p.info.pid for p in debugger.processes], "rank 0's worker connects", 120)
        assert {row.rank: row.process.info.pid for row in ranks.members()} == pids, "launcher and worker are no ranks"
        debugger.pause()
        wait_until(lambda: set(lives().values()) == {Life.STOPPED}, "all ranks stand", 60)
        shown, stop = debugger.current, debugger.stop
        assert shown is not None and stop is not None
        if ranks.of(shown) is None:  # the worker came first
            execute(debugger, "rank 0")
            shown, stop = debugger.current, debugger.stop
        assert shown is not None
        victim = next(rank for rank in (1, 2, 3) if rank != shown.rank)
        os.kill(pids[victim], signal.SIGKILL)
        wait_until(lambda: lives()[victim] is Life.LOST, "its row says so", 60)
        others = {rank: life for rank, life in lives().items() if rank != victim}
        assert set(others.values()) == {Life.STOPPED} and debugger.stop is stop and debugger.state is State.STOPPED
        (tmp_path / "late").touch()
        wait_until(lambda: lives().get(4) is Life.STOPPED, "the fifth comes late, and stops with them", 120)
        assert debugger.stop is stop
        os.kill(pids[shown.rank], signal.SIGKILL)
        wait_until(lambda: debugger.current is not shown and debugger.stop is not None, "another one is shown", 60)
        assert debugger.state is State.STOPPED and lives()[shown.rank] is Life.LOST
        if ranks.of(debugger.current) is None:  # the worker's own stop, which is shown first
            debugger.resume(protocol.Continue())
        assert ranks.of(debugger.current) is not None and set(lives().values()) == {Life.LOST, Life.STOPPED}
        debugger.resume(protocol.Continue())
        assert set(lives().values()) == {Life.LOST, Life.RUNNING}, "all that live go on together"
        if debugger.stop is not None:
            debugger.resume(protocol.Continue())
        (tmp_path / "stop").touch()
        assert debugger.model.wait_state(State.EXITED, timeout=patience(60))
        expected = [-9 if rank in (victim, shown.rank) else 20 + rank for rank in range(5)]
        assert f"LAUNCHER saw {expected}" in wrote()
        assert debugger.run.exit_code == 5, "the launcher's status"
        assert {rank for rank, life in lives().items() if life is Life.LOST} == set(range(5)), "os._exit says no word"
        assert not any(alive(pid) for pid in pids.values())


PADDLE = """
import os, sys
import paddle, paddle.distributed as dist

dist.init_parallel_env()
rank = dist.get_rank()
x = paddle.to_tensor([1.0, 2.0, 3.0 + rank])
x.stop_gradient = False
for step in range(4):
    paddle.tanh(x).sum().backward()
    total = paddle.assign(x.grad)
    dist.all_reduce(total)
    x.clear_grad()
open(os.path.join(sys.argv[1], f"end{rank}"), "w").write(repr(total.tolist()))
"""


@only("paddle", "paddle.distributed.launch")
def test_paddles_own_launcher(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(PADDLE)
    launch = [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--backend", "gloo"]
    command = [*launch, "--log_dir", str(tmp_path / "log"), str(script), str(tmp_path)]
    plain = run(command, limit=240)
    assert plain.status == 0, str(plain)
    expected = [(tmp_path / f"end{rank}").read_text() for rank in range(2)]
    lines = ["c", "info ranks", "rank all p step", "rank all p x", "c"]
    outcome = adbg(
        "run", "--batch", "--json", "-b", "*anh* rank 1 backward 2", *commands(*lines), "--", *command, limit=240
    )
    assert outcome.status == 0, str(outcome)
    assert [(tmp_path / f"end{rank}").read_text() for rank in range(2)] == expected
    assert [(line["rank"], line["reason"]) for line in outcome.of("stopped")] == [(1, "breakpoint")]
    (table,) = outcome.of("result", command="info ranks")
    assert [row["rank"] for row in table["value"]] == [0, 1], "the launcher is none"
    told_of = {(row["backend"], row["own"], row["adjustable"]) for row in table["value"][1]["timeouts"]}
    assert told_of == {("gloo", 30.0, False)}
    assert "paddle has no way to change that" in table["text"]

"""The program whose training steps are timed, with adbg's agent in it. Started by run_bench.py, whose front end it
dials.

    python bench_program.py FRAMEWORK SESSION_JSON MODEL ROUNDS SECONDS THREADS

All modes live in this one process and take turns in every round, in shuffled order, so that what else the machine does
hits all alike. "plain" is with the agent detached: no hook, no patch of the framework is there. Prints one JSON object;
``native`` there says whether the extension did the work, or the Python hooks.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
from workload import Workload

from adbg.engine.agent import agent as agents
from adbg.engine.native import load
from adbg.engine.protocol import messages as p
from adbg.engine.protocol.rendezvous import read_config
from adbg.engine.record.observers import Recording
from adbg.engine.record.recorder import Recorder
from adbg.engine.session.session import Session

ITERATIONS = (1_000, 5_000, 10_000)  # after which memory is looked at
SETTLE = 0.05  # seconds
SLOW = {"DebugMode", "profiler", "vlog 6 adbg", "vlog 6 file"}  # modes whose turns have an eighth of the steps
# Of a model with longer steps than this, in seconds: what was asked for it, in turns of two steps.
LARGE_STEP = 0.4
LARGE = ("plain", "plain again", "unarmed", "everything", "nan watch", "anomaly")
Mode = Callable[[], contextlib.AbstractContextManager[object]]
# Nothing of these matches anywhere, each is decided in another way.
NEVER = ("NoSuchNodeAnywhere", "nowhere.py:10", "module:no.such.module")


@contextlib.contextmanager
def recorded(session: Session) -> Iterator[None]:
    """Every node that runs goes into a run directory of its own."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder.open(folder)
        every = Recording(recorder)
        every.every = True
        session.observe(every)
        try:
            yield
        finally:
            session.unobserve(every)
            recorder.close()


def make_modes(agent: agents.Agent) -> dict[str, Mode]:
    """What a training step is run under, by name."""
    import torch
    from torch.utils._debug_mode import DebugMode

    session = agent.session

    @contextlib.contextmanager
    def attached(*breakpoints: str, stacks: bool = False) -> Iterator[None]:
        session.set_stacks(stacks)
        session.attach()
        requests = [p.BreakpointRequest(text, id=number) for number, text in enumerate(breakpoints, 1)]
        states = session.set_breakpoints(requests)
        assert all(state.verified for state in states), states
        try:
            yield
        finally:
            session.detach()

    @contextlib.contextmanager
    def recording() -> Iterator[None]:
        with recorded(session), attached():
            yield

    @contextlib.contextmanager
    def anomaly(check_nan: bool) -> Iterator[None]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.autograd.set_detect_anomaly(True, check_nan=check_nan):
                yield

    return {
        "plain": contextlib.nullcontext,
        "plain again": contextlib.nullcontext,
        "unarmed": attached,
        "breakpoint": lambda: attached(NEVER[0]),
        "line": lambda: attached(NEVER[1], stacks=True),
        "module": lambda: attached(NEVER[2], stacks=True),
        "stacks": lambda: attached(stacks=True),
        "nan watch": lambda: attached("nonfinite"),
        "everything": lambda: attached(*NEVER, "nonfinite", stacks=True),
        "record": recording,
        "anomaly, no check": lambda: anomaly(False),
        "anomaly": lambda: anomaly(True),
        "profiler": lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
        "DebugMode": DebugMode,
    }


class Turn(NamedTuple):
    """Seconds per step: ``wall``, and ``cpu`` of all threads of this process, which hears less of other work on the
    machine, and hears of what adbg's own threads do on another core."""

    wall: float
    cpu: float


def timed(step: Callable[[], None], mode: Mode, steps: int) -> Turn:
    """Over ``steps`` of them. Those of the first SETTLE are not counted: what a mode starts beside the program (a
    process behind the log) has begun by then."""
    with mode():
        settled = time.perf_counter() + SETTLE
        step()
        while time.perf_counter() < settled:
            step()
        gc.collect()
        started, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            step()
        return Turn((time.perf_counter() - started) / steps, (time.process_time() - cpu) / steps)


def measure(workload: Workload, modes: dict[str, Mode], rounds: int, seconds: float) -> dict[str, object]:
    """``rounds`` rounds of every mode; as many steps in a turn as take ``seconds`` in plain Python (4 at least). A
    third of the rounds where a step is long."""
    for _ in range(5):
        workload.step()
    one = timed(workload.step, modes["plain"], 5).wall
    large = one > LARGE_STEP
    steps = 2 if large else max(4, round(seconds / one))
    turns: dict[str, list[Turn]] = {name: [] for name in modes if not large or name in LARGE}
    order = list(turns)
    rounds = max(3, rounds // 3) if large else rounds
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            turn = max(4, steps // 8) if name in SLOW else steps
            turns[name].append(timed(workload.step, modes[name], turn))
    native = load.core()[0] is not None
    return {
        "nodes": workload.nodes,
        "steps": steps,
        "rounds": rounds,
        "times": {name: [turn.wall for turn in each] for name, each in turns.items()},
        "cpu_times": {name: [turn.cpu for turn in each] for name, each in turns.items()},
        "native": native,
    }


def memory(workload: Workload, mode: Mode, iterations: Sequence[int]) -> dict[int, float]:
    """Megabytes that the process holds under ``mode`` after so many iterations."""
    found = {}
    with mode():
        for number in range(1, iterations[-1] + 1):
            workload.step()
            if number in iterations:
                gc.collect()
                found[number] = psutil.Process().memory_info().rss / 1e6
    return found


def stop_for_round_trips(agent: agents.Agent) -> None:
    """Hold at a node of a tiny transformer; the front end asks its questions and goes on."""
    import bench_models

    workload = bench_models.make("tiny transformer")
    agent.session.attach()
    agent.session.set_breakpoints([p.BreakpointRequest("Softmax", id=1, temporary=True)])
    workload.step()
    agent.session.detach()


def measure_paddle(agent: agents.Agent, model: str, rounds: int, seconds: float) -> dict[str, object]:
    """The same on Paddle, whose threads are what OMP_NUM_THREADS said when it was imported."""
    import bench_paddle_models
    import bench_paddle_modes
    import paddle

    assert agent.session.backends, "the agent took no notice of paddle"
    agent.session.detach()
    modes = bench_paddle_modes.make_modes(agent)
    if model == "memory":
        return {"megabytes": memory(bench_paddle_models.make("small operators"), modes["everything"], ITERATIONS)}
    result = measure(bench_paddle_models.make(model), modes, rounds, seconds)
    return {**result, "version": paddle.__version__, "threads": int(os.environ["OMP_NUM_THREADS"])}


def main() -> None:
    sys.modules["bench_program"] = sys.modules["__main__"]  # the models' own imports of it
    framework, session_file, model, rounds, seconds, threads = sys.argv[1:]
    agent = agents.start(read_config(Path(session_file)))
    assert agent is not None
    if framework == "paddle":
        print(json.dumps({"model": model, **measure_paddle(agent, model, int(rounds), float(seconds))}))
        return
    import torch

    torch.set_num_threads(int(threads))
    assert agent.session.backends, "the agent took no notice of torch"
    if model == "round trips":
        stop_for_round_trips(agent)
        print("{}")
        return
    agent.session.detach()
    import bench_models

    if model == "memory":
        held = memory(bench_models.make("tiny transformer"), make_modes(agent)["everything"], ITERATIONS)
        print(json.dumps({"megabytes": held}))
        return
    result = measure(bench_models.make(model), make_modes(agent), int(rounds), float(seconds))
    print(json.dumps({"model": model, **result, "version": torch.__version__, "threads": torch.get_num_threads()}))


if __name__ == "__main__":
    main()

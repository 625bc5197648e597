"""What each profiler costs a training step: begun by adbg, and the same tool begun by hand, beside plain steps.

    python tests/bench/bench_profilers.py [--framework torch|paddle] [--rounds N] [--seconds S] [--model NAME]...
                                          [--with NAME]...

All modes live in one process and take turns in every round, in shuffled order. A ratio is to the plain turn of the
same round, the median over the rounds. Asked of adbg's: the tool by hand + 3 %; of the node timer 1.5 on a tiny model,
1.05 on a medium one. Writes bench-results/profilers[-paddle].md and .json.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import functools
import importlib
import importlib.util
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench_program import Mode, timed
from workload import Workload

from adbg.engine.backends import REGISTRY as BACKENDS
from adbg.engine.protocol import messages as p
from adbg.engine.session.session import Session
from adbg.profiles import registry
from adbg.profiles.control import Profiling
from adbg.profiles.profilers import pyspy, yep

MODELS = {"torch": ("tiny LSTM", "medium transformer"), "paddle": ("small operators", "resnet18")}
NAMES = {
    "torch": ("cprofile", "yep", "py-spy", "torch", "nodes"),
    "paddle": ("cprofile", "yep", "py-spy", "paddle", "nodes"),
}
STEPS = 40  # of a turn at least, as README's region has: the first ones are measured more densely
ASKED = 1.03  # of the tool by hand
ASKED_NODES = (1.5, 1.05)  # tiny, medium

_FRONT_END = """
import sys
from adbg.profiles import registry
from adbg.profiles.region import Region
profiler = registry.make("py-spy")
profiler.pid = int(sys.argv[1])
profiler.start(Region("run"), sys.argv[2])
print("begun", flush=True)
sys.stdin.read()
profiler.stop()
"""


class _Silent:
    def event(self, body: object, droppable: bool = False) -> None:
        """Nobody is there."""


class Modes:
    """Each is entered for one turn; what a turn leaves goes with ``folder``."""

    def __init__(self, framework: str, folder: str) -> None:
        self._folder = folder
        self._framework = framework
        self._session = Session(_Silent())
        self._session.set_filters([])
        self._session.add_backend(BACKENDS[framework]())
        self._profiling = Profiling(self._session, lambda body: None, lambda: folder)
        self._session.observe(self._profiling)

    def _path(self) -> str:
        return tempfile.mkdtemp(dir=self._folder)

    @contextlib.contextmanager
    def by_adbg(self, name: str) -> Iterator[None]:
        self._session.set_stacks(name == "nodes")  # as `adbg profile` has it
        self._session.attach()
        self._profiling.answer(p.Profile("start", name, p.ProfileRegion("run")))
        for _ in range(100):  # a profiler of one thread begins between two of its instructions
            if self._profiling.state().state == "running":
                break
        assert self._profiling.state().state == "running", self._profiling.state()
        try:
            yield
        finally:
            self._profiling.answer(p.Profile("stop"))
            self._session.detach()

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """py-spy, which the front end starts: here too another process, for it samples every thread of this one."""
        command = [sys.executable, "-c", _FRONT_END, str(os.getpid()), self._path()]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdin is not None and child.stdout is not None
            assert child.stdout.readline() == b"begun\n", "py-spy cannot read this process"
            try:
                yield
            finally:
                child.stdin.close()
                child.wait(timeout=120)

    # ---- by hand

    @contextlib.contextmanager
    def cprofile(self) -> Iterator[None]:
        with cProfile.Profile():
            yield

    @contextlib.contextmanager
    def yep(self) -> Iterator[None]:
        module = importlib.import_module("yep")
        module.start(os.path.join(self._path(), "yep.prof"))
        try:
            yield
        finally:
            module.stop()

    @contextlib.contextmanager
    def pyspy(self) -> Iterator[None]:
        command = [pyspy.find(), "record", "--native", "--pid", str(os.getpid()), "--format", "raw", "--rate", "100"]
        command += ["--duration", "3600", "--threads", "--output", os.path.join(self._path(), "pyspy")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
            assert child.stdout is not None
            while b"Sampling" not in child.stdout.readline():
                assert child.poll() is None, "py-spy cannot read this process"
            try:
                yield
            finally:
                child.send_signal(signal.SIGINT)
                child.communicate(timeout=60)

    @contextlib.contextmanager
    def torch(self) -> Iterator[None]:
        profiler = importlib.import_module("torch.profiler")
        with profiler.profile(activities=[profiler.ProfilerActivity.CPU]):
            yield

    @contextlib.contextmanager
    def paddle(self) -> Iterator[None]:
        profiler = importlib.import_module("paddle.profiler")
        with profiler.Profiler(targets=[profiler.ProfilerTarget.CPU], on_trace_ready=lambda _: None):
            yield

    def of(self, names: list[str]) -> dict[str, Mode]:
        found: dict[str, Mode] = {"plain": contextlib.nullcontext, "plain again": contextlib.nullcontext}
        for name in names:
            can = registry.make(name).available()
            if not can.ok or (name == "yep" and importlib.util.find_spec("yep") is None):
                print(f"{name} is left out: {can.why or 'the package yep is not installed'}", file=sys.stderr)
                continue
            found[f"{name} by adbg"] = self.beside if name == "py-spy" else functools.partial(self.by_adbg, name)
            if name != "nodes":
                found[f"{name} by hand"] = getattr(self, name.replace("-", ""))
        return found


def measure(workload: Workload, modes: dict[str, Mode], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Seconds a step, by mode and round."""
    for _ in range(5):
        workload.step()
    steps = max(STEPS, round(seconds / timed(workload.step, modes["plain"], 5).wall))
    times: dict[str, list[float]] = {name: [] for name in modes}
    order = list(modes)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            times[name].append(timed(workload.step, modes[name], steps).wall)
    return times


def ratios(times: dict[str, list[float]]) -> dict[str, float]:
    plain = times["plain"]
    return {
        name: statistics.median(mine / base for mine, base in zip(row, plain, strict=True))
        for name, row in times.items()
        if name != "plain"
    }


def table(model: str, place: int, times: dict[str, list[float]]) -> list[str]:
    found = ratios(times)
    plain = statistics.median(times["plain"]) * 1e6
    lines = [f"## {model}", "", f"plain {plain:,.0f} us a step; plain again {found['plain again']:.3f}", ""]
    lines += ["| profiler | by adbg | by hand | asked | |", "|---|---|---|---|---|"]
    for name in (name.removesuffix(" by adbg") for name in found if name.endswith(" by adbg")):
        mine, theirs = found[f"{name} by adbg"], found.get(f"{name} by hand")
        asked = theirs * ASKED if theirs is not None else ASKED_NODES[place]
        hand = f"{theirs:.3f}" if theirs is not None else "–"
        lines.append(f"| {name} | {mine:.3f} | {hand} | ≤ {asked:.3f} | {'ok' if mine <= asked else 'more'} |")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--framework", choices=list(MODELS), default="torch")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.6, help="of one turn, in plain steps")
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--with", dest="names", action="append", default=[])
    parser.add_argument("--out", default="bench-results")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    framework = importlib.import_module(options.framework)
    if options.framework == "torch":
        framework.set_num_threads(1)
    models = importlib.import_module("bench_models" if options.framework == "torch" else "bench_paddle_models")
    yep.library()
    told, raw = [f"# Profilers on {options.framework}", ""], {}
    started = time.time()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        modes = Modes(options.framework, folder).of(options.names or list(NAMES[options.framework]))
        for place, model in enumerate(MODELS[options.framework]):
            if not options.model or model in options.model:
                raw[model] = measure(models.make(model), modes, options.rounds, options.seconds)
                told += table(model, place, raw[model])
    told.append(f"{options.rounds} rounds, {time.time() - started:.0f} s, load {os.getloadavg()[0]:.1f} at the end")
    print("\n".join(told))
    out = Path(options.out)
    out.mkdir(exist_ok=True)
    name = "profilers" + ("" if options.framework == "torch" else f"-{options.framework}")
    (out / f"{name}.md").write_text("\n".join(told) + "\n")
    (out / f"{name}.json").write_text(json.dumps({"rounds": options.rounds, "times": raw}))


if __name__ == "__main__":
    main()

"""``make bench``, the part about attaching: how soon a front end is in, and what the training loop's steps cost before,
while somebody is attached with nothing armed, and after.

    python -m tests.bench.bench_attach [--framework NAME] [--clock wall|cpu] [--rounds N] [--seconds S] [--out FOLDER]

A second process of the same program, to which nobody ever attaches, takes turns with the first in every round: each
figure is a ratio of medians to its steps in the same round. Writes bench-results/bench-attach.md and .json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from adbg.engine.protocol import messages as p
from tests.stress.attaching import Attached, Session, attach_and_detach
from tests.stress.running import patience

from .gauge import END, PAUSE, RUN, Gauge

HERE = Path(__file__).resolve().parent
MODELS = {"torch": ("tiny transformer", "medium transformer"), "paddle": ("small operators",)}
ASKED = {"attached, nothing armed": 1.02, "after detach": 1.02}
SETTLE = 0.1  # seconds of steps that are not counted after a change
RANKS = 4


class Trainers:
    """Processes that train side by side: one program, or the ranks of one job. ``with`` ends them."""

    def __init__(self, framework: str, model: str, ranks: int = 0, clock: str = "wall") -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="adbg-bench-")
        folder = Path(self._folder.name)
        self.gauge = Gauge(str(folder / "gauge"))
        command = [sys.executable, str(HERE / "bench_attach_program.py"), framework, model, clock]
        command.append(str(folder / "gauge"))
        jobs = [[str(rank), str(ranks), str(folder / "meet")] for rank in range(ranks)] or [[]]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ADBG_")}
        self.processes = []
        for job in jobs:
            rank = {"RANK": job[0], "WORLD_SIZE": job[1]} if job else {}
            self.processes.append(subprocess.Popen([*command, *job], env={**kept, **rank, "OMP_NUM_THREADS": "1"}))
        deadline = time.monotonic() + patience(120)
        while not self.gauge.is_ready:
            if time.monotonic() > deadline or any(process.poll() is not None for process in self.processes):
                raise SystemExit("the measured program did not begin")
            time.sleep(0.05)

    def median(self, seconds: float) -> float:
        """Seconds that a step takes, over ``seconds`` of them."""
        self.gauge.wanted = RUN
        time.sleep(SETTLE)
        since = self.gauge.steps
        while not (times := self.gauge.times(since)) or sum(times) < seconds:
            time.sleep(seconds / 10)
        self.gauge.wanted = PAUSE
        return statistics.median(times)

    def __enter__(self) -> Trainers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.gauge.wanted = END
        for process in self.processes:
            try:
                process.wait(patience(30))
            except subprocess.TimeoutExpired:
                process.kill()
        self._folder.cleanup()


class Holding:
    """Attached to all of them, with nothing armed, while the block runs. They must be running."""

    def __init__(self, trainers: Trainers) -> None:
        self.trainers = trainers
        self.sessions = [Session() for _ in trainers.processes]
        self.clients: list[Any] = []

    def __enter__(self) -> Holding:
        self.trainers.gauge.wanted = RUN
        for session, process in zip(self.sessions, self.trainers.processes):
            self.clients.append(session.begin(process.pid, patience(60)))
        return self

    def __exit__(self, *_: object) -> None:
        self.trainers.gauge.wanted = RUN
        for client, session in zip(self.clients, self.sessions):
            client.request(p.Disconnect(), patience(30))
            session.lost.wait(patience(10))
            session.close()


def steps(
    framework: str, model: str, rounds: int, seconds: float, ranks: int = 0, clock: str = "wall"
) -> dict[str, list[float]]:
    """Ratios, one a round, of the steps of a process that is attached to again and again to those of its twin."""
    found: dict[str, list[float]] = {"before": [], "attached, nothing armed": [], "after detach": [], "seconds": []}
    with Trainers(framework, model, ranks, clock) as twin, Trainers(framework, model, ranks, clock) as target:
        for _ in range(rounds):
            found["before"].append(target.median(seconds) / twin.median(seconds))
        for _ in range(rounds):
            base = twin.median(seconds)
            with Holding(target):
                held = target.median(seconds)
            found["seconds"].append(base)
            found["attached, nothing armed"].append(held / base)
            found["after detach"].append(target.median(seconds) / twin.median(seconds))
    return found


def latencies(framework: str, count: int) -> list[Attached]:
    """Attach to one training process and leave it, ``count`` times."""
    with Trainers(framework, MODELS[framework][0]) as target:
        target.gauge.wanted = RUN
        return [attach_and_detach(target.processes[0].pid) for _ in range(count)]


def ratio_cells(found: dict[str, list[float]]) -> list[str]:
    """Median (quartiles), against what the two processes differ by before anybody attached."""
    base = statistics.median(found["before"])
    cells = []
    for name, values in found.items():
        if name == "seconds":
            continue
        low, middle, high = statistics.quantiles([value / base for value in values], n=4)
        mark = "**" if middle > ASKED.get(name, 9.0) else ""
        cells.append(f"{mark}{middle:.3f}{mark} ({low:.3f}–{high:.3f})")
    return cells


def table(all_steps: dict[str, dict[str, list[float]]], attached: list[Attached], conditions: str) -> str:
    ins = sorted(each.hello * 1e3 for each in attached if not each.error)
    outs = sorted(each.gone * 1e3 for each in attached if not each.error)
    heads = [f"{name}, {statistics.median(found['seconds']) * 1e3:.1f} ms" for name, found in all_steps.items()]
    lines = [conditions, "", f"| a training step, against before the attach | target | {' | '.join(heads)} |"]
    lines.append("|---|---" + "|---" * len(all_steps) + "|")
    columns = [ratio_cells(found) for found in all_steps.values()]
    names = [name for name in next(iter(all_steps.values())) if name != "seconds"]
    for place, name in enumerate(names):
        title = "before the attach (noise)" if name == "before" else name
        asked = f"≤ {ASKED[name]:.2f}" if name in ASKED else "–"
        lines.append(f"| {title} | {asked} | " + " | ".join(column[place] for column in columns) + " |")
    lines += ["", "| milliseconds | target | median | 90 % under | first |", "|---|---|---|---|---|"]
    first = next((each for each in attached if not each.error), None)
    for name, values, one in (
        ("attach to hello", ins, first.hello if first else 0.0),
        ("detach until nothing is left", outs, first.gone if first else 0.0),
    ):
        asked = "≤ 1000" if "hello" in name else "–"
        middle, high = statistics.median(values), statistics.quantiles(values, n=10)[-1]
        lines.append(f"| {name} | {asked} | {middle:.0f} | {high:.0f} | {one * 1e3:.0f} |")
    failed = [each.error for each in attached if each.error]
    if failed:
        lines += ["", f"{len(failed)} of {len(attached)} attaches failed: {failed[0]}"]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="What attaching costs.")
    parser.add_argument("--framework", choices=sorted(MODELS), default="torch")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: what a busy machine can tell")
    parser.add_argument("--model", action="append", help="one of them, or job; default: all")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.4, help="of training in each turn")
    parser.add_argument("--attaches", type=int, default=20)
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "bench-results")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    all_steps = {}
    for model in MODELS[options.framework]:
        if options.model and model not in options.model:
            continue
        print(f"{model} …", file=sys.stderr, flush=True)
        all_steps[model] = steps(options.framework, model, options.rounds, options.seconds, 0, options.clock)
    if options.framework == "torch" and (not options.model or "job" in options.model):
        name = f"job of {RANKS} ranks, gloo"
        print(f"{name} …", file=sys.stderr, flush=True)
        all_steps[name] = steps("torch", "job", options.rounds, options.seconds * 2, RANKS, options.clock)
    print("attach and detach …", file=sys.stderr, flush=True)
    attached = latencies(options.framework, options.attaches)
    conditions = (
        f"Medians (quartiles) of {options.rounds} rounds. {options.framework}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, {'processor' if options.clock == 'cpu' else 'wall'} time of a step, load average "
        f"{load:.1f} at the beginning. Bold: over the target."
    )
    text = table(all_steps, attached, conditions)
    options.out.mkdir(exist_ok=True)
    suffix = "" if options.framework == "torch" else f"-{options.framework}"
    (options.out / f"bench-attach{suffix}.md").write_text(text)
    data = {"load": load, "steps": all_steps, "hello": [each.hello for each in attached]}
    (options.out / f"bench-attach{suffix}.json").write_text(json.dumps(data, indent=1) + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

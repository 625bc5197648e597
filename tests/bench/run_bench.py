"""``make bench``: what adbg costs a training step, and how fast it answers. No test, and nothing fails when it is slow.

    python tests/bench/run_bench.py [--framework NAME] [--rounds N] [--seconds S] [--model NAME]... [--out FOLDER]

One process per model (bench_program.py), with this one as its front end. Writes bench-results/bench.md and bench.json,
for Paddle bench-paddle.md and bench-paddle.json; with ADBG_NATIVE=0, which measures the Python hooks, bench-hooks.md
and so on.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import bench_report
import bench_startup

from adbg.engine.launch.launch import prepare_session
from adbg.engine.protocol import messages as p
from adbg.tui.debugger.client import Client, Listener, initialize

HERE = Path(__file__).resolve().parent
MODELS = {
    "torch": ("tiny LSTM", "tiny transformer", "medium transformer", "medium conv", "GPT of 100M"),
    "paddle": ("small operators", "transformer", "resnet18"),
}
LIMIT = 1800.0  # seconds for one model


class FrontEnd:
    """Starts bench_program.py, lets it begin, and reads whatever its agent sends, as any front end would."""

    def __init__(self, framework: str, model: str, rounds: int, seconds: float, threads: int) -> None:
        self.stops: queue.Queue[p.Stopped] = queue.Queue()
        agents: queue.Queue[tuple[Client, p.Hello]] = queue.Queue()
        self._listener = Listener(lambda client, hello: agents.put((client, hello)))
        session = prepare_session(self._listener.config)
        words = [framework, str(session), model, str(rounds), str(seconds), str(threads)]
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "bench_program.py"), *words],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )
        self.client, _ = agents.get(timeout=60)
        self.client.start(self._event, lambda reason: None)
        initialize(self.client, self._listener.token, stacks=False)
        self.client.request(p.ConfigurationDone())

    def _event(self, body: Any) -> None:
        if isinstance(body, p.Stopped):
            self.stops.put(body)

    def result(self) -> dict[str, Any]:
        """What the program printed, once it ended."""
        output, _ = self._process.communicate(timeout=LIMIT)
        self._listener.close()
        if self._process.returncode != 0:
            raise SystemExit(f"the measured program ended with status {self._process.returncode}")
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
        return found


def round_trips(count: int) -> dict[str, list[float]]:
    """Milliseconds from a question at a stop to its answer, as the front end sees them."""
    front_end = FrontEnd("torch", "round trips", 0, 0.0, 1)
    front_end.stops.get(timeout=60)
    times: dict[str, list[float]] = {}
    for expression in ("1 + 1", "norm(grad_outputs[0])"):
        values = times[f"evaluate `{expression}`"] = []
        for _ in range(count):
            started = time.perf_counter()
            front_end.client.request(p.Evaluate(expression))
            values.append((time.perf_counter() - started) * 1e3)
    front_end.client.request(p.Continue())
    front_end.result()
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description="What adbg costs a training step.")
    parser.add_argument("--framework", choices=sorted(MODELS), default="torch")
    parser.add_argument("--rounds", type=int, default=12)
    # Calls that are alike run without Python, but for four a second: a turn has to have more than one of these.
    parser.add_argument("--seconds", type=float, default=0.5, help="of plain training per mode and round")
    parser.add_argument("--model", action="append", help="one of the framework's models; default: all")
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "bench-results")
    options = parser.parse_args()
    results = []
    for model in options.model or MODELS[options.framework]:
        print(f"{model} …", file=sys.stderr, flush=True)
        # One thread: with one per core, the waiting of each for the others (medians of 3 ms became 30 ms beside another
        # busy process) is what would be measured.
        threads = 1 if options.framework == "torch" or model.startswith("small") else os.cpu_count() or 1
        result = FrontEnd(options.framework, model, options.rounds, options.seconds, threads).result()
        result["modes"] = bench_report.ratios(result["times"], result["cpu_times"])
        results.append(result)
    name = "bench" + "-paddle" * (options.framework == "paddle") + "-hooks" * (not results[0]["native"])
    startup: dict[str, list[float]] = {}
    if options.framework == "torch" and not options.model:
        print("answers and start-up …", file=sys.stderr, flush=True)
        startup = round_trips(500)
        startup["import adbg"] = bench_startup.import_times(20)
        startup["adbg --help, over bare Python"] = bench_startup.help_times(20)
    memory: dict[str, float] = {}
    if not options.model:
        print("memory …", file=sys.stderr, flush=True)
        memory = FrontEnd(options.framework, "memory", 0, 0.0, 1).result()["megabytes"]
    print(bench_report.write(options.out, name, results, options.rounds, startup, memory))
    print(f"written to {options.out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

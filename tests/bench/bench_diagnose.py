"""What diagnosis costs a training step, beside torch's detect_anomaly. No test, and nothing fails when it is slow.

    python tests/bench/bench_diagnose.py [--rounds N] [--seconds S] [--model NAME]...

CPU time of a step over that of plain Python, stacks of the forward included, medians of interleaved rounds, one thread.
"between": an iteration that is not sampled, as all but a few are; "sampled": one that is, and every one with --deep.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from bench_models import MODELS, make

from adbg.engine.backends.torch.backend import TorchBackend
from adbg.engine.diagnosis.diagnosis import Diagnosis
from adbg.engine.session.session import Session

BETWEEN = 100  # no iteration from here to 127 is sampled


class _Silent:
    def event(self, body: object, droppable: bool = False) -> None:
        """Nobody is there."""


class Bench:
    """One session for all modes: what is armed differs."""

    def __init__(self) -> None:
        self.session = Session(_Silent())
        self.session.set_filters([])
        self.session.attach()
        self.backend = TorchBackend()
        self.session.add_backend(self.backend)

    @contextmanager
    def diagnosis(self, deep: bool, step: Callable[[], None]) -> Iterator[None]:
        self.session.set_stacks(True)  # as `adbg diagnose` has it
        made = Diagnosis(self.session, lambda event: None, deep=deep, running=True)
        self.session.observe(made)
        made.began()
        step()  # it begins behind this one
        for of in made._of.values():
            of.facts.iteration = 0 if deep else BETWEEN
            of.ended()
        yield
        made.stop(here=True)
        self.session.unobserve(made)
        self.session.set_stacks(False)


def seconds_of(step: Callable[[], None], count: int) -> float:
    """CPU seconds of a step."""
    before = time.thread_time()
    for _ in range(count):
        step()
    return (time.thread_time() - before) / count


def measure(name: str, rounds: int, seconds: float) -> dict[str, float]:
    """Ratios by mode."""
    bench, step = Bench(), make(name).step
    plain = min(seconds_of(step, 3) for _ in range(3))
    count = max(2, min(20, int(seconds / plain)))
    modes = {
        "plain": nullcontext,
        "plain again": nullcontext,
        "detect_anomaly": lambda: torch.autograd.set_detect_anomaly(True),
        "between": lambda: bench.diagnosis(False, step),
        "sampled": lambda: bench.diagnosis(True, step),
    }
    times: dict[str, list[float]] = {mode: [] for mode in modes}
    for _ in range(rounds):
        for mode, context in modes.items():
            with context():
                step()
                times[mode].append(seconds_of(step, count))
    base = times["plain"]
    return {
        mode: statistics.median(each / plain for each, plain in zip(found, base))
        for mode, found in times.items()
        if mode != "plain"
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What diagnosis costs a training step.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.1, help="of plain training per mode and round")
    parser.add_argument("--model", action="append", choices=sorted(MODELS), help="default: all")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for number, name in enumerate(options.model or MODELS):
        found = measure(name, options.rounds, options.seconds)
        if not number:
            print(f"{'':20}" + "".join(f"{mode:>16}" for mode in found))
        print(f"{name:20}" + "".join(f"{ratio:16.2f}" for ratio in found.values()), flush=True)


if __name__ == "__main__":
    main()

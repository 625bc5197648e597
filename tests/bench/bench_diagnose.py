"""What diagnosis costs a training step, beside what the framework has itself. No test; nothing fails if it is slow.

    python tests/bench/bench_diagnose.py [--framework paddle] [--rounds N] [--seconds S] [--model NAME]...
        [--without-own]

CPU time of a step over that of plain Python, stacks of the forward included, medians of interleaved rounds, one thread.
"own": the framework's own check (torch's detect_anomaly, Paddle's FLAGS_check_nan_inf). "first second": an iteration
that is not sampled, while every operator's result is still looked at for NaN; "steady": the same behind that second
and behind an optimizer's first steps, as nearly all iterations of a run are; "sampled": one that is, and every one with
--deep. Paddle's own check takes 400 steps' time, hence a step each in three rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from workload import Workload

from adbg.engine.diagnosis.detectors.numbers.nonfinite import NonFinite
from adbg.engine.diagnosis.diagnosis import Diagnosis
from adbg.engine.diagnosis.ledger import FIRST
from adbg.engine.session.session import Session

SETTLING = 4  # steps ahead of what is measured: looks that come a few times in a run fall into them (variables, 60 ms)
BETWEEN = 130  # no iteration from here to 255 is sampled


class _Silent:
    def event(self, body: object, droppable: bool = False) -> None:
        """Nobody is there."""


class Bench:
    """One session for all modes: what is armed differs."""

    def __init__(self, backend: Any) -> None:
        self.session = Session(_Silent())
        self.session.set_filters([])
        self.session.attach()
        self.session.add_backend(backend)

    @contextmanager
    def diagnosis(self, step: Callable[[], None], deep: bool = False, spent: bool = False) -> Iterator[None]:
        """``spent``: what may be spent on operators between sampled iterations is."""
        self.session.set_stacks(True)  # as `adbg diagnose` has it
        made = Diagnosis(self.session, lambda event: None, deep=deep, running=True)
        self.session.observe(made)
        made.began()
        step()  # it begins behind this one
        for of in made._of.values():
            for each in of._all:
                if isinstance(each, NonFinite):
                    # A round is shorter than a second, and the machine may be busy: the row says which half it is.
                    each._spent = 1e9 if spent else -1e9
            of.facts.iteration = 0 if deep else BETWEEN
            of.ended()
        if spent:
            step()  # the last in which they are looked at
            for _ in range(FIRST):  # an optimizer's first steps are followed closely
                step()
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


def measure(
    backend: Any, make: Callable[[str], Workload], own: Callable[[], AbstractContextManager[Any]],
    name: str, rounds: int, seconds: float, without_own: bool = False,
) -> dict[str, float]:  # fmt: skip
    """Ratios by mode."""
    bench, step = Bench(backend), make(name).step
    plain = min(seconds_of(step, 3) for _ in range(3))
    # Where the mode has just changed, the allocator gives pages back and asks for them again: 60 to 130 ms of system
    # time in two of the first steps of a convolution of 130 ms, none behind them. Two steps alone would measure that.
    count = max(2, min(20, int(seconds / plain)))
    modes: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "plain": nullcontext,
        "plain again": nullcontext,
        "own": own,
        "first second": lambda: bench.diagnosis(step),
        "steady": lambda: bench.diagnosis(step, spent=True),
        "sampled": lambda: bench.diagnosis(step, deep=True),
    }
    if without_own:
        del modes["own"]
    times: dict[str, list[float]] = {mode: [] for mode in modes}
    for number in range(rounds):
        for mode, context in modes.items():
            if mode != "own" or number < 3:
                with context():
                    for _ in range(1 if mode == "own" else SETTLING):
                        step()
                    times[mode].append(seconds_of(step, count if mode != "own" else 1))
    base = times["plain"]
    return {
        mode: statistics.median(each / plain for each, plain in zip(found, base, strict=False))
        for mode, found in times.items()
        if mode != "plain"
    }


def _torch() -> tuple[Any, Any, Callable[[str], Workload], Callable[[], AbstractContextManager[Any]]]:
    import torch
    from bench_models import MODELS, make

    from adbg.engine.backends.torch.backend import TorchBackend

    torch.set_num_threads(1)
    return TorchBackend(), MODELS, make, lambda: torch.autograd.set_detect_anomaly(True)


def _paddle() -> tuple[Any, Any, Callable[[str], Workload], Callable[[], AbstractContextManager[Any]]]:
    import paddle
    from bench_paddle_models import MODELS, make

    from adbg.engine.backends.paddle.backend import PaddleBackend

    @contextmanager
    def checked() -> Iterator[None]:
        paddle.set_flags({"FLAGS_check_nan_inf": 1})
        yield
        paddle.set_flags({"FLAGS_check_nan_inf": 0})

    paddle.set_num_threads(1) if hasattr(paddle, "set_num_threads") else None
    return PaddleBackend(), MODELS, make, checked


def main() -> None:
    parser = argparse.ArgumentParser(description="What diagnosis costs a training step.")
    parser.add_argument("--framework", choices=("torch", "paddle"), default="torch")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.8, help="of plain training per mode and round")
    parser.add_argument("--model", action="append", help="default: all")
    parser.add_argument("--without-own", action="store_true", help="the framework's own check is left out")
    options = parser.parse_args()
    backend, models, make, own = _paddle() if options.framework == "paddle" else _torch()
    for number, name in enumerate(options.model or models):
        found = measure(backend, make, own, name, options.rounds, options.seconds, options.without_own)
        if not number:
            print(f"{options.framework:20}" + "".join(f"{mode:>16}" for mode in found))
        print(f"{name:20}" + "".join(f"{ratio:16.2f}" for ratio in found.values()), flush=True)


if __name__ == "__main__":
    main()

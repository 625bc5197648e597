"""Two checkouts in one table: what each costs a training step. ``make bench-against BASE=../other-checkout`` runs it.

    python tests/bench/compare.py --base CHECKOUT [--framework NAME] [--passes N] [--rounds N] [--model NAME]...

The checkouts take turns, pass by pass, in processes and environments of their own (``.venv``, for Paddle
``.venv-paddle`` in each). A cell holds the median of all per-round ratios to plain training, with quartiles; what
counts is whether the two differ by more than "plain again" does from 1.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]
MODES = {
    "torch": ("plain again", "unarmed", "breakpoint", "stacks", "nan watch"),
    "paddle": ("plain again", "unarmed", "breakpoint", "stacks", "vlog 4 adbg"),
}
MODELS = {
    "torch": ("tiny LSTM", "tiny transformer", "medium transformer"),
    "paddle": ("small operators", "transformer"),
}
ONE_PASS = (
    "import json, sys; sys.path.insert(0, sys.argv[1]); import run_bench\n"
    "framework, model, rounds, seconds, threads = sys.argv[2:]\n"
    "end = run_bench.FrontEnd(framework, model, int(rounds), float(seconds), int(threads))\n"
    "print(json.dumps(end.result()['times']))\n"
)


def one_pass(checkout: Path, framework: str, model: str, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Per mode the ratios to plain training, one per round."""
    python = checkout / (".venv" if framework == "torch" else ".venv-paddle") / "bin" / "python"
    threads = 1 if framework == "torch" or model.startswith("small") else 2
    words = [str(checkout / "tests" / "bench"), framework, model, str(rounds), str(seconds), str(threads)]
    own = {**os.environ, "PYTHONPATH": str(checkout)}  # two checkouts may share an environment: that has one of them
    done = subprocess.run([str(python), "-c", ONE_PASS, *words], capture_output=True, text=True, cwd=checkout, env=own)
    if done.returncode != 0:
        raise SystemExit(f"{checkout}: the benchmark failed:\n{done.stderr[-2000:]}")
    times = json.loads(done.stdout.splitlines()[-1])
    return {mode: [mine / base for mine, base in zip(seconds, times["plain"])] for mode, seconds in times.items()}


def cell(ratios: list[float]) -> str:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.2f} ({low:.2f}–{high:.2f})"


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare what two checkouts cost a training step.")
    parser.add_argument("--base", type=Path, required=True, help="the checkout to compare with")
    parser.add_argument("--framework", choices=sorted(MODES), default="torch")
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=6, help="per pass")
    parser.add_argument("--seconds", type=float, default=0.05, help="of plain training per mode and round")
    parser.add_argument("--model", action="append")
    options = parser.parse_args()
    trees = {"before": options.base.resolve(), "after": HERE}
    modes = MODES[options.framework]
    lines = ["| model | tree | " + " | ".join(modes) + " |", "|---|---" + "|---" * len(modes) + "|"]
    for model in options.model or MODELS[options.framework]:
        found: dict[str, dict[str, list[float]]] = {name: {} for name in trees}
        for number in range(options.passes):
            for name, tree in list(trees.items())[:: -1 if number % 2 else 1]:
                print(f"{model}: pass {number + 1} of {options.passes}, {name} …", file=sys.stderr, flush=True)
                ratios = one_pass(tree, options.framework, model, options.rounds, options.seconds)
                for mode in modes:
                    found[name].setdefault(mode, []).extend(ratios[mode])
        for name in trees:
            lines.append(f"| {model} | {name} | " + " | ".join(cell(found[name][mode]) for mode in modes) + " |")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())

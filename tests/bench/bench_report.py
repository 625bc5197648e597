"""From times to ratios, and from ratios to the Markdown table and the JSON of ``bench-results/``."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Asked for: a ratio that a mode may cost on a (tiny, medium) model. The others are there to compare with.
ASKED = {
    "unarmed": (1.02, 1.02),
    "breakpoint": (1.10, 1.03),
    "stacks": (1.40, 1.06),
    "nan watch": (2.0, 1.25),
    "record": (1.10, 1.02),
}
ASKED_MS = {"evaluate": 1.0, "import adbg": 10.0, "adbg --help": 150.0}
TITLES = {
    "plain again": "plain Python, a second time (noise)",
    "unarmed": "agent in, nothing armed",
    "breakpoint": "one breakpoint that never matches",
    "stacks": "forward stacks and module paths of all nodes",
    "anomaly, no check": "`detect_anomaly(check_nan=False)`",
    "anomaly": "`detect_anomaly()`",
    "nan watch": "all nodes watched for NaN and Inf",
    "record": "`record`: every node that runs, in the run directory",
    "DebugMode": "torch's `DebugMode`",
}


PADDLE_TITLES = {
    "plain again": "plain Paddle, a second time (noise)",
    "unarmed": "agent in, nothing armed",
    "breakpoint": "one breakpoint that never matches",
    "stacks": "adbg's forward stacks and Layer paths of all nodes",
    "line": "a breakpoint by line that never matches, stacks on",
    "module": "one by module",
    "nan watch": "`nonfinite`: all gradients are looked at",
    "csl3": "Paddle's own `FLAGS_call_stack_level=3`",
    "csl3, names": "the same and `FLAGS_enable_unique_name`",
    "vlog 3 adbg": "`vlog 3` by adbg",
    "vlog 3 file": "level 3 redirected to a file",
    "vlog 4 adbg": "`vlog 4` by adbg",
    "vlog 4 file": "level 4 redirected to a file",
    "vlog 6 adbg": "`vlog 6` by adbg",
    "vlog 6 file": "level 6 redirected to a file",
}


def ratios(times: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """Of every mode: median and quartiles of its per-round ratio to plain, and microseconds per step."""
    found = {}
    for mode, seconds in times.items():
        each = sorted(mine / base for mine, base in zip(seconds, times["plain"]))
        low, middle, high = statistics.quantiles(each, n=4)
        found[mode] = {
            "ratio": middle,
            "low": low,
            "high": high,
            "us_per_step": statistics.median(seconds) * 1e6,
        }
    return found


def asked(mode: str, model: str) -> float | None:
    pair = ASKED.get(mode)
    return None if pair is None else pair[0 if model.startswith(("tiny", "small")) else 1]


def cell(mode: str, model: str, figures: Mapping[str, float]) -> str:
    """The ratio, and its quartiles; bold where it is over what was asked."""
    limit = asked(mode, model)
    text = f"{figures['ratio']:.2f}"
    if limit is not None and figures["ratio"] > limit:
        text = f"**{text}**"
    return f"{text} ({figures['low']:.2f}–{figures['high']:.2f})"


def table(results: Sequence[Mapping[str, Any]], startup: Mapping[str, Sequence[float]]) -> str:
    """The Markdown tables."""
    heads = [f"{r['model']}<br>{r['nodes']} nodes, {r['modes']['plain']['us_per_step'] / 1e3:.1f} ms" for r in results]
    lines = ["| per training step, against plain Python | target: tiny, medium | " + " | ".join(heads) + " |"]
    lines.append("|---|---" + "|---" * len(heads) + "|")
    for mode, title in TITLES.items():
        wanted = " , ".join(f"≤ {limit:.2f}" for limit in ASKED[mode]) if mode in ASKED else "–"
        cells = [cell(mode, r["model"], r["modes"][mode]) for r in results]
        lines.append(f"| {title} | {wanted} | " + " | ".join(cells) + " |")
    lines += ["", "| milliseconds | target | median | 90 % under |", "|---|---|---|---|"]
    for name, values in startup.items():
        middle, high = statistics.median(values), statistics.quantiles(values, n=10)[-1]
        limit = next((ms for key, ms in ASKED_MS.items() if name.startswith(key)), None)
        mark = "**" if limit is not None and middle > limit else ""
        lines.append(f"| {name} | {f'≤ {limit:g}' if limit else '–'} | {mark}{middle:.2f}{mark} | {high:.2f} |")
    return "\n".join(lines) + "\n"


def conditions(results: Sequence[Mapping[str, Any]], rounds: int) -> str:
    """One sentence on how it was measured."""
    threads = ", ".join(f"{r['model']} {r['threads']}" for r in results)
    return (
        f"Medians (quartiles) of {rounds} per-round ratios, all modes taking turns in one process per model, the front "
        f"end attached from another. torch {results[0]['version']}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores; torch threads: {threads}. Bold: over the target.\n"
    )


def write(folder: Path, results: Sequence[dict[str, Any]], startup: Mapping[str, Sequence[float]], rounds: int) -> str:
    """``bench.md`` and ``bench.json`` in ``folder``; returns the Markdown."""
    folder.mkdir(exist_ok=True)
    text = conditions(results, rounds) + "\n" + table(results, startup)
    (folder / "bench.md").write_text(text)
    data = {
        "rounds": rounds,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "models": [{name: value for name, value in r.items() if name != "times"} for r in results],
        "milliseconds": {name: {"median": statistics.median(v), "all": list(v)} for name, v in startup.items()},
    }
    (folder / "bench.json").write_text(json.dumps(data, indent=1) + "\n")
    return text


def write_paddle(folder: Path, results: Sequence[dict[str, Any]], rounds: int) -> str:
    """``bench-paddle.md`` and ``bench-paddle.json`` in ``folder``; returns the Markdown."""
    folder.mkdir(exist_ok=True)
    heads = [f"{r['model']}<br>{r['nodes']} nodes, {r['modes']['plain']['us_per_step'] / 1e3:.1f} ms" for r in results]
    lines = ["| per training step, against plain Paddle | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for mode, title in PADDLE_TITLES.items():
        asked_for = mode if mode in ("unarmed", "breakpoint") else ""
        cells = [cell(asked_for, r["model"], r["modes"][mode]) for r in results]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    threads = ", ".join(f"{r['model']} {r['threads']}" for r in results)
    text = (
        f"Medians (quartiles) of {rounds} per-round ratios, all modes taking turns in one process per model. "
        f"paddlepaddle {results[0]['version']}, Python {platform.python_version()}, {os.cpu_count()} cores; "
        f"threads: {threads}. Bold: over the target (unarmed 1.02; breakpoint 1.10 small, 1.03 else).\n\n"
    )
    text += "\n".join(lines) + "\n"
    (folder / "bench-paddle.md").write_text(text)
    kept = [{name: value for name, value in r.items() if name != "times"} for r in results]
    (folder / "bench-paddle.json").write_text(json.dumps({"rounds": rounds, "models": kept}, indent=1) + "\n")
    return text

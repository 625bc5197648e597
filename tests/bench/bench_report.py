"""From times to ratios, and from ratios to the Markdown table and the JSON of ``bench-results/``."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Asked for: a ratio that a mode may cost on a (tiny, medium, large) model. The others are there to compare with.
ASKED = {
    "unarmed": (1.02, 1.02, 1.02),
    "breakpoint": (1.02, 1.02, 1.02),
    "line": (1.02, 1.02, 1.02),
    "module": (1.02, 1.02, 1.02),
    "stacks": (1.05, 1.01, 1.01),
    "nan watch": (1.08, 1.05, 1.15),
    "everything": (1.10, 1.07, 1.15),
    "record": (1.10, 1.02, 1.02),
}
# Of the Python hooks, where there is no extension.
ASKED_OF_HOOKS = {
    "unarmed": (1.02, 1.02, 1.02),
    "breakpoint": (1.10, 1.03, 1.03),
    "stacks": (1.40, 1.06, 1.06),
    "nan watch": (2.0, 1.25, 1.25),
}
ASKED_ON_PADDLE = {"unarmed": (1.02, 1.02, 1.02), "breakpoint": (1.02, 1.02, 1.02), "everything": (1.10, 1.10, 1.10)}
Limits = Mapping[str, tuple[float, float, float]]
ASKED_MS = {"evaluate": 1.0, "import adbg": 10.0, "adbg --help": 150.0}
TITLES = {
    "plain again": "plain Python, a second time (noise)",
    "unarmed": "agent in, nothing armed",
    "breakpoint": "one breakpoint that never matches",
    "line": "one by line, with stacks",
    "module": "one by module, with stacks",
    "stacks": "forward stacks and module paths of all nodes",
    "nan watch": "all nodes watched for NaN and Inf",
    "everything": "all of these at once",
    "record": "`record`: every node that runs, in the run directory",
    "anomaly, no check": "`detect_anomaly(check_nan=False)`",
    "anomaly": "`detect_anomaly()`",
    "profiler": "`torch.profiler`, CPU activities",
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
    "everything": "all of these at once",
    "record": "`record`: every node that runs, in the run directory",
    "check_nan_inf": "Paddle's own `FLAGS_check_nan_inf`",
    "csl3": "Paddle's own `FLAGS_call_stack_level=3`",
    "csl3, names": "the same and `FLAGS_enable_unique_name`",
    "vlog 3 adbg": "`vlog 3` by adbg",
    "vlog 3 file": "level 3 redirected to a file",
    "vlog 4 adbg": "`vlog 4` by adbg",
    "vlog 4 file": "level 4 redirected to a file",
    "vlog 6 adbg": "`vlog 6` by adbg",
    "vlog 6 file": "level 6 redirected to a file",
}


def ratios(
    times: Mapping[str, Sequence[float]], cpu_times: Mapping[str, Sequence[float]]
) -> dict[str, dict[str, float]]:
    """Of every mode: median and quartiles of its per-round ratio to plain, the median of that of CPU time, and
    microseconds per step."""
    found = {}
    for mode, seconds in times.items():
        each = sorted(mine / base for mine, base in zip(seconds, times["plain"]))
        low, middle, high = statistics.quantiles(each, n=4)
        found[mode] = {
            "ratio": middle,
            "low": low,
            "high": high,
            "cpu": statistics.median(mine / base for mine, base in zip(cpu_times[mode], cpu_times["plain"])),
            "us_per_step": statistics.median(seconds) * 1e6,
        }
    return found


def asked(mode: str, model: str, limits: Limits) -> float | None:
    """The ratio that was asked for; None where none was."""
    sizes = limits.get(mode)
    return None if sizes is None else sizes[0 if model.startswith(("tiny", "small")) else 2 if "GPT" in model else 1]


def cell(figures: Mapping[str, float] | None, limit: float | None) -> str:
    """The ratio, its quartiles, and that of CPU time; bold what is over what was asked. A dash where it was not
    measured."""
    if figures is None:
        return "–"
    wall, cpu = (
        f"**{ratio:.2f}**" if limit is not None and ratio > limit else f"{ratio:.2f}"
        for ratio in (figures["ratio"], figures["cpu"])
    )
    return f"{wall} ({figures['low']:.2f}–{figures['high']:.2f}), {cpu}"


def per_step(results: Sequence[Mapping[str, Any]], titles: Mapping[str, str], limits: Limits, against: str) -> str:
    """The table of ratios: a row a mode, a column a model."""
    heads = [f"{r['model']}<br>{r['nodes']} nodes, {r['modes']['plain']['us_per_step'] / 1e3:.1f} ms" for r in results]
    lines = [f"| per training step, against plain {against} | target | " + " | ".join(heads) + " |"]
    lines.append("|---|---" + "|---" * len(heads) + "|")
    for mode, title in titles.items():
        sizes = dict.fromkeys(asked(mode, r["model"], limits) for r in results)
        wanted = ", ".join(f"{limit:.2f}" for limit in sizes if limit) or "–"
        cells = [cell(r["modes"].get(mode), asked(mode, r["model"], limits)) for r in results]
        lines.append(f"| {title} | {wanted} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def in_milliseconds(startup: Mapping[str, Sequence[float]]) -> str:
    """The table of answers and start-up."""
    lines = ["| milliseconds | target | median | 90 % under |", "|---|---|---|---|"]
    for name, values in startup.items():
        middle, high = statistics.median(values), statistics.quantiles(values, n=10)[-1]
        limit = next((ms for key, ms in ASKED_MS.items() if name.startswith(key)), None)
        mark = "**" if limit is not None and middle > limit else ""
        lines.append(f"| {name} | {f'≤ {limit:g}' if limit else '–'} | {mark}{middle:.2f}{mark} | {high:.2f} |")
    return "\n".join(lines) + "\n"


def conditions(results: Sequence[Mapping[str, Any]], rounds: int, framework: str) -> str:
    """How it was measured."""
    threads = ", ".join(f"{r['model']} {r['threads']}" for r in results)
    fewer = "".join(f" ({r['rounds']} of {r['model']})" for r in results if r["rounds"] != rounds)
    by = "the native core" if all(r["native"] for r in results) else "the Python hooks"
    return (
        f"With {by}. Medians (quartiles) of {rounds}{fewer} per-round ratios of wall time, and medians of those of the "
        "CPU time of all threads of the process; all modes taking turns in one process "
        f"a model, the front end attached from another. {framework} {results[0]['version']}, "
        f"Python {platform.python_version()}, {os.cpu_count()} cores; threads: {threads}. Bold: over the target, "
        "which is one for each size of model.\n\n"
    )


def write(
    folder: Path,
    name: str,
    results: Sequence[dict[str, Any]],
    rounds: int,
    startup: Mapping[str, Sequence[float]],
    memory: Mapping[str, float],
) -> str:
    """``NAME.md`` and ``NAME.json`` in ``folder``; returns the Markdown. A name with "paddle" is of that framework.
    ``startup`` is in milliseconds; ``memory`` in megabytes, by number of iterations."""
    folder.mkdir(exist_ok=True)
    paddle = "paddle" in name
    limits = ASKED if all(r["native"] for r in results) else ASKED_OF_HOOKS
    text = conditions(results, rounds, "paddlepaddle" if paddle else "torch")
    if paddle:
        text += per_step(results, PADDLE_TITLES, ASKED_ON_PADDLE if limits is ASKED else ASKED_OF_HOOKS, "Paddle")
    else:
        text += per_step(results, TITLES, limits, "Python")
    if startup:
        text += "\n" + in_milliseconds(startup)
    if memory:
        after = ", ".join(f"{megabytes:.0f} MB after {int(count):,}" for count, megabytes in memory.items())
        text += f"\nResident memory of a small model with all of these at once, in iterations: {after}.\n"
    (folder / f"{name}.md").write_text(text)
    data = {
        "rounds": rounds,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "models": [{key: value for key, value in r.items() if key not in ("times", "cpu_times")} for r in results],
        "megabytes": dict(memory),
        "milliseconds": {key: {"median": statistics.median(v), "all": list(v)} for key, v in startup.items()},
    }
    (folder / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    return text

"""How fast the log panel is: 1,000,000 records opened, scrolled, folded, searched, and a program that writes 300,000 a
second followed. No test: nothing fails when it is slow.

    python tests/bench/bench_log.py [--records N] [--out FOLDER]

Scrolling is measured in a pty (log_frames.py); the rest in ``adbg log``'s own app, headless at 160x45. Writes
bench-log.md and bench-log.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from log_frames import scrolled

from adbg.tui.app.log.folds import OPEN
from adbg.tui.app.log.log_app import LogApp

SAMPLES = Path(__file__).resolve().parents[1] / "data" / "vlog"
ASKED = {
    "first line, ms": 1000.0,
    "frame while scrolling, p95 ms": 16.0,
    "fold all, ms": 50.0,
    "memory of the process, MB": 200.0,
    "records/s written": 300_000.0,
}
RATE = 300_000
SECONDS = 4

LINE = "I1121 00:54:27.615494 22244 backward.cc:442] SumGradNode(0x55eaf696a1b0) Found pending node: AddGradNode\n"
WRITER = """
import sys, time
path, rate, seconds, line = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4].encode()
piece = line * (rate // 200)
with open(path, "ab", buffering=0) as file:
    started = time.perf_counter()
    for number in range(int(seconds * 200)):
        file.write(piece)
        time.sleep(max(0.0, started + (number + 1) / 200 - time.perf_counter()))
print(time.perf_counter() - started)
"""


def write_log(path: Path, records: int) -> int:
    """A log of real records, those of Paddle's nested PyLayers again and again, without the big blocks; returns how
    many."""
    text = (SAMPLES / "pylayer_nested_v3.log").read_bytes()
    data = text[text.index(b"I1120") :]
    data = data[: data.rindex(b"\n") + 1]
    each = data.count(b"I1120")
    copies = -(-records // each)
    with path.open("wb") as file:
        for _ in range(copies // 100):
            file.write(data * 100)
        file.write(data * (copies % 100))
    return copies * each


def memory() -> float:
    """Resident MB of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


async def until(wanted: object, seconds: float = 120) -> None:
    deadline = time.perf_counter() + seconds
    while not wanted():  # type: ignore[operator]
        if time.perf_counter() > deadline:
            raise SystemExit("the panel did not get there")
        await asyncio.sleep(0.002)


def frame(app: LogApp) -> float:
    """Milliseconds to compose the screen as it is now."""
    started = time.perf_counter()
    screen = app.screen
    screen._compositor.render_update(full=True).render_segments(app.console)
    return (time.perf_counter() - started) * 1e3


async def opened(path: Path, records: int) -> dict[str, float]:
    """Opening a long log, and what one does in it."""
    found: dict[str, float] = {"memory before, MB": memory()}
    started = time.perf_counter()
    app = LogApp([str(path)])
    async with app.run_test(size=(160, 45)):
        panel = app.shown
        await until(lambda: len(panel.store) > 0)
        await asyncio.sleep(0)
        frame(app)
        found["first line, ms"] = (time.perf_counter() - started) * 1e3
        gaps, last = [], time.perf_counter()
        while panel.store.behind or panel.store._reader is not None:
            await asyncio.sleep(0.001)
            gaps.append(time.perf_counter() - last)
            last = time.perf_counter()
        found["all indexed, ms"] = (time.perf_counter() - started) * 1e3
        found["longest pause of the screen meanwhile, ms"] = max(gaps) * 1e3
        found["records"] = len(panel.store)
        found["memory of the process, MB"] = memory()
        found |= folded(app)
        found |= await searched(app)
        found["memory at the end, MB"] = memory()
    return found


def folded(app: LogApp) -> dict[str, float]:
    panel = app.shown
    times = []
    for _ in range(7):
        started = time.perf_counter()
        panel.fold_all(0)
        times.append((time.perf_counter() - started) * 1e3)
        frame(app)
        panel.fold_all(OPEN)
    return {"fold all, ms": statistics.median(times), "fold all, worst ms": max(times)}


async def searched(app: LogApp) -> dict[str, float]:
    """A search and a filter that have to look at everything: how long they take, and the longest time meanwhile in
    which the app heard no key."""
    panel = app.shown
    panel.select(0)
    started = time.perf_counter()
    assert panel.search("nowhere to be found", 1) is None
    pause = await longest_pause(started, lambda: panel._search is None)
    found = {"search of the whole log, ms": (time.perf_counter() - started) * 1e3, "longest pause meanwhile, ms": pause}
    for name, text in (("filter by text", "GradNodePyLayer_Inner.*Preparing"), ("filter by level", "level:3")):
        started = time.perf_counter()
        panel.set_filter(text)
        pause = await longest_pause(started, lambda: not panel.view.filtering)
        found[f"{name}, all kept, ms"] = (time.perf_counter() - started) * 1e3
        found[f"{name}, longest pause, ms"] = pause
        panel.set_filter("")
    return found


async def longest_pause(started: float, ended: Callable[[], bool]) -> float:
    """Milliseconds between two turns of the loop, the longest one since ``started``."""
    last, longest = started, 0.0
    while True:
        await asyncio.sleep(0)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
        if ended():
            return longest * 1e3


async def followed(path: Path) -> dict[str, float]:
    """A program that writes; the panel follows its end."""
    path.write_bytes(b"")
    app = LogApp([str(path)], follow=True)
    async with app.run_test(size=(160, 45)):
        panel = app.shown
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(RATE), str(SECONDS), LINE], stdout=subprocess.PIPE, text=True
        ) as writer:
            lags, gaps, last = [], [], time.perf_counter()
            while writer.poll() is None:
                await asyncio.sleep(0.005)
                now = time.perf_counter()
                gaps.append(now - last)
                last = now
                size = os.path.getsize(path)
                lags.append((size - panel.store._read) / len(LINE) / RATE * 1e3)
            took = float(writer.stdout.read()) if writer.stdout else 0.0
        ended = time.perf_counter()
        total = os.path.getsize(path) // len(LINE)
        await until(lambda: len(panel.store) + panel.store.dropped >= total)
        caught_up = (time.perf_counter() - ended) * 1e3
        return {
            "records/s written": total / took,
            "behind the program, median ms": statistics.median(lags),
            "behind the program, p95 ms": statistics.quantiles(lags, n=20)[-1],
            "caught up after its end, ms": caught_up,
            "gap between two turns of the screen, p95 ms": statistics.quantiles(gaps, n=20)[-1] * 1e3,
            "records dropped": panel.store.dropped,
            "memory while following, MB": memory(),
        }


def measure(records: int) -> dict[str, float]:
    """All figures, by name."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.log"
        write_log(path, records)
        found = {"file, MB": path.stat().st_size / 1e6}
        found |= asyncio.run(opened(path, records))
        found |= scrolled(path)
        path.unlink()
        return found | asyncio.run(followed(Path(folder) / "growing.log"))


def table(figures: dict[str, float]) -> str:
    """Markdown; values that miss the target are bold."""
    lines = ["| log panel, 160x45 | target | measured |", "|---|---|---|"]
    for name, value in figures.items():
        limit = ASKED.get(name)
        least = name.startswith("records/s")
        missed = limit is not None and (value < 0.98 * limit if least else value > limit)
        asked = "–" if limit is None else f"{'≥' if least else '≤'} {limit:,.0f}"
        mark = "**" if missed else ""
        lines.append(f"| {name} | {asked} | {mark}{value:,.1f}{mark} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="How fast the log panel is.")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=SAMPLES.parents[2] / "bench-results")
    options = parser.parse_args()
    figures = measure(options.records)
    options.out.mkdir(exist_ok=True)
    (options.out / "bench-log.md").write_text(table(figures))
    (options.out / "bench-log.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())

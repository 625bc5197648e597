"""Attaching in words: the list of processes, what is known while adbg gets in, and afterwards. Pure; any thread."""

from __future__ import annotations

import os
from collections.abc import Sequence

from adbg.tui.text.quantities import size

COLUMNS = ("pid", "rank", "framework", "cpu", "memory", "age", "state", "program")
_VALUED = {"-W", "-X", "--check-hash-based-pycs"}  # options of Python with a value
_RUNNERS = {"torch.distributed.run", "torch.distributed.launch", "paddle.distributed.launch", "accelerate"}


def script_of(command: Sequence[str]) -> str:
    """What an interpreter's command line runs, with arguments: "train.py --epochs 2", "-m package.train". Another
    program's: its name and arguments."""
    words = list(command)
    if not words:
        return "?"
    program = os.path.basename(words.pop(0))
    if not program.startswith(("python", "pypy")):
        return " ".join([program, *words])
    while words and words[0].startswith("-"):
        option = words[0]
        if option in ("-m", "-c", "-"):
            return " ".join(words).replace("\n", "; ")
        if option[1:2] in ("m", "c") and not option.startswith("--"):
            return " ".join([option[:2], option[2:], *words[1:]]).replace("\n", "; ")
        del words[: 2 if option in _VALUED else 1]
    if not words:
        return "(interactive)"
    return " ".join([os.path.basename(words[0]), *words[1:]])


def program_name(command: Sequence[str]) -> str:
    """Its first word or two: "train.py", "-m package.train"."""
    words = script_of(command).split()
    return " ".join(words[:2]) if words[0] in ("-m", "-c") else words[0]


def launches(command: Sequence[str]) -> bool:
    """Whether the command is a launcher that is known by its name."""
    words = script_of(command).split()[:2]
    names = ("torchrun", "accelerate", "mpirun", "mpiexec", "orterun", "prterun", "fleetrun")
    return bool(words) and (words[0] in names or (words[0] == "-m" and words[-1].startswith(tuple(_RUNNERS))))


def age_text(seconds: float) -> str:
    """ "12 s", "5 min", "3 h 20", "2 d 4 h"."""
    whole = int(seconds)
    if whole < 100:
        return f"{whole} s"
    if whole < 6000:
        return f"{whole // 60} min"
    if whole < 100 * 3600:
        return f"{whole // 3600} h {whole // 60 % 60:02d}"
    return f"{whole // 86400} d {whole // 3600 % 24} h"


def process_cells(
    pid: int,
    rank: int | None,
    frameworks: Sequence[str],
    cpu: float,
    memory: int,
    age: float,
    state: str,
    program: str,
    depth: int = 0,
) -> tuple[str, ...]:
    """One row under ``COLUMNS``. ``depth``: below its launcher."""
    tree = "  " * (depth - 1) + "└ " if depth else ""
    return (
        str(pid),
        "" if rank is None else str(rank),
        ",".join(frameworks) or "-",
        f"{cpu:.0f}%",
        size(memory),
        age_text(age),
        state,
        tree + program,
    )


def aligned(rows: Sequence[Sequence[str]], width: int = 0) -> list[str]:
    """Columns side by side, numbers to the right; ``width``: at most so many characters a line, 0 for any number."""
    right = {0, 1, 3, 4, 5}
    widths = [max(len(row[place]) for row in rows) for place in range(len(COLUMNS) - 1)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(widths[place]) if place in right else cell.ljust(widths[place])
            for place, cell in enumerate(row[:-1])
        ]
        line = "  ".join([*cells, row[-1]]).rstrip()
        lines.append(line if not width or len(line) <= width else line[: width - 1] + "…")
    return lines


# ------------------------------------------------------------------ while adbg gets in

WAYS = {
    "listening": "it had called adbg.listen()",
    "ptrace-pending": "through its main thread",
    "ptrace-thread": "through a waiting thread",
    "remote_exec": "by sys.remote_exec",
}


def entering_text(pid: int, queued: bool, blocked: str, seconds: float) -> str:
    """The live line of one process: "process 4711: main thread waits in recv (12 s); adbg goes in when …"."""
    if not queued:
        return f"process {pid}: adbg goes in ({seconds:.0f} s)" if seconds >= 1 else f"process {pid}: adbg goes in"
    where = f"main thread waits in {blocked}" if blocked else "main thread runs no Python"
    return (
        f"process {pid}: {where} ({seconds:.0f} s); adbg goes in when it runs Python again, or through another thread; "
        "Ctrl-C gives up"
    )


def entering_summary(rows: Sequence[tuple[int, bool, str, float]]) -> str:
    """The live line of several: (pid, queued, blocked, seconds) of each."""
    if len(rows) == 1:
        return entering_text(*rows[0])
    slow = [row for row in rows if row[1]]
    if not slow:
        return f"adbg goes into {len(rows)} processes"
    pid, _, blocked, seconds = max(slow, key=lambda row: row[3])
    where = f"its main thread waits in {blocked}" if blocked else "its main thread runs no Python"
    return f"adbg goes into {len(rows)} processes; longest: process {pid}, {where} ({seconds:.0f} s); Ctrl-C gives up"


def arrival_text(
    pid: int,
    rank: int | None,
    program: str,
    frameworks: Sequence[str],
    python: str,
    way: str,
    milliseconds: float | None,
    stacks: bool,
    job: bool = False,
) -> str:
    """What is known of a process once its agent is there; of one of a ``job`` in one line."""
    how = f"{WAYS[way]}" if way in WAYS else ""
    took = f"in {milliseconds:.0f} ms" if milliseconds is not None and way != "listening" else ""
    facts = [f"rank {rank}"] if rank is not None else []
    facts += [program] if program else []
    facts += [", ".join(frameworks) or "no framework loaded so far"]
    facts += [f"Python {python}"] if python else []
    entry = " ".join(filter(None, ("entered" if took else "", how, took)))
    known = " · ".join(filter(None, (*facts, entry)))
    if job:
        return f"attached to process {pid}: {known}"
    off = "" if stacks else "; forward lines and modules are off: `stacks on` (or --stacks) keeps them"
    return (
        f"attached to process {pid}{off}\n  {known}; iterations are not counted before the attach\n"
        "  it runs on: `pause` stops it at the next node that any backward reaches, `detach` lets it go"
    )


# ------------------------------------------------------------------ what did not come, and the end


def no_node_text(title: str, seconds: float, stack: Sequence[str], silent: bool) -> str:
    """Asked to stop, and nothing stopped. ``silent``: the process answers no question either."""
    head = f"{title} has reached no node in {seconds:.0f} s"
    if silent:
        return (
            f"{head}, and does not answer: one long call in C holds Python's lock\n"
            "  it will stop at its next node; `where all` shows its threads from outside"
        )
    if not stack:
        return f"{head}: no backward runs now\n  it will stop at its next node; `where all` shows all threads"
    rows = "\n".join(f"    {line}" for line in stack)
    return (
        f"{head}: no backward runs now; its main thread, innermost first:\n{rows}\n"
        "  it will stop at its next node; `where all` shows all threads, `thread 1` and `info locals` what is in one,\n"
        "  `why hang` what the ranks of a job wait for"
    )


def lost_text(pid: int, alive: bool) -> str:
    """Why the connection to an attached process ended."""
    if alive:
        return f"the connection to process {pid} was lost; it runs on without the debugger"
    return f"process {pid} ended; adbg did not start it, so its exit status is not known"


def job_end_text(pid: int) -> str:
    """The launcher is gone, and with it all ranks."""
    return f"the job of process {pid} ended; adbg did not start it, so its exit status is not known"

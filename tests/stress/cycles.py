"""``python -m tests.stress.cycles``: attach to one training program and detach again, 200 times.

    python -m tests.stress.cycles [--cycles 200] [--framework torch]... [--injected]

Between two attaches the program trains a step; in each it is stopped at a node, asked for a value, and let go, by
``detach`` or, every other time, by a front end that is gone without a word. Said at the end: what has grown (memory
after the first quarter, threads, descriptors, mappings, objects that Python's collector knows), and whether the result
is that of a run that nobody came to. Exit status 1 when something grew or the result differs.

``--injected``: by ptrace, as ``adbg attach`` enters; without it the program runs the same snippet by itself.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.front_end import Peer
from support.late import Late, Session, leave

STEPS = 2  # of each cycle: one with adbg, one without
WARM = 4  # cycles at least before anything is counted
PAGES = 6 << 20  # bytes of resident memory that a run of 200 cycles may differ by (a plain one varies by 2 MB)


@dataclass(slots=True)
class Outcome:
    framework: str
    cycles: int
    same: bool
    sizes: list[dict[str, int]]  # after each cycle from the first counted one on
    seconds: float

    def grown(self) -> list[str]:
        """What is more at the end than in the beginning."""
        first, last = self.sizes[0], self.sizes[-1]
        found = [
            f"{name}: {first[name]} -> {last[name]}"
            for name in ("threads", "descriptors", "objects")
            if last[name] > first[name]
        ]
        if last["mappings"] > first["mappings"] + 8:  # the C library's heaps grow and shrink by themselves
            found.append(f"mappings: {first['mappings']} -> {last['mappings']}")
        if last["resident"] > first["resident"] + PAGES:
            found.append(f"resident: {first['resident'] >> 10} -> {last['resident'] >> 10} KB")
        return found

    def line(self) -> str:
        first, last = self.sizes[0], self.sizes[-1]
        sizes = ", ".join(f"{name} {first[name]} -> {last[name]}" for name in first)
        verdict = "the same result" if self.same else "ANOTHER RESULT"
        return f"{self.framework}: {self.cycles} cycles in {self.seconds:.0f} s: {verdict}; {sizes}"


def settle(program: Late, threads: int, limit: float = 60.0) -> None:
    """Wait until no thread of adbg's is there; an agent's last one ends a moment after its connection."""
    deadline = time.monotonic() + limit
    while len(os.listdir(f"/proc/{program.process.pid}/task")) > threads and time.monotonic() < deadline:
        time.sleep(0.005)


def run(framework: str, cycles: int, enter: Callable[[Session, Late], Peer] = Session.enter) -> Outcome:
    """``enter`` gets adbg into the program."""
    with Late(framework) as alone:
        alone.ask("train", STEPS * cycles)
        expected = alone.ask("digest")
    begun = time.monotonic()
    sizes: list[dict[str, int]] = []
    with Late(framework) as program:
        threads = program.ask("sizes")["threads"]
        for number in range(cycles):
            with Session() as session:
                peer = enter(session, program)
                peer.begin("Tanh*")
                program.post("train", 1)
                peer.stopped()
                assert peer.value("grad_outputs[0].shape[0]") == 4
                if number % 2:
                    peer.close()
                else:
                    leave(peer)
                program.answer()
            program.ask("train", STEPS - 1)
            settle(program, threads)
            if number in (max(WARM, cycles // 4) - 1, cycles - 1) or (number >= cycles // 4 and number % 20 == 0):
                sizes.append(program.ask("sizes"))
        same = program.ask("digest") == expected and program.end() == 0
    return Outcome(framework, cycles, same, sizes, time.monotonic() - begun)


def injected(session: Session, program: Late) -> Peer:
    """As ``adbg attach`` enters."""
    import threading

    from adbg.engine.attach.enter import enter
    from adbg.engine.attach.target import examine

    def silent(step: Any) -> None:
        """Nobody is told how it goes."""

    entry = enter(examine(program.process.pid), session.file, silent, threading.Event())
    peer = session.accept()
    peer.event("adbg/hello")
    left = entry.release()
    assert not left, left
    return peer


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.cycles", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cycles", type=int, default=200, metavar="N")
    parser.add_argument("--framework", action="append", default=[], choices=["torch", "paddle"])
    parser.add_argument("--injected", action="store_true", help="by ptrace, as adbg attach does it")
    options = parser.parse_args(words)
    bad = False
    for framework in options.framework or ["torch"]:
        outcome = run(framework, options.cycles, injected if options.injected else Session.enter)
        print(outcome.line(), flush=True)
        print("  resident, MB:", *(f"{sizes['resident'] / (1 << 20):.1f}" for sizes in outcome.sizes), flush=True)
        for what in outcome.grown():
            print(f"  grown: {what}", flush=True)
        bad = bad or not outcome.same or bool(outcome.grown())
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())

"""What part of a run a profile is of. Pure.

An iteration is from the end of one outermost backward call to the end of the next: with the optimizer's step behind
that one, the data and the forward pass. The first one begins with the program. Where the user names a line, it is from
one time that this line runs to the next, on the thread that ran it first; the first one begins when it first runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from adbg.engine.errors import CommandError
from adbg.engine.places import Lines, parse_lines

WARMUP = 1
REPEAT = 500
EXAMPLES = (
    "run, 10 seconds, 10 iterations, 10 iterations after 3, 10 iterations of train.py:41, backward, stop, "
    "model.py:10-25, node X --repeat 500"
)
_NUMBER = re.compile(r"\d+\Z")
_ITERATIONS = ("iterations", "iteration")


@dataclass(frozen=True, slots=True)
class Region:
    """``kind``: "run", "seconds" (``count`` from now), "iterations" (``count`` of them behind ``warmup``; of the line
    ``place`` where there is one), "backward"
    (the next outermost call), "stop" (to the next stop), "lines" (``place``, ``count`` times), "node" (``spec``, run
    ``count`` times)."""

    kind: str
    count: int = 0
    warmup: int = 0
    place: str = ""
    spec: str = ""

    def __str__(self) -> str:
        if self.kind == "iterations":
            of = f" of {self.place}" if self.place else ""
            after = f" after {self.warmup}" if self.warmup else ""
            return f"{self.count} iteration{'s' * (self.count != 1)}{of}{after}"
        if self.kind == "seconds":
            return f"{self.count} second{'s' * (self.count != 1)}"
        if self.kind == "lines":
            return self.place + (f", {self.count} times" if self.count > 1 else "")
        if self.kind == "node":
            return f"node {self.spec}, {self.count} times"
        return {"run": "the run", "backward": "one backward", "stop": "to the next stop"}[self.kind]

    @property
    def lines(self) -> Lines:
        return parse_lines(self.place)


def parse_region(words: Sequence[str]) -> Region:
    """The words behind the profiler's name.

    Raises:
        CommandError: they name no region.
    """
    given = list(words)
    if not given:
        return Region("run")
    head = given[0]
    if head in ("run", "backward", "stop"):
        _end(given[1:])
        return Region(head)
    if _NUMBER.match(head) and len(given) > 1 and given[1] in _ITERATIONS:
        warmup, place, rest = WARMUP, "", given[2:]
        if rest[:1] == ["of"]:
            place = _line(rest[1:2])
            rest = rest[2:]
        if rest:
            if rest[0] not in ("after", "--warmup") or len(rest) < 2:
                raise _unknown(" ".join(rest))
            warmup = _number(rest[1], 0)
            _end(rest[2:])
        return Region("iterations", _number(head, 1), warmup, place)
    if _NUMBER.match(head) and given[1:] in (["s"], ["second"], ["seconds"]):
        return Region("seconds", _number(head, 1))
    if head == "node" and len(given) > 1:
        count = REPEAT
        if len(given) > 2:
            if given[2].removeprefix("--") != "repeat" or len(given) < 4:
                raise _unknown(" ".join(given[2:]))
            count = _number(given[3], 1)
            _end(given[4:])
        return Region("node", count, spec=given[1])
    if ":" in head:
        count = 1
        if len(given) > 1:
            if len(given) < 3 or given[2] not in ("times", "time"):
                raise _unknown(" ".join(given[1:]))
            count = _number(given[1], 1)
            _end(given[3:])
        return Region("lines", count, place=str(parse_lines(head)))
    raise _unknown(" ".join(given))


def _line(words: Sequence[str]) -> str:
    """One line: where an iteration begins."""
    example = "for example: 10 iterations of train.py:41, the first line of the loop's body or of a function's"
    if not words or ":" not in words[0]:
        raise CommandError(f"an iteration begins at a line, FILE:LINE{f', not {words[0]!r}' if words else ''}", example)
    lines = parse_lines(words[0])
    if lines.first != lines.last:
        raise CommandError(f"an iteration begins at one line, not at {words[0]}", example)
    return str(lines)


def _number(text: str, least: int) -> int:
    if not _NUMBER.match(text) or int(text) < least:
        raise CommandError(f"expected a number of at least {least}, got {text!r}", f"regions: {EXAMPLES}")
    return int(text)


def _end(words: Sequence[str]) -> None:
    if words:
        raise _unknown(" ".join(words))


def _unknown(text: str) -> CommandError:
    return CommandError(f"{text!r} is no region of a profile", f"regions: {EXAMPLES}")

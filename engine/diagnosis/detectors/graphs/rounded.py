"""Gradients that are exactly zero, for the way to the loss goes through round, floor or sign. Asked by
``no_gradient``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from adbg.engine.diagnosis.detectors.graphs.calls import place
from adbg.engine.diagnosis.detectors.graphs.flow import Cut, Flow, Known, bits_of
from adbg.engine.diagnosis.detectors.graphs.straight import Straight, Swap
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_LOOKS = 2  # at a gradient that is exactly zero


class Rounded:
    """``straight``: the sums that take the gradient of what was rounded."""

    def __init__(self, facts: Facts, flow: Flow) -> None:
        self._facts = facts
        self._flow = flow
        self.straight = Straight(flow)
        self._zero: dict[int, list[int]] = defaultdict(list)  # by bit: the rounds on its way, where it got zeros
        self._nonzero = 0
        self._told: dict[SourceLine | None, int] = {}  # by the line that rounds
        facts.shared[Rounded] = self

    def look(self, bit: int, gradient: Any, roots: Iterable[Known | None]) -> None:
        rounds = 0
        for known in roots:
            if known is not None and known.gradients >> bit & 1:
                rounds |= known.rounds
        rounds = sum(1 << at for at in bits_of(rounds) if self._flow.rounds[at].lost >> bit & 1)
        if rounds and not self._nonzero >> bit & 1:
            if self._facts.backend.norm(gradient) == 0:
                self._zero[bit].append(rounds)
            else:
                self._nonzero |= 1 << bit

    def judge(self, held: Iterable[tuple[int, str]]) -> None:
        """``held``: the bit and the name of what optimizers hold."""
        groups: dict[int, list[str]] = defaultdict(list)
        swapped: dict[SourceLine | None, tuple[Swap, list[str]]] = {}
        for bit, name in held:
            looks = self._zero.get(bit, [])
            if len(looks) < min(_LOOKS, self._facts.iteration) or self._nonzero >> bit & 1:
                continue
            swap = self.straight.of_rounds(looks[-1], bit)
            if swap is not None:
                swapped.setdefault(swap.line, (swap, []))[1].append(name)
            else:
                groups[next(bits_of(looks[-1]))].append(name)
        for swap, names in swapped.values():
            self._tell_swap(swap, names)
        for at, names in groups.items():
            self._tell(self._flow.rounds[at], names)

    def told_of(self, line: SourceLine | None) -> int | None:
        """The finding that says why a gradient is 0 after what rounds at that line."""
        return self._told.get(line)

    def _tell(self, turn: Cut, names: list[str]) -> None:
        line = turn.lines[0] if turn.lines else None
        who = self._facts.some(names)
        message = f"the gradient of {who} is always 0: {turn.name} at {place(line)} has derivative 0 everywhere"
        self._send(message, turn, line, who, [])

    def _tell_swap(self, swap: Swap, names: list[str]) -> None:
        who, line = self._facts.some(names), swap.line
        turn = self._flow.rounds[next(bits_of(swap.rounds))]
        message = f"the gradient of {who} is always 0: at {place(line)} {swap.why}"
        evidence = [
            f"{swap.name} at {place(line)} adds what {swap.rounded} made at {place(swap.at)} with its graph, and the "
            f"difference from what it was made of without: all of the gradient goes through {turn.name}"
        ]
        if swap.cancels:
            evidence.append("what was rounded is added and subtracted again: the sum has the values from before")
        self._send(message, turn, line, who, evidence)

    def _send(self, message: str, turn: Cut, line: SourceLine | None, who: str, evidence: list[str]) -> None:
        facts = self._facts
        at = turn.lines[0] if turn.lines else None
        evidence = [
            f"the norm of .grad of {who} is exactly 0 in every iteration that was looked at",
            f"{turn.name} at {place(at)} is on the way from {who} to the loss",
            *evidence,
        ]
        commands = [f"b {place(line)}", "info params"] if line is not None else ["info params"]
        self._told[at] = facts.tell(
            Finding(0, "rounded-gradient", "error", 0.9, message, None, None, None, line, facts.cause(line), evidence,
                    commands)
        )  # fmt: skip

"""One breakpoint as it was asked for, and what is counted of it.

A ``Rule`` never changes, so that a hook may read it while the list is replaced; its ``Counts`` are handed from one rule
to the next under the same id, and are guarded by the lock of the table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from adbg.engine.errors import CommandError
from adbg.engine.protocol.messages import BreakpointRequest, BreakpointState
from adbg.engine.session.breakpoints.grammar import Spec, parse_spec, syntax_problem
from adbg.engine.types import SpecKind


@dataclass(slots=True)
class Counts:
    """What changes while a breakpoint lives; guarded by the lock of the table."""

    hits: int = 0
    base: int = 0  # hits when ignore/every were last set: these count from there
    matches: int | None = None
    note: str = ""
    met: bool = False  # some node was at its place, whatever its condition said
    compared: bool = False  # with the nodes of a whole backward
    stopped_in: dict[int, None] = field(default_factory=dict)  # backward calls, of nan/inf/nonfinite
    # Leaves (path, address) that the gradients of such stops flowed to: an optimizer makes them what these were.
    leaves: set[tuple[str, int]] = field(default_factory=set)
    told: BreakpointState | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One breakpoint as asked for. ``spec`` None: bad, ``problem`` says why."""

    request: BreakpointRequest
    spec: Spec | None
    conditions: tuple[str, ...]
    ignore: int
    every: int
    problem: str
    counts: Counts

    def state(self) -> BreakpointState:
        request, counts, spec = self.request, self.counts, self.spec
        at_line = spec is not None and spec.kind is SpecKind.LINE
        return BreakpointState(
            id=request.id,
            verified=spec is not None,
            message=self.problem or counts.note,
            spec=spec.normalised() if spec else request.name,
            matches=counts.matches,
            met=True if counts.met or counts.hits or counts.matches else False if counts.compared else None,
            hits=counts.hits,
            enabled=request.enabled,
            temporary=request.temporary,
            trace=request.trace,
            kind=spec.kind if spec else None,
            file=spec.pattern if spec and at_line else "",
            line=spec.number if spec and at_line else 0,
        )


def make_rule(request: BreakpointRequest, old: Rule | None) -> Rule:
    try:
        spec = parse_spec(request.name)
        conditions = tuple(text for text in (spec.condition, request.condition.strip()) if text)
        if problem := syntax_problem(request.condition) if request.condition.strip() else "":
            raise CommandError(
                f"the condition {request.condition.strip()!r} is not a Python expression: {problem}",
                "example: index > 10",
            )
        ignore, every = _hit_condition(request.hitCondition, spec)
    except CommandError as error:
        return Rule(request, None, (), 0, 1, str(error), Counts())
    counts = Counts()
    if old is not None and old.spec is not None and old.spec.head == spec.head:
        counts = old.counts
        if (old.ignore, old.every, old.request.hitCondition) != (ignore, every, request.hitCondition):
            counts.base = counts.hits
    return Rule(request, spec, conditions, ignore, every, "", counts)


_HIT_CONDITION = re.compile(r"\s*(?:(?P<every>%)|(?P<past>>)|>=|==?)?\s*(?P<number>\d+)\s*\Z")


def _hit_condition(text: str, spec: Spec) -> tuple[int, int]:
    """(ignore, every) of DAP's hitCondition ("N", ">= N": from the N-th hit on; "> N"; "% N"); what it leaves open is
    the spec's own."""
    if not text.strip():
        return spec.ignore, spec.every
    match = _HIT_CONDITION.match(text)
    if not match or (int(match["number"]) == 0 and match["every"]):
        raise CommandError(f"bad hit condition {text!r}", "expected N (from the N-th hit on) or % N (every N-th hit)")
    number = int(match["number"])
    if match["every"]:
        return spec.ignore, number
    return (number if match["past"] else max(number - 1, 0)), spec.every

"""Findings: what diagnosis is sure enough of to tell, with what proves it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from adbg.engine.protocol.messages.registry import event, request
from adbg.engine.types import SourceLine


@dataclass(frozen=True, slots=True)
class Cause:
    """The line to change."""

    file: Annotated[str, "an absolute path"]
    line: Annotated[int, "counted from 1"]
    function: Annotated[str, "the function it is in"] = ""
    text: Annotated[str, "the source of the line, stripped"] = ""


@dataclass(frozen=True, slots=True)
class FoundAt:
    """The node that a finding is about; fields that are not known are null."""

    name: str | None = None
    unique_name: str | None = None
    module: str | None = None
    parameter: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. ``id`` counts from 1 in a process; a finding that is told again under its id (more evidence, another
    severity) takes the place of the one before."""

    id: Annotated[
        int,
        "counts from 1 in this process; told again under the same number, it replaces the one before; from 10001 on: "
        "of no process, made by comparing what ranks tell",
    ]
    kind: Annotated[str, "the detector's name: zero-grad, nonfinite, in-place, ..."]
    severity: Annotated[str, "error, warning or note"]
    confidence: Annotated[float, "0 to 1; below 0.5 it is a note and says what would decide it"]
    message: Annotated[str, "one sentence: what is wrong, with its cause"]
    node: FoundAt | None = None
    backward: Annotated[int | None, "number of the backward call, counted from 1"] = None
    iteration: Annotated[int | None, "iteration of the training loop, counted from 1"] = None
    forward: Annotated[SourceLine | None, "the line that made the node"] = None
    cause: Annotated[Cause | None, "the line to change; null where only the node is known"] = None
    evidence: Annotated[list[str], "values, stacks and nodes that prove it, a line each"] = field(default_factory=list)
    next: Annotated[list[str], "commands that show it"] = field(default_factory=list)
    victim_of: Annotated[int | None, "id of the finding whose consequence this one is"] = None
    advice: Annotated[list[str], "lines of the evidence that prove nothing, but say what to change"] = field(
        default_factory=list
    )


@event("adbg/finding")
@dataclass(frozen=True, slots=True)
class Found:
    """A finding is certain, or has changed."""

    finding: Finding


@event("adbg/rankFacts")
@dataclass(frozen=True, slots=True)
class RankFacts:
    """What one rank of a job tells of itself, for a front end to compare with what the others tell. ``what``:
    "iteration" (it is over, its steps are done), "end" (the program ends, or is no longer watched), "stands" (its main
    thread has not moved, nor computed, for a while)."""

    what: str
    world: Annotated[int, "ranks of the job"]
    iteration: Annotated[int, "outermost backward calls begun so far"]
    parameters: Annotated[dict[str, str], "by name: a hash of all bytes, ? where they cannot be read"]
    gradients: Annotated[dict[str, str], "by name, as the last step used them: a hash, empty where there was none"]
    rates: list[float] = field(default_factory=list)  # learning rates of that step
    backward: Annotated[Cause | None, "the line that called backward"] = None
    step: Annotated[Cause | None, "the line of the step"] = None
    loop: Annotated[Cause | None, "the innermost loop around the call of backward"] = None
    uses: Annotated[dict[str, Cause], "of parameters without a gradient: the line that would use them"] = field(
        default_factory=dict
    )
    failed: Annotated[str, "what backward, or the program, raised"] = ""
    constant: Annotated[list[str], "parameters with one value in all elements: equal on ranks that share nothing"] = (
        field(default_factory=list)
    )
    schedule: Annotated[Cause | None, "where a scheduler set the learning rates last"] = None
    wrapper: Annotated[
        str,
        "class of the wrapper that averages gradients: ``iteration`` counts from its first forward; empty: no wrapper",
    ] = ""
    loaded: Annotated[Cause | None, "where weights were loaded last, before the first step of that"] = None
    loaded_names: Annotated[list[str], "the parameters that were loaded there"] = field(default_factory=list)
    seeded: Annotated[Cause | None, "where random numbers are seeded by the rank's number, by the source"] = None


@dataclass(frozen=True, slots=True)
class Examined:
    """What one detector came to: ``result`` is "finding", "clear", "not applicable" or "could not look" (``why``)."""

    kind: str
    result: str
    why: str = ""


@event("adbg/diagnosis")
@dataclass(frozen=True, slots=True)
class DiagnosisEnds:
    """The program ends, or diagnosis was switched off."""

    examined: list[Examined] = field(default_factory=list)
    iterations: int = 0  # of the training loop, that were watched
    interrupted: bool = False  # Ctrl-C (SIGINT) ended the program while it was watched: more may have come


@dataclass(frozen=True, slots=True)
class DiagnosisBody:
    """What is known so far. ``iterations`` of the training loop that were watched."""

    on: bool = False
    findings: list[Finding] = field(default_factory=list)
    examined: list[Examined] = field(default_factory=list)
    iterations: int = 0


@request("adbg/diagnose", DiagnosisBody)
@dataclass(frozen=True, slots=True)
class Diagnose:
    """``action``: "start" (detectors are loaded and watch from now on), "state" (what is known so far; at a stop the
    detectors look at the node at hand first), "stop". ``only``: kinds of findings, empty for all. ``deep``: costly
    looks in every iteration too; where diagnosis is on, from the next one on. ``iterations``: detectors stop watching
    behind that many, 0: never."""

    action: str = "state"
    only: list[str] = field(default_factory=list)
    deep: bool = False
    iterations: int = 0

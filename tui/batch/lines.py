"""The lines that ``adbg run --batch --json`` prints, one dataclass a type; ``reference.py`` makes a page of them.

A field without a default is in every line of its type; one with a default is left out where it has it.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol

from adbg.engine.protocol import messages as protocol
from adbg.engine.protocol.codec import to_json
from adbg.engine.types import Evidence, NodeStop, Phase, SourceLine, StopReason
from adbg.tui.text.findings import Ranked


@dataclass(frozen=True, kw_only=True)
class Line:
    """Base of all. ``TYPE`` is the field ``type``, which comes first."""

    TYPE: ClassVar[str]


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node of the backward graph."""

    name: Annotated[str, "as the framework calls it"]
    unique_name: Annotated[
        str, "`name#k`, k counting the nodes of one name in the order in which the forward pass made them"
    ]
    module: Annotated[
        str | None,
        "path of the module that made it: `layers.0.attn`; empty: the outermost module itself; null: none, or not "
        "known",
    ]
    parameter: Annotated[str | None, "of a node that accumulates a gradient: path of the parameter"]


@dataclass(frozen=True, kw_only=True)
class BackwardBegins(Line):
    """A backward call begins. Calls are announced while a breakpoint or a step could stop in them: the
    stop at an exception may come without."""

    TYPE = "backward"
    phase: Annotated[str, "always `begin`"]
    backward: Annotated[int, "number of the call, counted from 1"]
    nodes: Annotated[int, "how many nodes will run, as far as they were walked: see `truncated`"]
    roots: Annotated[list[str], "names of the nodes it begins at"]
    file: Annotated[str, "where it was called, an absolute path"]
    line: Annotated[int, "the line there"]
    depth: Annotated[int, "0, or how deep it is nested in other backward calls"]
    rank: Annotated[int, "rank of the process, 0 where there is one"]
    truncated: Annotated[bool, "the graph has more nodes than `nodes`: the rest runs unseen"] = False


@dataclass(frozen=True, kw_only=True)
class BackwardEnds(Line):
    """A backward call ends."""

    TYPE = "backward"
    phase: Annotated[str, "always `end`"]
    backward: Annotated[int, "number of the call, counted from 1"]
    us: Annotated[float, "how long it took in microseconds, without the time at stops"]
    depth: Annotated[int, "0, or how deep it is nested in other backward calls"]
    rank: Annotated[int, "rank of the process, 0 where there is one"]
    error: Annotated[str, "the exception that ended it"] = ""


@dataclass(frozen=True, kw_only=True)
class Stopped(Line):
    """The program stopped. `index`, `backward` and ordinals count from 1."""

    TYPE = "stopped"
    reason: Annotated[StopReason, "why"]
    breakpoints: Annotated[list[int], "numbers of the breakpoints that were hit; negative: `error` and its like"]
    phase: Annotated[Phase, "where: around a node, at an end of a backward call, at an exception, at a Python line"]
    backward: Annotated[int, "number of the backward call, 0 where none runs"]
    index: Annotated[int, "position of the node in the order of execution; 0 at the begin, `total` + 1 at the end"]
    total: Annotated[int, "nodes of this backward call, as far as they were walked: see `truncated`"]
    depth: Annotated[int, "0, or how deep the call is nested in other backward calls"]
    rank: Annotated[int, "rank of the process, 0 where there is one"]
    node: Annotated[Node | None, "the node; null at the begin and end of a call, and at a Python line"]
    forward: Annotated[SourceLine | None, "the line of the forward pass that made the node, where it is known"]
    enclosing: Annotated[list[str], "unique names of the nodes that run this call, outermost first"]
    location: Annotated[SourceLine | None, "the line that called backward, or that called `breakpoint()`"]
    message: Annotated[str, "a sentence: the exception, a condition's error, what `evidence` says; may be empty"]
    iteration: Annotated[int, "outermost backward calls begun so far"]
    evidence: Annotated[
        list[Evidence], "what is not finite at the node; what leaves it comes first, what the forward pass left last"
    ]
    truncated: Annotated[bool, "the graph has more nodes than `total`: the rest runs unseen"] = False
    process: Annotated[int, "number of the process, where it is not the first"] = 1


@dataclass(frozen=True, kw_only=True)
class Trace(Stopped):
    """A tracepoint was hit; the program runs on. The fields of `stopped`, and:"""

    TYPE = "trace"
    breakpoint: Annotated[int, "number of the tracepoint"]
    text: Annotated[str, "phase, node, and its gradients with shape and norm"]


@dataclass(frozen=True, kw_only=True)
class Display(Line):
    """A value of the display or watch list; follows each `stopped`."""

    TYPE = "display"
    number: Annotated[int, "its number in the list"]
    expression: Annotated[str, "what is shown"]
    text: Annotated[str, "its value here; empty where there is an `error`"]
    error: Annotated[str, "why it cannot be evaluated here; else empty"]
    watch: Annotated[bool, "it is watched: compared with the stop before"]
    changed: Annotated[bool | None, "the value is another one than at the stop before; null: not known, or not watched"]


@dataclass(frozen=True, kw_only=True)
class Result(Line):
    """What a command answered. `-b SPEC` answers as `break SPEC` does."""

    TYPE = "result"
    command: Annotated[str, "the command as given"]
    value: Annotated[Any, "the answer as a JSON value; null where there is only text"]
    text: Annotated[str, "the answer as it is shown in text mode"]
    columns: Annotated[list[str] | None, "of a table: the heads"] = None
    rows: Annotated[list[list[Any]] | None, "of a table: the cells, as text or JSON values"] = None


@dataclass(frozen=True, kw_only=True)
class Error(Line):
    """A command was refused. The commands after it run all the same; with `--strict` the exit status is not 0."""

    TYPE = "error"
    command: Annotated[str, "the command as given"]
    message: Annotated[str, "what is wrong, in one line"]
    hint: Annotated[str, "what to do about it"] = ""


@dataclass(frozen=True, kw_only=True)
class Output(Line):
    """What the program itself printed, in whole lines as far as it comes in lines."""

    TYPE = "output"
    stream: Annotated[str, "`stdout` or `stderr`"]
    text: Annotated[str, "the text, with its line ends"]


@dataclass(frozen=True, kw_only=True)
class Notice(Line):
    """What adbg itself has to say. Warnings and errors go to stderr as well."""

    TYPE = "notice"
    level: Annotated[str, "`info`, `warning` or `error`"]
    text: Annotated[str, "one line, of a crash report several"]


@dataclass(frozen=True, kw_only=True)
class Profile(Line):
    """A profile is over, and its file written. One that is not whole is told on stderr as well."""

    TYPE = "profile"
    profiler: Annotated[str, "its name, as `profile list` has it"]
    state: Annotated[str, "`done`, `partial` (ended early) or `failed`"]
    region: Annotated[dict[str, Any], "what was measured: `kind`, `count`, `warmup`, `place`, `spec`"]
    folder: Annotated[str, "the artifact, an absolute path: `adbg profile FOLDER` shows it"]
    file: Annotated[str, "name of the profiler's own file in it; empty: nothing was measured"]
    format: Annotated[str, "`pstats`, `gperftools`, `collapsed`, `chrome` or `nodes`"]
    iterations: Annotated[int, "outermost backward calls in the region"]
    seconds: Annotated[float, "wall time of the region"]
    why: Annotated[str, "why it is not whole; empty when it is"]
    warnings: Annotated[list[str], "what makes its numbers less certain: a busy machine"]
    pid: Annotated[int, "the process that was measured"]
    rank: Annotated[int, "rank of the process, 0 where there is one"]


@dataclass(frozen=True, kw_only=True)
class MemoryGrows(Line):
    """A variable holds more with each iteration (`info memory iterations on`). Once of each, and once more when it is
    sure; on stderr as well."""

    TYPE = "memory-grows"
    owner: Annotated[str, "the variable, as the program would write it: `losses`, `Meter.history['loss']`"]
    file: Annotated[str, "where it is filled, an absolute path; empty where that is not known"]
    line: Annotated[int, "the line there; 0: not known"]
    unit: Annotated[str, "`tensors` that it leads to, or `nodes` of its graph"]
    counts: Annotated[list[tuple[int, int]], "(iteration, how many) at each look"]
    sure: Annotated[bool, "it grew for long; false: it may be a window or a cache that is not full yet"]
    rank: Annotated[int, "rank of the process, 0 where there is one"]


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A line to change."""

    file: Annotated[str, "an absolute path"]
    line: Annotated[int, "counted from 1"]
    function: Annotated[str, "the function it is in"]
    text: Annotated[str, "the source of the line, stripped"]


@dataclass(frozen=True, kw_only=True)
class FoundAt:
    """A node that a finding is about; what is not known is null."""

    name: Annotated[str | None, "as the framework calls it"]
    unique_name: Annotated[str | None, "`name#k`, as in `stopped`"]
    module: Annotated[str | None, "path of the module that made it"]
    parameter: Annotated[str | None, "path of the parameter, where it is about one"]


@dataclass(frozen=True, kw_only=True)
class Finding(Line):
    """Diagnosis is certain of something (`adbg diagnose`, `diagnose start`). Told anew under its `id` when there is
    more evidence; with `confidence` 0 when it turned out otherwise."""

    TYPE = "finding"
    id: Annotated[
        int,
        "counts from 1 in its process, from 10001 what a comparison of ranks found; "
        "the same again replaces the one before",
    ]
    kind: Annotated[str, "`zero-grad`, `nonfinite`, …: docs/findings.md"]
    severity: Annotated[str, "`error` (certainly wrong), `warning` (probably), `note`"]
    confidence: Annotated[float, "0 to 1; below 0.5 it is a note and says what would decide it; 0: taken back"]
    message: Annotated[str, "one sentence: what is wrong, and why"]
    node: Annotated[FoundAt | None, "the node it is about"]
    backward: Annotated[int | None, "number of the backward call; null: it is about no single one"]
    iteration: Annotated[int | None, "outermost backward calls begun so far"]
    forward: Annotated[SourceLine | None, "the line that made the node"]
    cause: Annotated[Cause | None, "the line to change; null where only the node is known"]
    evidence: Annotated[list[str], "what proves it"]
    next: Annotated[list[str], "commands that show it"]
    victim_of: Annotated[int | None, "`id` of the finding whose consequence it is"]
    rank: Annotated[int | None, "rank of the process; null: it is none"]
    process: Annotated[int, "number of the process, where it is not the first"] = 1


@dataclass(frozen=True, kw_only=True)
class RankedFinding:
    """A finding at its place: causes first."""

    number: Annotated[int, "its place, from 1"]
    id: Annotated[int, "that of its line `finding`"]
    kind: Annotated[str, "its kind"]
    process: Annotated[int, "number of the process that told it"]
    ranks: Annotated[tuple[int, ...], "of a job: the ranks that told the same"]
    also: Annotated[tuple[int, ...], "`id`s of what is folded under it: consequences, lesser ones of the same line"]


@dataclass(frozen=True, kw_only=True)
class Looked:
    """What came of looking for one kind."""

    kind: Annotated[str, "what was looked for"]
    result: Annotated[str, "`finding`, `clear`, `not applicable` (nothing there to look at) or `could not look`"]
    why: Annotated[str, "why it could not look; else empty"]


@dataclass(frozen=True, kw_only=True)
class Diagnosis(Line):
    """The end of `adbg diagnose`, after `exited`: the findings, ranked, and what was looked at."""

    TYPE = "diagnosis"
    findings: Annotated[list[RankedFinding], "those to read, in this order"]
    examined: Annotated[list[Looked], "every kind that was looked for"]
    iterations: Annotated[int, "outermost backward calls that were watched"]
    whole: Annotated[bool, "the program came to its end and told of it; false: a signal, `os._exit`, `--timeout`"]


@dataclass(frozen=True, kw_only=True)
class Exited(Line):
    """The program ended. The last line, unless the command `restart` started it again, or `diagnosis` follows."""

    TYPE = "exited"
    code: Annotated[int, "its exit status as a shell counts: 128 + N after signal N, 125 where it is not known"]
    signal: Annotated[str, "name of the signal that killed it: `SIGKILL`"] = ""
    failed_on: Annotated[tuple[int, ...], "breakpoints of `--fail-on` that were hit: adbg's own exit status is 3"] = ()


@dataclass(frozen=True, kw_only=True)
class Process(Line):
    """A Python process of the user, or a launcher, as `adbg attach --json` without a number lists them."""

    TYPE = "process"
    pid: Annotated[int, "its number"]
    parent: Annotated[int, "that of its parent"]
    rank: Annotated[int | None, "as its launcher told it; null: none did"]
    frameworks: Annotated[list[str], "those whose libraries it has loaded"]
    program: Annotated[str, "script or module with its arguments"]
    argv: Annotated[list[str], "its whole command line"]
    cpu: Annotated[float, "per cent of one core, over a fifth of a second"]
    memory: Annotated[int, "resident bytes"]
    age: Annotated[float, "seconds since it began"]
    state: Annotated[str, "`running`, `sleeping`, `disk-sleep`, `stopped`, …"]
    ranks: Annotated[list[int], "of a launcher: the processes that `adbg attach --job` of it enters"]
    obstacle: Annotated[str, "why adbg cannot get into it; empty when it can"]
    cwd: Annotated[str, "its working directory"]


LINES: tuple[type[Line], ...] = (
    BackwardBegins,
    BackwardEnds,
    Stopped,
    Trace,
    Display,
    Result,
    Error,
    Output,
    Notice,
    Profile,
    MemoryGrows,
    Finding,
    Exited,
    Diagnosis,
    Process,
)


def as_json(line: Line) -> dict[str, Any]:
    """The line as plain JSON values, ``type`` first."""
    shown: dict[str, Any] = {"type": line.TYPE}
    for field in dataclasses.fields(line):
        value = getattr(line, field.name)
        if value != field.default:
            shown[field.name] = to_json(value)
    return shown


def finding_line(found: protocol.Finding, rank: int | None, process: int) -> Finding:
    """The line of a finding of process number ``process``."""
    at, change = found.node, found.cause
    node = FoundAt(name=at.name, unique_name=at.unique_name, module=at.module, parameter=at.parameter) if at else None
    cause = Cause(file=change.file, line=change.line, function=change.function, text=change.text) if change else None
    return Finding(
        id=found.id,
        kind=found.kind,
        severity=found.severity,
        confidence=found.confidence,
        message=found.message,
        node=node,
        backward=found.backward,
        iteration=found.iteration,
        forward=found.forward,
        cause=cause,
        evidence=found.evidence,
        next=found.next,
        victim_of=found.victim_of,
        rank=rank,
        process=process,
    )


class Examination(Protocol):
    """What ended with findings: a run under diagnosis, or a recorded one."""

    def ranked(self) -> list[Ranked]: ...

    def examined(self) -> list[protocol.Examined]: ...

    @property
    def iterations(self) -> int: ...

    @property
    def told_end(self) -> bool: ...


def diagnosis_line(found: Examination) -> Diagnosis:
    """The last line of a diagnosis."""
    listed = [
        RankedFinding(
            number=row.number,
            id=row.finding.id,
            kind=row.finding.kind,
            process=row.process,
            ranks=row.ranks,
            also=tuple(each.id for each in row.also),
        )
        for row in found.ranked()
    ]
    examined = [Looked(kind=row.kind, result=row.result, why=row.why) for row in found.examined()]
    return Diagnosis(findings=listed, examined=examined, iterations=found.iterations, whole=found.told_end)


def written(line: dict[str, Any]) -> str:
    """As it goes to stdout, without the line end."""
    return json.dumps(line, ensure_ascii=False, allow_nan=False)


def stop_fields(stop: NodeStop, message: str, process: int) -> dict[str, Any]:
    """The fields of ``Stopped`` at ``stop`` of process number ``process``; ``message`` is its sentence."""
    node = stop.node
    return {
        "reason": stop.reason,
        "breakpoints": list(stop.breakpoints),
        "phase": stop.phase,
        "backward": stop.backward,
        "index": stop.index,
        "total": stop.total,
        "depth": stop.depth,
        "rank": stop.rank,
        "node": node
        and Node(name=node.name, unique_name=node.unique_name, module=node.module, parameter=node.parameter),
        "forward": node and node.forward,
        "enclosing": list(stop.enclosing),
        "location": stop.location,
        "message": message,
        "iteration": stop.iteration,
        "evidence": list(stop.evidence),
        "truncated": stop.truncated,
        "process": process,
    }

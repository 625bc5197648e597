"""One profile, whichever tool made it. Values only; times are seconds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

PYTHON: Final = "python"
NATIVE: Final = "native"
NODE: Final = "node"

SECONDS: Final = "seconds"
SAMPLES: Final = "samples"
BYTES: Final = "bytes"

_FRAMEWORKS = ("torch", "paddle", "mindspore", "functorch", "torchgen", "triton")
_INSTALLED = re.compile(r"(?:^|[/\\])(?:site|dist)-packages[/\\]([^/\\]+)")
_LIBRARIES = re.compile(r"^(?:lib)?(torch|paddle|phi|c10|mindspore|shm|common\b)")
_SYMBOLS = re.compile(r"^(?:void |[\w:]+ )?(?:at|torch|c10|c10d|paddle|phi|egr|mindspore)::|^(?:aten|autograd)::")


@dataclass(frozen=True, slots=True)
class Frame:
    """A function, or a line of one: what ``Profile.lines`` says."""

    name: str
    file: str = ""  # of the source
    line: int = 0
    side: str = PYTHON  # PYTHON, NATIVE, or NODE: a node of the graph
    module: str = ""  # the library of a native frame, the module path of a node

    @property
    def origin(self) -> str:
        """ "python" for the user's own Python and its packages, "framework", "native" or "node"."""
        if self.side == NODE:
            return NODE
        installed = _INSTALLED.search(self.file)
        # py-spy and torch.profiler write paths from the folder of the packages on: "torch/_tensor.py"
        package = installed[1] if installed else self.file.partition("/")[0]
        if package.split(".")[0] in _FRAMEWORKS:
            return "framework"
        if self.side == NATIVE and (_LIBRARIES.match(self.module) or _SYMBOLS.match(self.name)):
            return "framework"
        return self.side


class Sample(NamedTuple):
    """A stack and what it weighs: seconds, samples or bytes."""

    stack: tuple[int, ...]  # indices into Profile.frames, the outermost first
    weight: float
    thread: str = ""


class Caller(NamedTuple):
    """What a function did when it was called by another one, as pstats counts it."""

    frame: int
    calls: int
    primitive: int  # not counting those within itself
    own: float
    cumulative: float


@dataclass(frozen=True, slots=True)
class Call:
    """A function of a profiler that counts calls and keeps no stacks (pstats)."""

    frame: int
    calls: int
    primitive: int
    own: float
    cumulative: float
    callers: tuple[Caller, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeTime:
    """Time of a node of the graph, the timer's own cost subtracted."""

    name: str
    unique_name: str
    phase: str  # "forward" or "backward"
    calls: int
    total: float
    gap: float  # from the end of the node before it on its thread to its begin, all calls together
    kernel: float | None = None  # of total: in the kernel, where that is known
    file: str = ""  # the line that made it
    line: int = 0
    module: str = ""
    median: float | None = None  # of one call; None where only the sum is known
    forward: float | None = None  # of the operator that made it, the median of one call; None: not measured

    @property
    def in_forward(self) -> float | None:
        """Of as many calls as were measured in the backward."""
        return self.forward * self.calls if self.forward is not None else None

    @property
    def usual(self) -> float:
        """All calls together without the odd ones, which another program or a first call made slow. No more than what
        they took: the median of few is a mean with the longest."""
        return self.total if self.median is None else min(self.median * self.calls, self.total)


@dataclass(frozen=True, slots=True)
class Iteration:
    """An iteration and its parts; None for what was not measured."""

    index: int
    total: float
    forward: float | None = None
    backward: float | None = None
    optimizer: float | None = None
    data: float | None = None
    disturbed: bool = False  # by the profiler's own work: its backward was hooked, or its forward kept stacks

    @property
    def other(self) -> float:
        """What is in none of its parts: Python between them, and what was not measured."""
        known = (self.forward, self.backward, self.optimizer, self.data)
        return max(self.total - sum(part for part in known if part is not None), 0.0)


@dataclass(frozen=True, slots=True)
class Wait:
    """A line that waited for data."""

    file: str
    line: int
    seconds: float
    calls: int


class Span(NamedTuple):
    """Something with a beginning and an end on the time line; ``duration`` 0 for a moment, as a log record is."""

    name: str
    category: str
    begin: float
    duration: float
    thread: str = ""
    process: str = ""
    facts: Mapping[str, str | int | float] = {}


@dataclass(frozen=True, slots=True)
class Profile:
    """What a profiler saw. ``samples`` or ``calls``, seldom both; ``nodes`` is the node timer's."""

    frames: tuple[Frame, ...] = ()
    samples: tuple[Sample, ...] = ()
    unit: str = SAMPLES
    calls: tuple[Call, ...] = ()
    nodes: tuple[NodeTime, ...] = ()
    iterations: tuple[Iteration, ...] = ()
    waits: tuple[Wait, ...] = ()
    spans: tuple[Span, ...] = ()
    lines: str = "executed"  # what Frame.line is: "executed", or "first" of the function
    launch_cost: float | None = None  # seconds that launching a node takes at most, measured
    # (frame, the one around it or -1) -> how many events: of a time line, whose equal stacks are one sample
    events: Mapping[tuple[int, int], int] = field(default_factory=dict)
    period: float = 0.0  # seconds between two samples, where it is known
    meta: Mapping[str, object] = field(default_factory=dict)  # profiler, region, framework, cost, machine, notes

    @property
    def total(self) -> float:
        """All that was measured."""
        if self.samples:
            return sum(sample.weight for sample in self.samples)
        return sum(call.own for call in self.calls)

    @property
    def empty(self) -> bool:
        return not (self.samples or self.calls or self.nodes or self.spans)


class Builder:
    """Numbers frames as they come."""

    def __init__(self) -> None:
        self._numbers: dict[Frame, int] = {}
        self._weights: dict[tuple[tuple[int, ...], str], float] = {}

    def frame(self, frame: Frame) -> int:
        return self._numbers.setdefault(frame, len(self._numbers))

    def add(self, stack: Iterable[int], weight: float, thread: str = "") -> None:
        """Equal stacks of one thread are one sample."""
        key = (tuple(stack), thread)
        self._weights[key] = self._weights.get(key, 0.0) + weight

    @property
    def frames(self) -> tuple[Frame, ...]:
        return tuple(self._numbers)

    @property
    def samples(self) -> tuple[Sample, ...]:
        return tuple(Sample(stack, weight, thread) for (stack, thread), weight in self._weights.items())

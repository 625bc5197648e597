"""One profile, whichever tool made it. Values only; times are seconds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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


DEEPEST: Final = 4096  # frames of a stack: what lies deeper counts as the last one's own
LARGEST: Final = 32 << 20  # frames of all different stacks together: 256 MB
OUTSIDE: Final = 0  # the place that no frame leads to


class Builder:
    """Numbers frames as they come, and adds up equal stacks of one thread.

    A stack is given whole (``add``), or as a place (``below``, ``weigh``): where each event is known by the one that
    it lies in, the time is that of the events, however deep they lie.
    """

    def __init__(self) -> None:
        self._numbers: dict[Frame, int] = {}
        self._weights: dict[tuple[tuple[int, ...], str], float] = {}
        self._places: dict[tuple[int, int], int] = {}  # (place above, frame)
        self._above = [(OUTSIDE, -1)]
        self._depth = [0]
        self._at_places: dict[tuple[int, str], float] = {}
        self._room = LARGEST

    def frame(self, frame: Frame) -> int:
        return self._numbers.setdefault(frame, len(self._numbers))

    def add(self, stack: Sequence[int], weight: float, thread: str = "") -> None:
        key = (tuple(stack[:DEEPEST]), thread)
        if key not in self._weights:
            self._takes(len(key[0]))
            self._weights[key] = 0.0
        self._weights[key] += weight

    def below(self, place: int, frame: int) -> int:
        """The place of ``frame`` when it is called at ``place``."""
        if self._depth[place] >= DEEPEST:
            return place
        found = self._places.setdefault((place, frame), len(self._above))
        if found == len(self._above):
            self._above.append((place, frame))
            self._depth.append(self._depth[place] + 1)
        return found

    def weigh(self, place: int, weight: float, thread: str = "") -> None:
        key = (place, thread)
        if key not in self._at_places:
            self._takes(self._depth[place])
            self._at_places[key] = 0.0
        self._at_places[key] += weight

    def _takes(self, frames: int) -> None:
        self._room -= frames
        if self._room < 0:
            raise ValueError(f"its stacks have more than {LARGEST:,} frames")

    def _stack(self, place: int, known: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
        """``known``: those asked for before, this one behind it."""
        stack, at = [], place
        while at not in known:
            at, frame = self._above[at]
            stack.append(frame)
        known[place] = known[at] + tuple(reversed(stack))
        return known[place]

    @property
    def frames(self) -> tuple[Frame, ...]:
        return tuple(self._numbers)

    @property
    def samples(self) -> tuple[Sample, ...]:
        known: dict[int, tuple[int, ...]] = {OUTSIDE: ()}
        for place, _ in sorted(self._at_places):  # a place's number is above that of what it lies in
            self._stack(place, known)
        whole = [Sample(stack, weight, thread) for (stack, thread), weight in self._weights.items()]
        return (*whole, *(Sample(known[place], weight, thread) for (place, thread), weight in self._at_places.items()))

"""Memory over iterations: a sample at the end of each outermost backward, and looks at what the program's variables
lead to, for one that holds more each time.

Cost while it is on: 43-47 us an iteration (steps of 155 us on torch and 115 us on Paddle, least of 3,000), a look at
iterations 3, 6 and 9, then at twice as many each time: ``look_ms`` says what the last one took. Off: nothing.

What grew over three looks may be a window or a cache that is not full yet: it is told of as such, there are looks every
``STEP`` iterations, and it is told of again when it has grown over ``SURE`` of them, or ended before.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.errors import Unsupported
from adbg.engine.inspect.memory.growth import LOOKS, Held, Look, grows, is_bounded, owners_first, size_of
from adbg.engine.inspect.memory.heap import free_heap
from adbg.engine.inspect.memory.owners import Group, groups_of, owner_of_group, reach_of
from adbg.engine.inspect.memory.process import resident
from adbg.engine.median import median
from adbg.engine.outside import own, suppress
from adbg.engine.protocol.messages import Course, Growth, MemoryGrows, MemorySample
from adbg.engine.python.user_code import user_frame
from adbg.engine.session.observers import Observer
from adbg.engine.session.session import Session

MOST_SAMPLES = 2_000
FIRST_LOOKS = (3, 6, 9)
STEP = 12  # iterations between looks while something grows that may be bounded
SURE = 30  # iterations over which what grows is no window of the usual sizes
FEWEST = 20  # samples from which a trend is told
_NOISE = 4.0  # standard deviations that a growth must come to
_LEAST = 64 << 10  # bytes over the samples looked at: less is the allocator's own


class MemoryCourse(Observer):
    """Switched by ``switch``. ``tell``: events to the front end. ``_lock`` guards what "adbg-reader" reads."""

    def __init__(self, session: Session, tell: Callable[[Any], object]) -> None:
        self._session = session
        self._tell = tell
        self._on = False
        self._lock = threading.Lock()
        self._samples: deque[MemorySample] = deque(maxlen=MOST_SAMPLES)
        self._seen = 0  # iterations since it is on
        self._next = FIRST_LOOKS[0]
        self._looks: list[Look] = []
        self._held = Held()
        self._marks: dict[str, int | None] = {}  # by backend, what was made so far at the look before
        self._growths: dict[str, Growth] = {}
        self._look_ms: float | None = None
        self._free_first: int | None = None

    @property
    def active(self) -> bool:
        return self._on

    def switch(self, on: bool) -> None:
        """From now on. What was sampled stays until it is switched on again."""
        if on != self._on:
            self._session.change(lambda: self._switch(on))

    def _switch(self, on: bool) -> None:
        if on:
            with self._lock:
                self._samples.clear()
                self._growths.clear()
            self._looks, self._marks, self._seen, self._next = [], {}, 0, FIRST_LOOKS[0]
        self._on = on
        for backend in self._session.backends:
            self.backend_added(backend)

    def backend_added(self, backend: Backend) -> None:
        """Arming would have every call reported: 140-165 us an iteration where this is 43-47."""
        with suppress(Unsupported):
            backend.watch_iterations(self._tick if self._on else None, "memory")

    def detach(self) -> None:
        self._switch(False)

    def course(self) -> Course:
        """Any thread."""
        with self._lock:
            samples, growths = list(self._samples), list(self._growths.values())
        slope, grows = trend(samples)
        free = [each for each in (self._free_first, free_heap()) if each is not None] if samples else []
        free = free if len(free) == 2 else []
        return Course(self._on, samples, slope, grows, growths, self._look_ms, self._session.stacks, free)

    # ---- on the program's threads

    def _tick(self, begins: bool) -> None:
        if begins:
            return
        try:
            self._ended()
        except own(Exception) as error:
            self._session.problems.defect("memory was not watched at the end of a backward", error)

    def _ended(self) -> None:
        self._seen += 1
        allocated = [each.allocated for b in self._session.backends for each in b.allocators() if each.allocated]
        iteration = sum(backend.iteration for backend in self._session.backends)
        sample = MemorySample(iteration, resident() or 0, sum(allocated) if allocated else None)
        with self._lock:
            self._samples.append(sample)
        if self._seen == 1:
            self._free_first = free_heap()
            self._mark()
        if self._seen >= self._next:
            self._look(iteration)
            later = next((each for each in FIRST_LOOKS if each > self._seen), self._seen * 2)
            self._next = min(later, self._seen + step) if (step := self._step()) else later

    def _step(self) -> int:
        """Until the next look, where something grows that may be bounded; no fewer iterations than it was seen growing
        by, else a slow leak would seem to end. 0: nothing such grows."""
        if all(growth.sure or growth.ended for growth in self._growths.values()) or len(self._looks) < 2:
            return 0
        return max(STEP, self._looks[-1].iteration - self._looks[-2].iteration)

    def _mark(self) -> None:
        self._marks = {backend.name: backend.made_so_far() for backend in self._session.backends}

    def _look(self, iteration: int) -> None:
        began = time.perf_counter()
        reach = reach_of(self._session.backends, user_frame(sys._getframe())).walk()
        groups: dict[str, Group] = {}
        try:
            groups = self._held.renamed(groups_of(reach, [*reach.tensors.values(), *reach.nodes.values()]))
            sizes = {}
            for name, group in groups.items():
                backend = self._backend_of(group)
                sizes[name] = size_of(group, backend, self._marks.get(backend.name) if backend is not None else None)
            self._looks = [*self._looks[1 - LOOKS :], Look(iteration, self._held.compared(groups, sizes))]
            self._mark()
            found = {name: by for name, group in groups.items() if (by := grows(self._looks, name))
                     and not is_bounded(group.way)}  # fmt: skip
            for name in owners_first({name: groups[name] for name in found}):
                self._grew(name, groups[name], found[name] == "nodes")
            self._ended_growths(iteration)
            self._look_ms = round((time.perf_counter() - began) * 1e3, 1)
        finally:
            groups.clear()
            reach.release()

    def _backend_of(self, group: Group) -> Backend | None:
        first = next(iter(group.members.values()))
        backends = self._session.backends
        return next((b for b in backends if b.is_tensor(first) or b.node_address(first) is not None), None)

    def _grew(self, name: str, group: Group, nodes: bool) -> None:
        counts = [(look.iteration, look.sizes[name]) for look in self._looks]
        owner = owner_of_group(group, self._backend_of(group))
        told = [(when, size.older if nodes else size.tensors) for when, size in counts]
        before = self._growths.get(name)
        if before is not None and not before.ended and before.nodes == nodes:  # since it was first seen
            told = [before.counts[0], *told[1 - LOOKS :]]
        growth = Growth(owner, told, nodes, sure=told[-1][0] - told[0][0] >= SURE)
        with self._lock:
            self._growths[name] = growth
        if before is None or (growth.sure and not before.sure):
            self._tell(MemoryGrows(growth))

    def _ended_growths(self, iteration: int) -> None:
        """What was told of and holds no more than at the look before."""
        before, now = self._looks[-2:] if len(self._looks) > 1 else (None, None)
        for name, growth in list(self._growths.items()):
            if before is None or now is None or growth.counts[-1][0] == iteration:
                continue
            ours, theirs = now.sizes.get(name), before.sizes.get(name)
            more = ours is not None and theirs is not None and (
                ours.older > theirs.older if growth.nodes else ours.tensors > theirs.tensors
            )  # fmt: skip
            if not more and not growth.ended:
                with self._lock:
                    self._growths[name] = replace(growth, ended=iteration)


def trend(samples: Sequence[MemorySample]) -> tuple[float | None, bool]:
    """(bytes an iteration over the later half, whether it grows by more than its noise)."""
    if len(samples) < FEWEST:
        return None, False
    half = samples[len(samples) // 2 :]
    xs = [float(sample.iteration) for sample in half]
    ys = [float(sample.rss) for sample in half]
    slope, noise = _line(xs, ys)
    third = len(ys) // 3
    levels = [median(part) for part in (ys[:third], ys[third : 2 * third], ys[2 * third :])]
    rises = levels[0] < levels[1] < levels[2]  # an arena that was taken once is a step, not a trend
    return slope, rises and slope * (xs[-1] - xs[0]) > max(_LEAST, _NOISE * noise)


def _line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Slope of the least-squares line, and the standard deviation of what it leaves."""
    x0, y0 = sum(xs) / len(xs), sum(ys) / len(ys)
    slope = sum((x - x0) * (y - y0) for x, y in zip(xs, ys)) / sum((x - x0) ** 2 for x in xs)
    rest = [y - y0 - slope * (x - x0) for x, y in zip(xs, ys)]
    return slope, (sum(value**2 for value in rest) / len(rest)) ** 0.5

"""Memory over iterations: a sample at the end of each outermost backward, and looks at what the program's variables
lead to, for one that holds more each time.

Cost while it is on: 30 us an iteration, and a look of some 100 ms at iterations 3, 6 and 9, then at twice as many each
time. Off: nothing.
"""

from __future__ import annotations

import statistics
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.inspect.memory.growth import LOOKS, Look, grows, is_bounded, owners_first, size_of
from adbg.engine.inspect.memory.owners import Group, groups_of, owner_of_group, reach_of
from adbg.engine.inspect.memory.process import resident
from adbg.engine.outside import own
from adbg.engine.protocol.messages import Course, Growth, MemoryGrows, MemorySample
from adbg.engine.python.user_code import user_frame
from adbg.engine.session.observers import Observer
from adbg.engine.session.running_call import Running
from adbg.engine.session.session import Session
from adbg.engine.types import BriefRun

MOST_SAMPLES = 2_000
FIRST_LOOKS = (3, 6, 9)
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
        self._marks: dict[str, int | None] = {}  # by backend, what was made so far at the look before
        self._growths: dict[str, Growth] = {}
        self._look_ms: float | None = None

    @property
    def active(self) -> bool:
        return self._on

    @property
    def arms(self) -> bool:
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

    def detach(self) -> None:
        self._on = False

    def course(self) -> Course:
        """Any thread."""
        with self._lock:
            samples, growths = list(self._samples), list(self._growths.values())
        slope, grows = trend(samples)
        return Course(self._on, samples, slope, grows, growths, self._look_ms, self._session.stacks)

    # ---- on the program's threads

    def backward_end(self, running: Running, us: float, error: BaseException | None) -> None:
        if running.call.depth == 0:
            self._ended()

    def brief_end(self, run: BriefRun) -> None:
        self._ended()

    def _ended(self) -> None:
        self._seen += 1
        allocated = [each.allocated for b in self._session.backends for each in b.allocators() if each.allocated]
        iteration = sum(backend.iteration for backend in self._session.backends)
        sample = MemorySample(iteration, resident() or 0, sum(allocated) if allocated else None)
        with self._lock:
            self._samples.append(sample)
        if self._seen == 1:
            self._mark()
        if self._seen >= self._next:
            self._next = next((each for each in FIRST_LOOKS if each > self._seen), self._seen * 2)
            try:
                self._look(iteration)
            except own(Exception) as error:
                self._session.problems.defect("the search for growing memory failed", error)

    def _mark(self) -> None:
        self._marks = {backend.name: backend.made_so_far() for backend in self._session.backends}

    def _look(self, iteration: int) -> None:
        reach = reach_of(self._session.backends, user_frame(sys._getframe())).walk()
        groups: dict[str, Group] = {}
        try:
            groups = groups_of(reach, [*reach.tensors.values(), *reach.nodes.values()])
            sizes = {}
            for name, group in groups.items():
                backend = self._backend_of(group)
                sizes[name] = size_of(group, backend, self._marks.get(backend.name) if backend is not None else None)
            self._looks = [*self._looks[1 - LOOKS :], Look(iteration, sizes)]
            self._mark()
            self._look_ms = round(reach.ms, 1)
            found = {name: by for name, group in groups.items() if (by := grows(self._looks, name))
                     and not is_bounded(group.way)}  # fmt: skip
            for name in owners_first({name: groups[name] for name in found}):
                self._grew(name, groups[name], found[name] == "nodes")
            self._ended_growths(iteration)
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
        with self._lock:
            known = name in self._growths
            self._growths[name] = Growth(owner, told, nodes)
        if not known:
            self._tell(MemoryGrows(self._growths[name]))

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
    slope, intercept = statistics.linear_regression(xs, ys)
    noise = statistics.pstdev([y - slope * x - intercept for x, y in zip(xs, ys)])
    third = len(ys) // 3
    levels = [statistics.median(part) for part in (ys[:third], ys[third : 2 * third], ys[2 * third :])]
    rises = levels[0] < levels[1] < levels[2]  # an arena that was taken once is a step, not a trend
    return slope, rises and slope * (xs[-1] - xs[0]) > max(_LEAST, _NOISE * noise)

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
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.inspect.memory.owners import Group, groups_of, owner_of_group, tensor_types
from adbg.engine.inspect.memory.process import resident
from adbg.engine.inspect.memory.reach import Reach
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
        self._looks: list[tuple[int, dict[str, int]]] = []
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
            self._looks, self._seen, self._next = [], 0, FIRST_LOOKS[0]
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
        if self._seen >= self._next:
            self._next = next((each for each in FIRST_LOOKS if each > self._seen), self._seen * 2)
            try:
                self._look(iteration)
            except own(Exception) as error:
                self._session.problems.defect("the search for growing memory failed", error)

    def _look(self, iteration: int) -> None:
        backends: Sequence[Backend] = self._session.backends
        reach = Reach(tensor_types(backends), user_frame(sys._getframe())).walk()
        try:
            groups = groups_of(reach, reach.tensors.values())
            sizes = {name: len(group.members) for name, group in groups.items()}
            self._look_ms = round(reach.ms, 1)
            self._looks = [*self._looks[-2:], (iteration, sizes)]
            if len(self._looks) == 3:
                for name in _rising([counts for _, counts in self._looks]):
                    self._grew(name, groups[name])
        finally:
            reach.release()

    def _grew(self, name: str, group: Group) -> None:
        backend = next((b for b in self._session.backends if any(map(b.is_tensor, group.members.values()))), None)
        growth = Growth(
            owner_of_group(group, backend), [(when, counts[name]) for when, counts in self._looks if name in counts]
        )
        with self._lock:
            known = name in self._growths
            self._growths[name] = growth
        if not known:
            self._tell(MemoryGrows(growth))


def _rising(looks: Sequence[dict[str, int]]) -> list[str]:
    """What is there at the last three looks and more each time; of what comes from the same list the whole only."""
    first, middle, last = looks
    return [name for name, count in last.items() if 0 < first.get(name, 0) < middle.get(name, 0) < count]


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

"""A region that a checkpoint runs twice: what its first pass computed beside what the second does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.backends.base import RecomputeCall, Watcher
from adbg.engine.backends.common.tracebacks import strip_own
from adbg.engine.outside import suppress
from adbg.engine.types import SourceLine

MOST = 2_000  # operators of one region that are compared
_CLOSE = 1e-4  # kernels that are not deterministic differ by less
Row = tuple[str, float, "SourceLine | None"]


@dataclass(slots=True, eq=False)
class Passes:
    """What one call of a checkpoint computed; ``inputs``: norms of what it was given."""

    function: Any
    line: SourceLine | None
    keywords: dict[str, Any]
    tell: Callable[[RecomputeCall], None]
    count: int = 0
    rows: list[Row] = field(default_factory=list)
    inputs: tuple[float, ...] = ()
    next: int = 0
    told: bool = False
    inputs_differ: bool = False

    def begin(self, inputs: tuple[float, ...]) -> None:
        self.count += 1
        self.next = 0
        if self.count == 1:
            self.inputs = inputs
        else:
            self.inputs_differ = len(inputs) == len(self.inputs) and not all(map(same, inputs, self.inputs))

    def row(self, name: str, norm: float, at: SourceLine | None) -> None:
        if self.count == 1:
            if len(self.rows) < MOST:
                self.rows.append((name, norm, at))
            return
        if self.count != 2 or self.told or self.next >= MOST:
            return
        place, self.next = self.next, self.next + 1
        known = self.rows[place] if place < len(self.rows) else ("", 0.0, None)
        if known[0] == name and same(known[1], norm):
            return
        self.told = True
        with suppress(Exception):
            self.tell(
                RecomputeCall(
                    self.function, self.line, place, known[:2], (name, norm), at or known[2], self.keywords,
                    self.inputs_differ,
                )
            )  # fmt: skip


def same(one: float, other: float) -> bool:
    return one == other or one != one or abs(one - other) <= _CLOSE * max(abs(one), abs(other))


class Region:
    """Stands in for the function that a checkpoint is given. ``watched(passes, args, run)`` runs it."""

    def __init__(self, function: Any, passes: Passes, watched: Callable[[Passes, Any, Callable[[], Any]], Any]) -> None:
        self._function = function
        self._passes = passes
        self._watched = watched
        self.__wrapped__ = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._watched(self._passes, args, lambda: self._function(*args, **kwargs))
        except BaseException as error:
            strip_own(error)
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


class Listening:
    watcher: Watcher | None = None

    def tell(self, call: RecomputeCall) -> None:
        if self.watcher is not None:
            self.watcher.recompute(call)

"""A region that a checkpoint runs twice: what its first pass computed beside what the second does."""

from __future__ import annotations

import functools
import linecache
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.backends.base import RecomputeCall, Watcher
from adbg.engine.backends.common.tracebacks import strip_own
from adbg.engine.outside import suppress
from adbg.engine.types import SourceLine

MOST = 2_000  # operators of one region that are compared
_CLOSE = 1e-4  # kernels that are not deterministic differ by less
_MODULES = 500  # of one region whose attributes are compared
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
    uses: list[int] = field(default_factory=list)  # places of operators that were given a plain number
    numbers: dict[tuple[str, str], float] = field(default_factory=dict)
    changed: dict[tuple[str, str], float] = field(default_factory=dict)  # by the first pass
    rows_within: list[Row] = field(default_factory=list)  # of the first pass, where ``rows`` are its results

    def begin(self, inputs: tuple[float, ...]) -> None:
        self.count += 1
        self.next = 0
        self.numbers = dict(numbers_of(self.function)) if self.count <= 2 else {}
        if self.count == 1:
            self.inputs = inputs
        else:
            self.inputs_differ = len(inputs) == len(self.inputs) and not all(map(same, inputs, self.inputs))

    def end(self) -> None:
        """A pass is over, by an exception too."""
        if self.count > 2:
            return
        now = dict(numbers_of(self.function))
        changed = {key: value for key, value in now.items() if self.numbers.get(key, value) != value}
        if self.count == 1:
            self.changed = changed
            return
        for key in () if self.told else changed.keys() & self.changed.keys():
            used = re.compile(rf"\.{re.escape(key[1])}\b")
            for place in self.uses:
                name, norm, line = self.rows[place]
                if line is None or not used.search(linecache.getline(line.file, line.line)):
                    continue
                self.told = True
                values = f"{key[0]}.{key[1]}", self.changed[key], changed[key]
                call = RecomputeCall(
                    self.function, self.line, place, (name, norm), ("", 0.0), line, self.keywords, changed=values
                )
                self.tell(call)
                return

    def row(
        self, name: str, norm: float, at: SourceLine | None, number: bool = False, carries: bool = True,
        source: RecomputeCall | None = None,
    ) -> RecomputeCall | None:  # fmt: skip
        """``number``: a plain number is among its arguments. ``carries``: a gradient goes through the result, as is
        known in the second pass. Returns a difference that is held back: statistics that each pass moves on (those of a
        BatchNorm) are nothing but that, unless something that carries a gradient is computed of them: it comes with
        that difference as its ``source``."""
        if self.count == 1:
            if len(self.rows) < MOST:
                if number:
                    self.uses.append(len(self.rows))
                self.rows.append((name, norm, at))
            return None
        if self.count != 2 or self.told or self.next >= MOST:
            return None
        place, self.next = self.next, self.next + 1
        known = self.rows[place] if place < len(self.rows) else ("", 0.0, None)
        if known[0] == name and same(known[1], norm):
            return None
        found = source or RecomputeCall(
            self.function, self.line, place, known[:2], (name, norm), at or known[2], self.keywords, self.inputs_differ
        )
        if not carries and known[0] == name:
            return found
        self.tell_once(found)  # behind other operators nothing can be compared
        return None

    def tell_once(self, found: RecomputeCall) -> None:
        if not self.told:
            self.told = True
            with suppress(Exception):
                self.tell(found)


def same(one: float, other: float) -> bool:
    return one == other or one != one or abs(one - other) <= _CLOSE * max(abs(one), abs(other))


def numbers_of(function: Any) -> Iterator[tuple[tuple[str, str], float]]:
    """Attributes that are plain numbers, of the module that a region is, that its method is of, or that its function
    has from around it: ((place and class of the module, name), value)."""
    while isinstance(function, functools.partial):
        function = function.func
    owners = [function]
    with suppress(Exception):
        owners.append(getattr(function, "__self__", None))
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # empty so far
            owners.append(cell.cell_contents)
    for owner in owners:
        with suppress(Exception):  # an object of the program's may raise anything where it is asked for a name
            named = getattr(owner, "named_modules", None) or getattr(owner, "named_sublayers", None)
            if named is None or isinstance(owner, type):
                continue
            options = {} if hasattr(owner, "named_modules") else {"include_self": True}
            for count, (path, module) in enumerate(named(**options)):
                if count >= _MODULES:
                    break
                who = type(module).__name__ + (f" {path}" if path else "")
                for name, value in tuple(vars(module).items()):
                    if type(value) in (int, float) and value == value:
                        yield (who, name), value


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

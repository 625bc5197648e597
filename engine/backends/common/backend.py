"""A backend over its parts: the entry into the engine, the facts about tensors, the modules seen so far.

Methods run on the thread that calls them, ``arm`` also on the reader thread.
"""

from __future__ import annotations

import functools
import os
import resource
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from adbg.engine.backends.base import (
    Backend,
    BackwardCall,
    Capabilities,
    CreationWatch,
    DoctorLine,
    ForwardTimer,
    HookSink,
    Observation,
    Tap,
    Watcher,
)
from adbg.engine.backends.common.allocators import allocators_of
from adbg.engine.backends.common.observing.module_calls import Modules
from adbg.engine.backends.common.observing.training_start import TrainingStart
from adbg.engine.backends.common.private_use import PrivateUse
from adbg.engine.backends.common.timing.phases import PhaseTaps, TellPhase
from adbg.engine.backends.common.user_files import FrameFilter
from adbg.engine.native import load
from adbg.engine.outside import suppress
from adbg.engine.protocol.messages import Allocator


def _tell_all(listeners: Sequence[Callable[[bool], None]], begins: bool) -> None:
    for tell in listeners:
        tell(begins)


class NonFinite(tuple[int, int]):
    """(NaN elements, infinite elements) in an expression: true where there are any, so that ``if nonfinite(t)`` says
    what it seems to."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return any(self)


class Entry(Protocol):
    """The entry into a framework's engine."""

    armed: bool
    tick: Callable[[bool], None] | None

    @property
    def count(self) -> int: ...

    @property
    def iteration(self) -> int: ...

    def install(self, sink: HookSink) -> None: ...

    def uninstall(self) -> None: ...

    def at_hand(self) -> tuple[BackwardCall, int | None] | None: ...


class Named(Modules, Protocol):
    """The modules seen so far, and their names."""

    def parameters(self) -> Iterable[tuple[str, Any]]: ...

    def buffers(self) -> Iterable[tuple[str, Any]]: ...

    def kind_among(self, *kinds: Any) -> str: ...


class Watching(Protocol):
    """What follows the making of nodes."""

    def watch(self) -> CreationWatch: ...


def native_off() -> Sequence[DoctorLine]:
    """Why the optional extension does nothing for a framework."""
    module, why = load.core()
    told = f"{why}; the Python hooks do its work, more slowly" if module is None else "built, but it has no part here"
    return (DoctorLine("off", "native core", told),)


class FrameworkBackend(Backend):
    """What is the same for every framework. A backend makes the parts in its ``__init__``."""

    uses: ClassVar[Sequence[PrivateUse]]
    limits: ClassVar[Sequence[tuple[str, str]]]  # for ``adbg doctor``: what this framework does not let adbg do
    _framework: ClassVar[Any]  # the module
    _user_frames: FrameFilter
    _entry: Entry
    _modules: Named
    _phases: PhaseTaps
    _forward: ForwardTimer | None = None  # None: the framework gives no safe way
    _creations: Watching
    _new_taps: Callable[[], Sequence[Tap]]  # for diagnosis: one of each, none put in
    _native_lines: Callable[[], Sequence[DoctorLine]] = staticmethod(native_off)
    _training: Callable[[], Iterable[tuple[Any, str]]] = staticmethod(tuple)  # what only a process calls that trains
    _told: Mapping[str, Callable[[bool], None]] = {}  # by who watches iterations

    def reducer(self) -> str:
        return self._modules.kind_among(self.reducer_kind)

    # ---- in and out

    def install(self, sink: HookSink) -> None:
        self._entry.install(sink)
        taps = self.collectives()
        if taps is not None:
            taps.install()

    def abandon(self, trains: Callable[[], None] | None = None) -> None:
        self.uninstall()
        if trains is not None:
            TrainingStart(self._training(), trains)

    def uninstall(self) -> None:
        self._phases.watch(None)
        if self._forward is not None:
            self._forward.abandon()
        taps = self.collectives()
        if taps is not None:
            taps.uninstall()
        self.set_stacks(False)
        self._entry.uninstall()

    def arm(self, armed: bool) -> None:
        self._entry.armed = armed

    def watch_iterations(self, tell: Callable[[bool], None] | None, who: str = "") -> None:
        told = {name: each for name, each in self._told.items() if name != who}
        self._told = {**told, who: tell} if tell is not None else told
        every = tuple(self._told.values())
        self._entry.tick = functools.partial(_tell_all, every) if len(every) > 1 else next(iter(every), None)

    def watch_phases(self, tell: TellPhase | None) -> None:
        self._phases.watch(tell)

    def forward_timer(self) -> ForwardTimer | None:
        return self._forward

    def observe(self, watcher: Watcher) -> Observation:
        return Observation(self._new_taps(), watcher)

    @property
    def backward_count(self) -> int:
        return self._entry.count

    @property
    def iteration(self) -> int:
        return self._entry.iteration

    def at_hand(self) -> tuple[BackwardCall, int | None] | None:
        return self._entry.at_hand()

    def watch_creation(self) -> CreationWatch:
        return self._creations.watch()

    def parameters(self) -> Iterable[tuple[str, Any]]:
        return self._modules.parameters()

    def buffers(self) -> Iterable[tuple[str, Any]]:
        return self._modules.buffers()

    # ---- tensors: the rest are the functions of a backend's own module ``tensors``

    def helpers(self) -> Mapping[str, Any]:
        counted = lambda value: NonFinite(self.nonfinite(value))  # noqa: E731
        own = {"norm": self.norm, "stats": self.stats, "nonfinite": counted}
        return {self.name: self._framework, **own}

    # ---- memory and doctor

    def device_memory(self) -> Any:
        """The framework's module for a device that is in use (``memory_allocated``, ...); None while there is none:
        asking must not start one."""
        return None

    def memory(self) -> Mapping[str, float]:
        """rss, peak_rss; of a device in use: allocated, reserved and peak."""
        found: dict[str, float] = {"peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0}
        with suppress(OSError, ValueError, IndexError), open("/proc/self/statm", encoding="ascii") as statm:
            found["rss"] = float(int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
            found["peak_rss"] = max(found["peak_rss"], found["rss"])  # the kernel adds to the peak now and then only
        with suppress(Exception):
            device = self.device_memory()
            if device is not None:
                found["cuda_allocated"] = float(device.memory_allocated())
                found["cuda_reserved"] = float(device.memory_reserved())
                found["cuda_peak"] = float(device.max_memory_allocated())
        return found

    def allocators(self) -> Sequence[Allocator]:
        return allocators_of(self.name, self.device_memory())

    def why_off(self, capability: str) -> str:
        return f"this {self.name} lacks what is listed as missing above"

    def doctor(self) -> Sequence[DoctorLine]:
        place = os.path.dirname(self._framework.__file__)
        lines = [DoctorLine("ok", self.name, f"{self.version} in {place}")]
        for use in self.uses:
            detail = f"{use.purpose}: {use.problem}" if use.problem else use.purpose
            lines.append(DoctorLine("ok" if use.present else "missing", use.name, detail))
        for name in Capabilities.__dataclass_fields__:
            if not getattr(self.capabilities, name):
                lines.append(DoctorLine("off", name.replace("_", " "), self.why_off(name)))
        lines.extend(self._native_lines())
        lines.extend(DoctorLine("limit", what, detail) for what, detail in self.limits)
        return lines

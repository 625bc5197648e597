"""A backend over its parts: the entry into the engine, the facts about tensors, the modules seen so far.

Methods run on the thread that calls them, ``arm`` also on the reader thread.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from adbg.engine.backends.base import Backend, BackwardCall, Capabilities, CreationWatch, DoctorLine, HookSink
from adbg.engine.backends.common.private_use import PrivateUse
from adbg.engine.types import TensorMeta, TensorStats, TensorWindow


class Entry(Protocol):
    """The entry into a framework's engine."""

    armed: bool
    count: int
    iteration: int

    def install(self, sink: HookSink) -> None: ...

    def uninstall(self) -> None: ...

    def at_hand(self) -> tuple[BackwardCall, int | None] | None: ...


class TensorFacts(Protocol):
    """The module ``tensors`` of a backend: see ``Backend``."""

    def is_tensor(self, value: Any) -> bool: ...

    def meta(self, value: Any) -> TensorMeta: ...

    def stats(self, value: Any, exact: bool = False, bins: int = 16) -> TensorStats: ...

    def window(self, value: Any, slice_text: str, rows: int, cols: int) -> TensorWindow: ...

    def norm(self, value: Any) -> float: ...

    def nonfinite(self, value: Any) -> tuple[int, int]: ...

    def text(self, value: Any) -> str: ...


class Named(Protocol):
    """The modules seen so far."""

    def parameters(self) -> Iterable[tuple[str, Any]]: ...


class Watching(Protocol):
    """What follows the making of nodes."""

    def watch(self) -> CreationWatch: ...


class FrameworkBackend(Backend):
    """What is the same for every framework. A backend makes the parts in its ``__init__``."""

    uses: ClassVar[Sequence[PrivateUse]]
    limits: ClassVar[Sequence[tuple[str, str]]]  # for ``adbg doctor``: what this framework does not let adbg do
    _framework: ClassVar[Any]  # the module
    _tensors: ClassVar[TensorFacts]
    _entry: Entry
    _modules: Named
    _creations: Watching

    # ---- in and out

    def install(self, sink: HookSink) -> None:
        self._entry.install(sink)

    def uninstall(self) -> None:
        self.set_stacks(False)
        self._entry.uninstall()

    def arm(self, armed: bool) -> None:
        self._entry.armed = armed

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

    # ---- tensors

    def is_tensor(self, value: Any) -> bool:
        return self._tensors.is_tensor(value)

    def meta(self, value: Any) -> TensorMeta:
        return self._tensors.meta(value)

    def stats(self, value: Any, exact: bool = False, bins: int = 16) -> TensorStats:
        return self._tensors.stats(value, exact, bins)

    def window(self, value: Any, slice_text: str, rows: int, cols: int) -> TensorWindow:
        return self._tensors.window(value, slice_text, rows, cols)

    def norm(self, value: Any) -> float:
        return self._tensors.norm(value)

    def nonfinite(self, value: Any) -> tuple[int, int]:
        return self._tensors.nonfinite(value)

    def text(self, value: Any) -> str:
        return self._tensors.text(value)

    def helpers(self) -> Mapping[str, Any]:
        tensors = self._tensors
        own = {"norm": tensors.norm, "stats": tensors.stats, "nonfinite": tensors.nonfinite}
        return {self.name: self._framework, **own}

    # ---- memory and doctor

    def device_memory(self) -> Any:
        """The framework's module for a device that is in use (``memory_allocated``, ...); None while there is none:
        asking must not start one."""
        return None

    def memory(self) -> Mapping[str, float]:
        """rss, peak_rss; of a device in use: allocated, reserved and peak."""
        found: dict[str, float] = {"peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0}
        with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/statm", encoding="ascii") as statm:
            found["rss"] = float(int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
        with contextlib.suppress(Exception):
            device = self.device_memory()
            if device is not None:
                found["cuda_allocated"] = float(device.memory_allocated())
                found["cuda_reserved"] = float(device.memory_reserved())
                found["cuda_peak"] = float(device.max_memory_allocated())
        return found

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
        lines.extend(DoctorLine("limit", what, detail) for what, detail in self.limits)
        return lines

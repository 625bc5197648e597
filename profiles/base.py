"""What a profiler is: it says whether it can run here, measures a region, and leaves an artifact.

Standard library only: this loads into the program.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from adbg.engine.errors import AdbgError
from adbg.engine.types import SourceLine
from adbg.profiles.region import Region

META = "meta.json"
Where = Literal["program", "outside"]


class ProfileError(AdbgError):
    """A profile cannot be made: what happened, why, and what to do."""


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a profiler can run here; if not, ``why``, and ``hint``: how to get it."""

    ok: bool
    why: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Artifact:
    """What a profiler left: ``file`` in ``folder``, of ``format`` ("pstats", "gperftools", "collapsed", "chrome",
    "nodes"), "" where nothing was measured. ``meta``: what only this profiler can tell. ``remark``: why there is
    nothing, or why what there is says little, and what to do."""

    profiler: str
    folder: str
    file: str
    format: str
    meta: dict[str, Any] = field(default_factory=dict)
    remark: str = ""


class Profiler(abc.ABC):
    """One measurement of a region. Made for one use; ``start`` and ``stop`` run on the thread that is measured where
    ``bound`` is true, otherwise on any."""

    name = ""
    what = ""  # one line for `profile list` and `adbg doctor`
    format = ""
    file = ""  # its name in the artifact's folder
    where: Where = "program"
    bound = False  # measures the thread that starts it
    phase: Callable[[str, bool, SourceLine | None], None] | None = None  # wants ``Backend.watch_phases`` meanwhile
    ends_anywhere = True  # if it is bound: ``stop`` also works on another thread
    pid = 0  # of the process to be measured, for one that runs outside it

    def displaced(self, by: str) -> None:  # noqa: B027
        """The program itself starts a profiler beside which this one cannot run: end the region. Set by ``control``."""

    @abc.abstractmethod
    def available(self) -> Availability:
        """Whether it can run in this process, now. Imports nothing."""

    @abc.abstractmethod
    def start(self, region: Region, folder: str) -> None:
        """Begin to measure; ``folder`` is there, empty and writable.

        Raises:
            ProfileError: another profiler runs, or the tool refuses.
        """

    def pause(self) -> None:  # noqa: B027  most have nothing to do
        """The program stops at a breakpoint: the time until ``resume`` is none of its own. On its thread."""

    def resume(self) -> None:  # noqa: B027
        """It continues."""

    def tick(self, begins: bool) -> None:  # noqa: B027
        """An outermost backward call begins, before adbg does anything for it, or has ended, and adbg is done."""

    def checkpoint(self) -> None:  # noqa: B027
        """Save what was measured so far, in case the process is killed. Called now and then."""

    def end_later(self, end: Callable[[], None]) -> None:  # noqa: B027
        """Where it does not end anywhere, and its thread is busy: ``end()``, which ends it, is to be called when that
        thread comes by next. The main thread is asked to already, and adbg itself may be gone by then."""

    @abc.abstractmethod
    def stop(self) -> Artifact:
        """End, and write what was measured. Again, where an exception of the program's came into it: what was done is
        not done twice. Raises ProfileError, OSError."""

    def undo(self) -> None:
        """``start`` or ``stop`` failed, or an exception came into it: nothing of it may go on."""
        self.abandon()

    def abandon(self) -> None:  # noqa: B027
        """In a forked child: let go, write nothing."""


def region_meta(region: Region) -> dict[str, Any]:
    return asdict(region)

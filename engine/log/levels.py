"""What is logged, of every framework in the program: levels, regions, and where fd 2 goes meanwhile.

Called on "adbg-reader", on parked threads, and from hooks under the turn. A framework with a VLOG of its own writes to
fd 2, which goes to the run directory's VLOG file while adbg has a level on; for the others the narrator writes there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from adbg.engine.backends.base import Backend, BackwardCall, NativeVlog
from adbg.engine.errors import AdbgError, CommandError, Unsupported
from adbg.engine.glog import parse_levels
from adbg.engine.log.narrator import Narrator
from adbg.engine.log.redirect import StderrTap
from adbg.engine.outside import own, suppress
from adbg.engine.places import Lines, parse_lines
from adbg.engine.protocol import messages as p
from adbg.engine.python.line_trace import LineRegions
from adbg.engine.session.observers import Observer
from adbg.engine.session.running_call import Running

LogFile = Callable[[], tuple["Path | str", bool]]
"""Where fd 2 is to go, and whether that file is to be kept; "": a file without a name."""


@dataclass(frozen=True, slots=True)
class Region:
    """``levels`` hold while ``lines`` run, or (``backward``) while the nodes run that they made."""

    lines: Lines
    levels: dict[str, int]
    backward: bool

    def __str__(self) -> str:
        parts = [str(level) if name == "*" else f"{name}={level}" for name, level in self.levels.items()]
        return f"{'bw ' if self.backward else ''}{','.join(parts)} at {self.lines}"


@dataclass(slots=True)
class Raised:
    """A node that runs at the levels of ``regions``. ``native`` None: the narrator's are raised."""

    call: BackwardCall
    key: int
    native: NativeVlog | None
    regions: list[Region]


class LogLevels(Observer):
    """One agent's levels, as ``vlog`` sets them.

    Attributes:
        narrator: writes for the frameworks that have no VLOG of their own.
        natives: the VLOG of those that have, by the framework's name.
        regions: what is logged more at some lines, or in the nodes that they made.
        raised: nodes that run at higher levels now (``NodeLog``).
    """

    def __init__(self, narrator: Narrator, log_file: LogFile, problem: Callable[[str], None]) -> None:
        self.narrator = narrator
        self.natives: dict[str, NativeVlog] = {}
        self.regions: list[Region] = []
        self.raised: list[Raised] = []
        self.tap = StderrTap()
        self._log_file = log_file
        self._problem = problem
        self._narrated = 0  # frameworks that the narrator speaks for
        self._asked: list[str] = []  # level texts since the last one that set all, for frameworks that come later
        self._forward = LineRegions(problem)

    @property
    def active(self) -> bool:
        """Of the methods below that a run calls, only a framework's own VLOG needs any."""
        return bool(self.natives)

    def backend_added(self, backend: Backend) -> None:
        native = backend.native_vlog()
        if native is None:
            self._narrated += 1
            self._tell_narrator(backend)
            return
        self.natives[backend.name] = native
        native.elsewhere = self.tap.elsewhere
        self._take_over(native)
        for text in self._asked:
            native.set_levels(text)
            self._warn(native, parse_levels(text))
        for region in self.regions:
            self._watch(region, native)
        self._redirect()

    def _take_over(self, native: NativeVlog) -> None:
        """Levels that the program was started with are as if the user had asked adbg for them, who may change them
        then, and reads them apart from the program's stderr. Not in a program that ran before adbg came."""
        levels = {name: level for name, level in native.environment.items() if level}
        if levels and not self._asked and self._log_file()[0]:
            text = ",".join(str(level) if name == "*" else f"{name}={level}" for name, level in levels.items())
            self._asked.append(text)
            self._problem(f"vlog {text}, as the environment has it (GLOG_v, GLOG_vmodule); `vlog off` ends it")

    def _tell_narrator(self, backend: Backend) -> None:
        for text in self._asked:
            try:
                self.narrator.set_levels(text)
            except CommandError as error:  # asked before any framework was there
                self._problem(str(error))
        if not self.natives and any(not region.backward for region in self.regions):
            self._problem(f"{backend.name} writes no records while forward lines run: `vlog N at` says nothing there")

    def needs_calls(self) -> bool:
        """Some framework may write records now, on adbg's word or the script's."""
        if self.tap.on:
            return True
        for native in self.natives.values():  # noqa: SIM110  (asked at every backward: a generator costs as much again)
            if native.loud:
                return True
        return False

    @property
    def zeros(self) -> Sequence[ctypes.c_int32] | None:
        words = [native.words for native in self.natives.values()]
        if self.tap.on or None in words:
            return None
        return [word for each in words for word in each or ()]

    def quiet(self, on: bool) -> None:
        """Nothing that adbg does from now on is in a framework's log (hooks, answers at a stop), or all again."""
        for native in self.natives.values():
            native.quiet(on)

    def backward_end(self, running: Running, us: float, error: BaseException | None) -> None:
        if not running.call.depth:
            for native in self.natives.values():
                native.settle()

    @property
    def narrates(self) -> bool:
        """The narrator writes records of some node."""
        return self.narrator.enabled and (self._narrated > 0 or not self.natives)

    def speaks_for(self, backend: Backend) -> bool:
        """Whether the narrator tells what ``backend``'s framework does."""
        return self.narrator.enabled and backend.name not in self.natives

    @property
    def backward_regions(self) -> bool:
        return any(region.backward for region in self.regions)

    # ---- requests

    def set(self, text: str, at: str = "", backward: bool = False) -> p.VlogBody:
        """Answer ``adbg/vlog``. Raises CommandError, Unsupported."""
        if at or backward:
            self._add_region(text, at, backward)
        elif text:
            self._set_levels(text)
        return self.state()

    def state(self) -> p.VlogBody:
        levels = self.narrator.set_levels("") if self._narrated or not self.natives else {}
        for native in self.natives.values():
            levels = {**levels, **native.set_levels("")}
        return p.VlogBody(levels, [str(region) for region in self.regions], self.tap.path)

    def _set_levels(self, text: str) -> None:
        changes = parse_levels(text)
        if self._narrated or not self.natives:
            try:
                self.narrator.set_levels(text)
            except CommandError:
                if self._narrated and not self.natives:
                    raise
                # a module of a framework with its own VLOG, perhaps one that is not imported yet
                known = ",".join(f"{name}={level}" for name, level in changes.items() if name == "*")
                self.narrator.set_levels(known)
        for native in self.natives.values():
            native.set_levels(text)
            self._warn(native, changes)
        if "*" in changes:
            self._asked.clear()
        self._asked.append(text)
        if changes == {"*": 0}:
            self._clear_regions()
        self._redirect()

    def _warn(self, native: NativeVlog, levels: Mapping[str, int]) -> None:
        effect = native.effect(levels)
        if effect:
            self._problem(effect)

    def _add_region(self, text: str, at: str, backward: bool) -> None:
        levels = parse_levels(text)
        if not at or not levels or not any(levels.values()):
            raise CommandError("a level and a place are needed", "for example: vlog 6 at train.py:10-14")
        region = Region(parse_lines(at, "vlog 6 at train.py:10-14"), levels, backward)
        if not backward and not self.natives and self._narrated:
            raise Unsupported(
                "the framework in this program writes no records while forward lines run",
                f"the nodes made there can be told: vlog bw {text} at {at}",
            )
        self.regions.append(region)
        for native in self.natives.values():
            self._watch(region, native)
        self._redirect()

    def _watch(self, region: Region, native: NativeVlog) -> None:
        """A backward region is left to the framework for the nodes that are made from now on (``NodeLog`` has the
        others): its own records begin before a node's first hook, and end behind the last."""
        if region.backward:
            if level := region.levels.get("*", 0):
                self._forward.add(region.lines, lambda: native.begin_nodes(level), native.end_nodes)
            return
        self._forward.add(
            region.lines, lambda: native.raise_levels(region.levels), lambda: native.lower_levels(region.levels)
        )

    def _clear_regions(self) -> None:
        self._forward.clear()
        self.regions.clear()
        while self.raised:
            self.lower(self.raised.pop())

    def lower(self, raised: Raised) -> None:
        for region in raised.regions:
            if raised.native is not None:
                raised.native.lower_levels(region.levels)
            else:
                self.narrator.lower_levels(region.levels)

    # ---- fd 2

    def _redirect(self) -> None:
        wanted = any(native.logging for native in self.natives.values())
        wanted = wanted or bool(self.natives and self.regions)
        if not wanted:
            self.tap.stop()
        elif not self.tap.on:
            path, keep = self._log_file()
            try:
                self.tap.start(path, keep)
            except own(OSError) as error:
                self._problem(f"the VLOG stays on the program's stderr: {error.strerror}")

    # ---- the end

    def detach(self) -> None:
        """Everything as the script had it."""
        self._clear_regions()
        self._asked.clear()
        self.narrator.set_levels("off")
        for native in self.natives.values():
            try:
                native.restore()
            except AdbgError as error:
                self._problem(error.message)
        self.tap.stop()

    def leave(self) -> None:
        """After ``detach``: the process runs on without adbg."""
        self.tap.leave()

    def abandon(self) -> None:
        """In a forked child: its stderr is the real one, so its framework writes what the script asks for and no
        more. The parent's redirection stays."""
        self._forward.abandon()
        for native in self.natives.values():
            with suppress(Exception):
                native.abandon()
        self.tap.abandon()

"""What is logged, of every framework in the program: levels, regions, and where fd 2 goes meanwhile (L4).

Called on "adbg-reader", on parked threads, and from hooks under the turn. A framework with a VLOG of its own writes to
fd 2, which goes to the run directory's VLOG file while adbg has a level on; for the others the narrator writes there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from adbg.engine.backends.base import Backend, BackwardCall, HookPlan, NativeVlog
from adbg.engine.errors import AdbgError, CommandError, Unsupported
from adbg.engine.glog import format_record, parse_levels
from adbg.engine.log.narrator import Narrator
from adbg.engine.log.redirect import StderrTap
from adbg.engine.places import Lines, parse_lines
from adbg.engine.protocol import messages as p
from adbg.engine.python.line_trace import LineRegions
from adbg.engine.record.files import vlog_path

if TYPE_CHECKING:
    from pathlib import Path

    from adbg.engine.record.recorder import Recorder


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
class _Raised:
    call: BackwardCall
    key: int
    native: NativeVlog | None
    regions: list[Region] = field(default_factory=list)


class Verbosity:
    """One agent's. ``scratch`` is a private folder for the log of a run that is not recorded ("": none)."""

    def __init__(
        self, narrator: Narrator, recorder: Callable[[], Recorder | None], scratch: str, problem: Callable[[str], None]
    ) -> None:
        self._narrator = narrator
        self._recorder = recorder
        self._scratch = scratch
        self._problem = problem
        self._natives: dict[str, NativeVlog] = {}
        self._narrated = 0  # frameworks that the narrator speaks for
        self._asked: list[str] = []  # level texts since the last one that set all, for frameworks that come later
        self._forward = LineRegions(problem)
        self._regions: list[Region] = []
        self._raised: list[_Raised] = []
        self.tap = StderrTap()
        self.backward_regions = False  # ask this before ``node_begin``

    def add(self, backend: Backend) -> None:
        """A framework was imported."""
        native = backend.native_vlog()
        if native is None:
            self._narrated += 1
            self._tell_narrator(backend)
            return
        self._natives[backend.name] = native
        for text in self._asked:
            native.set_levels(text)
            self._warn(native, parse_levels(text))
        for region in self._regions:
            if not region.backward:
                self._watch(region, native)
        self._redirect()

    def _tell_narrator(self, backend: Backend) -> None:
        for text in self._asked:
            try:
                self._narrator.set_levels(text)
            except CommandError as error:  # asked before any framework was there
                self._problem(str(error))
        if not self._natives and any(not region.backward for region in self._regions):
            self._problem(f"{backend.name} writes no records while forward lines run: `vlog N at` says nothing there")

    @property
    def logging(self) -> bool:
        """Some framework may write records now, on adbg's word or the script's."""
        return self.tap.on or any(native.loud for native in self._natives.values())

    @property
    def narrates(self) -> bool:
        """The narrator writes records of some node."""
        return self._narrator.enabled and (self._narrated > 0 or not self._natives)

    def speaks_for(self, backend: Backend) -> bool:
        """Whether the narrator tells what ``backend``'s framework does."""
        return self._narrator.enabled and backend.name not in self._natives

    def quiet(self, on: bool) -> None:
        """Nothing that adbg does from now on is in a framework's log (hooks, answers at a stop), or all again."""
        for native in self._natives.values():
            native.quiet(on)

    # ---- requests

    def set(self, text: str, at: str = "", backward: bool = False) -> p.VlogBody:
        """Answer ``adbg/vlog``. Raises CommandError, Unsupported."""
        if at or backward:
            self._add_region(text, at, backward)
        elif text:
            self._set_levels(text)
        return self.state()

    def state(self) -> p.VlogBody:
        levels = self._narrator.set_levels("") if self._narrated or not self._natives else {}
        for native in self._natives.values():
            levels = {**levels, **native.set_levels("")}
        return p.VlogBody(levels, [str(region) for region in self._regions], self.tap.path)

    def _set_levels(self, text: str) -> None:
        changes = parse_levels(text)
        if self._narrated or not self._natives:
            try:
                self._narrator.set_levels(text)
            except CommandError:
                if self._narrated and not self._natives:
                    raise
                # a module of a framework with its own VLOG, perhaps one that is not imported yet
                known = ",".join(f"{name}={level}" for name, level in changes.items() if name == "*")
                self._narrator.set_levels(known)
        for native in self._natives.values():
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
        if not backward and not self._natives and self._narrated:
            raise Unsupported(
                "the framework in this program writes no records while forward lines run",
                f"the nodes made there can be told: vlog bw {text} at {at}",
            )
        self._regions.append(region)
        self.backward_regions = any(each.backward for each in self._regions)
        if not backward:
            for native in self._natives.values():
                self._watch(region, native)
        self._redirect()

    def _watch(self, region: Region, native: NativeVlog) -> None:
        self._forward.add(
            region.lines, lambda: native.raise_levels(region.levels), lambda: native.lower_levels(region.levels)
        )

    def _clear_regions(self) -> None:
        self._forward.clear()
        self._regions.clear()
        self.backward_regions = False
        while self._raised:
            self._lower(self._raised.pop())

    # ---- nodes made by the lines of a region (called under the turn)

    def plan(self) -> HookPlan | None:
        """Which nodes must be hooked for the regions; None: none. Not leaves: no operator of a line made them, and
        Paddle tells their end only when another node begins."""
        if not self.backward_regions:
            return None
        regions = [region.lines for region in self._regions if region.backward]
        return HookPlan(
            info=lambda info, stack: (
                not info.accumulate and any(r.holds(line.file, line.line) for r in regions for line in stack)
            ),
            needs=frozenset({"forward_stack"}),
        )

    def node_begin(self, backend: Backend, call: BackwardCall, key: int) -> None:
        stack = call.forward_stack(key)[0]
        found = [r for r in self._regions if r.backward and any(r.lines.holds(s.file, s.line) for s in stack)]
        if not found or call.describe(key).accumulate:
            return
        self._raised.append(raised := _Raised(call, key, self._natives.get(backend.name), found))
        if raised.native is None:
            for region in raised.regions:
                self._narrator.raise_levels(region.levels)

    def node_runs(self, call: BackwardCall, key: int, index: int) -> None:
        """The last word before the node: the framework's own level goes up here, so that what adbg does at a stop is
        not in the log. Its "Preparing" was written, or was not, before any hook: adbg writes that line itself."""
        raised = self._find(call, key)
        if raised is not None and raised.native is not None:
            self._mark(f"{call.name(key)}(#{index}) Preparing ", call.depth)
            for region in raised.regions:
                raised.native.raise_levels(region.levels)

    def node_ran(self, call: BackwardCall, key: int) -> None:
        """The first word behind the node."""
        raised = self._find(call, key)
        if raised is not None and raised.native is not None:
            for region in raised.regions:
                raised.native.lower_levels(region.levels)

    def node_end(self, call: BackwardCall, key: int) -> None:
        raised = self._find(call, key)
        if raised is not None:
            self._raised.remove(raised)
            if raised.native is None:
                self._lower(raised)

    def _find(self, call: BackwardCall, key: int) -> _Raised | None:
        return next((r for r in reversed(self._raised) if r.call is call and r.key == key), None)

    def _mark(self, text: str, depth: int) -> None:
        """A record of adbg's own in the framework's file, at its place in the order."""
        if self.tap.on:
            self.tap.write(format_record(text, "backward", 3, depth).encode())

    def backward_end(self, call: BackwardCall) -> None:
        """Nodes that began and did not end (an exception)."""
        for raised in [raised for raised in self._raised if raised.call is call]:
            self._raised.remove(raised)
            self._lower(raised)

    def _lower(self, raised: _Raised) -> None:
        for region in raised.regions:
            if raised.native is not None:
                raised.native.lower_levels(region.levels)
            else:
                self._narrator.lower_levels(region.levels)

    # ---- fd 2

    def _redirect(self) -> None:
        wanted = any(native.logging for native in self._natives.values())
        wanted = wanted or bool(self._natives and self._regions)
        if not wanted:
            self.tap.stop()
        elif not self.tap.on:
            path, keep = self._log_file()
            try:
                self.tap.start(path, keep)
            except OSError as error:
                self._problem(f"the VLOG stays on the program's stderr: {error.strerror}")

    def _log_file(self) -> tuple[Path | str, bool]:
        from pathlib import Path

        recorder = self._recorder()
        if recorder is not None and recorder.recording:
            return vlog_path(Path(recorder.run_dir), recorder.label), True
        if self._scratch and os.path.isdir(self._scratch):
            return vlog_path(Path(self._scratch), f"0-{os.getpid()}"), True
        return "", False

    # ---- the end

    def detach(self) -> None:
        """Everything as the script had it."""
        self._clear_regions()
        self._asked.clear()
        self._narrator.set_levels("off")
        for native in self._natives.values():
            try:
                native.restore()
            except AdbgError as error:
                self._problem(error.message)
        self.tap.stop()

    def abandon(self) -> None:
        """In a forked child: its stderr is the real one, so its framework writes what the script asks for and no
        more. The parent's redirection goes on."""
        self._forward.abandon()
        for native in self._natives.values():
            with contextlib.suppress(Exception):
                native.abandon()
        self.tap.abandon()

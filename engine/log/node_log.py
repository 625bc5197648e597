"""What is logged around the nodes of a backward. On autograd threads, under the turn.

The narrator's records, the levels that hold in nodes made by certain lines (``vlog bw N at FILE:A-B``), and the place
of what a framework wrote itself among the recorded events.
"""

from __future__ import annotations

from collections.abc import Callable

from adbg.engine.backends.base import BackwardCall, HookPlan
from adbg.engine.glog import format_record
from adbg.engine.log.levels import LogLevels, Raised
from adbg.engine.session.observers import Observer
from adbg.engine.session.running_call import Running, Visit
from adbg.engine.types import BriefRun


class NodeLog(Observer):
    """Writes at the levels that ``LogLevels`` holds.

    Args:
        place: (offset, length) of bytes that a framework wrote into the VLOG file since the last event.
    """

    between = True

    def __init__(self, levels: LogLevels, place: Callable[[int, int], None]) -> None:
        self._levels = levels
        self._narrator = levels.narrator
        self._place = place
        self._placed = 0  # bytes of the frameworks' own records that have their place among the events

    @property
    def active(self) -> bool:
        levels = self._levels
        return bool(levels.narrator.enabled or levels.regions or levels.tap.on or levels.raised)

    @property
    def arms(self) -> bool:
        return self._levels.narrates or self._levels.backward_regions

    def plan(self, running: Running) -> HookPlan | None:
        """Every node for the narrator; for the regions not leaves: no operator of a line made them, and Paddle tells
        their end only when another node begins."""
        if self._narrator.wants_nodes and self._levels.speaks_for(running.backend):
            return HookPlan(every=True)
        regions = [region.lines for region in self._levels.regions if region.backward]
        if not regions:
            return None
        return HookPlan(
            info=lambda info, stack: (
                not info.accumulate and any(r.holds(line.file, line.line) for r in regions for line in stack)
            ),
            needs=frozenset({"forward_stack"}),
        )

    def backward_begin(self, running: Running) -> None:
        if self._levels.speaks_for(running.backend):
            self._narrator.backward_begin(running.call)

    def node_begin(self, visit: Visit) -> None:
        running = visit.running
        if self._levels.regions and self._levels.backward_regions:
            self._raise(running, visit.key)
        if self._levels.speaks_for(running.backend):
            self._narrator.node_begin(running.call, visit.key, visit.index, visit.outs, running.backend)
        self._place_log()

    def node_enter(self, visit: Visit) -> None:
        """The framework's own level goes up last, so that what adbg does at a stop is not in the log. Its "Preparing"
        was written, or was not, before any hook: adbg writes that line itself."""
        if not self._levels.raised:
            return
        call = visit.running.call
        raised = self._find(call, visit.key)
        if raised is not None and raised.native is not None:
            self._mark(f"{call.name(visit.key)}(#{visit.index}) Preparing ", call.depth)
            for region in raised.regions:
                raised.native.raise_levels(region.levels)

    def node_leave(self, visit: Visit) -> None:
        raised = self._find(visit.running.call, visit.key) if self._levels.raised else None
        if raised is not None and raised.native is not None:
            for region in raised.regions:
                raised.native.lower_levels(region.levels)

    def node_end(self, visit: Visit) -> None:
        running = visit.running
        if self._levels.speaks_for(running.backend):
            self._narrator.node_end(running.call, visit.key, visit.index, visit.ins or (), running.backend, visit.us)
        self._place_log()
        raised = self._find(running.call, visit.key) if self._levels.raised else None
        if raised is not None:
            self._levels.raised.remove(raised)
            if raised.native is None:
                self._levels.lower(raised)

    def backward_end(self, running: Running, us: float, error: BaseException | None) -> None:
        if self._levels.speaks_for(running.backend):
            self._narrator.backward_end(running.call, error)
        self._place_log()
        self._lower_all(running.call.number)

    def brief_end(self, run: BriefRun) -> None:
        self._lower_all(run.call.number)

    # ---- the framework's own records

    def _place_log(self) -> None:
        """What the framework wrote itself until now gets its place among the events (1 us)."""
        tap = self._levels.tap
        if tap.on:
            size = tap.size
            if size > self._placed:
                self._place(self._placed, size - self._placed)
            self._placed = size

    def _mark(self, text: str, depth: int) -> None:
        """A record of adbg's own in the framework's file, at its place in the order."""
        if self._levels.tap.on:
            self._levels.tap.write(format_record(text, "backward", 3, depth).encode())

    # ---- levels in the nodes of a region

    def _raise(self, running: Running, key: int) -> None:
        call = running.call
        stack = call.forward_stack(key)[0]
        regions = self._levels.regions
        found = [r for r in regions if r.backward and any(r.lines.holds(s.file, s.line) for s in stack)]
        if not found or call.describe(key).accumulate:
            return
        native = self._levels.natives.get(running.backend.name)
        if native is not None and all(native.runs_at(region.levels) for region in found):
            self._mark(f"{call.name(key)}(#{running.state.position}) Preparing ", call.depth)
            return
        self._levels.raised.append(raised := Raised(call, key, native, found))
        if raised.native is None:
            for region in raised.regions:
                self._narrator.raise_levels(region.levels)

    def _find(self, call: BackwardCall, key: int) -> Raised | None:
        return next((r for r in reversed(self._levels.raised) if r.call is call and r.key == key), None)

    def _lower_all(self, number: int) -> None:
        """Nodes of that call that began and did not end (an exception)."""
        for raised in [raised for raised in self._levels.raised if raised.call.number == number]:
            self._levels.raised.remove(raised)
            self._levels.lower(raised)

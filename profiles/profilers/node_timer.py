"""The node timer: how long each node of the backward graph ran, and how long nothing did between two of them.

Of the first backward calls of a line every second is looked at, then every eighth, and every 32nd later; the others
tell how long a call takes that nobody looks at. The first one, which warms up what it uses, counts only where there is
no other. Where the backend can write times down by itself (``written_nodes``), a node's time is its own work, and what
the writing costs lies in the gaps. Elsewhere, where a thread stopped within such a call of that line, and where the
region begins at a node, hooks tell. They cost some microseconds a node, which is as long as a small node takes: off
each node's time comes what adbg still did behind the stamp of its begin (a second stamp tells); what stays there is
the framework's way into the hook behind it, under 1 us. Off the gaps comes, either way, as much each that nodes and
gaps add up to what a call takes that is not looked at.

An iteration is split by what its thread was in: backward calls, and what the backend tells of (``phase``): the
outermost call of a module, an optimizer's step, the wait for a data loader. Its parts lie between the end of the
outermost backward call before it and its own, so the optimizer's step is that of the call before.

The forward in front of some hooked calls (``is_timed``) is timed operator by operator (``forward_clock``), once every
node is known: stacks are off then, whose cost would be in the operators.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from adbg.engine.backends.base import Backend, ForwardTimes, HookPlan
from adbg.engine.median import median
from adbg.engine.session.observers import Observer
from adbg.engine.session.running_call import Running, Visit
from adbg.engine.types import SourceLine
from adbg.profiles.base import Artifact, Availability, Profiler
from adbg.profiles.profilers import written_nodes
from adbg.profiles.profilers.forward_clock import ForwardClock
from adbg.profiles.profilers.node_costs import NodeKey, NodeTimes, costs, without_own
from adbg.profiles.profilers.node_facts import describe
from adbg.profiles.profilers.step_clock import BACKWARD, PHASES, STOPPED, StepClock
from adbg.profiles.region import Region

FILE = "nodes.json"
HOW = "most calls run without hooks: nodes and gaps add up to what these take"
WRITTEN = "nodes are timed without hooks; nodes and gaps add up to what calls take that are not timed"
# Calls of a line of which one is hooked, and which calls after the first ones: on tiny models of both frameworks a
# hooked step took 2.5 to 3.6 times a plain step's CPU time, one that is only armed 1.4 times.
SECOND, EVERY, DENSE, SPARSE = 10, 8, 32, 32
_NOT_KNOWN = {"inside_us": 0.0, "gap_us": 0.0, "node_us": 0.0}  # every outermost call failed
_MOST = 4096  # values that are kept of one node: more would only make the median finer


def is_hooked(number: int) -> bool:
    """Of the calls of a line, from 0."""
    if number < SECOND:
        return number % 2 == 0
    return number % (EVERY if number < DENSE else SPARSE) == EVERY // 2


def is_timed(number: int) -> bool:
    """Of the first hooked calls every second, much later every fourth: a forward of small operators takes twice as
    long, and what was recorded of it as long again to read."""
    if number < SECOND:
        return number % 4 == 0
    every = EVERY if number < DENSE else SPARSE
    return number % (4 * every) == every + EVERY // 2


class _Call:
    """A call that runs."""

    __slots__ = (
        "begun", "by_hooks", "cold", "depth", "gap", "hooked", "inner", "inside", "last", "nodes", "parked", "place",
        "ran", "written",
    )  # fmt: skip

    def __init__(self, place: str, depth: int, hooked: bool, cold: bool) -> None:
        self.place = place
        self.depth = depth
        self.hooked = hooked  # its nodes are measured, by hooks or without
        self.cold = cold  # the first one of its line
        self.written: bool | None = None  # without; None: it was not tried yet
        self.by_hooks: dict[int, float] = {}  # where they are, us of the nodes that have hooks all the same, by key
        self.inside: dict[int, int] = {}  # and the nodes of calls that a node made, by its key
        self.parked = 0  # ns at stops before it began
        self.ran: list[written_nodes.Ran] = []
        self.begun = self.last = 0  # perf_counter_ns, less the time at stops
        self.gap = 0.0  # us, before the node that runs now
        self.inner = 0  # nodes of calls that the node which runs now made
        self.nodes = 0  # of those calls too, in all


class NodeTimer(Profiler, Observer):
    """Profiler and observer: the session tells it of calls and nodes while it measures."""

    name = "nodes"
    what = "nodes of the backward graph: time of each and the gaps between them, adbg's own cost subtracted"
    format = "nodes"
    file = FILE
    timing = True

    def __init__(self) -> None:
        self._on = False
        self._folder = ""
        self._rows: dict[NodeKey, NodeTimes] = {}
        self._iterations: list[dict[str, Any]] = []
        self._calls: dict[int, _Call] = {}  # by serial of the running call
        self._begun: dict[str, int] = {}  # outermost calls, by their line
        self.stacks: Callable[[bool], None] = lambda on: None  # keeps forward stacks from now on, or does not
        self._named = False  # every node of the last hooked call was known: stacks are off
        self._behind: list[int] = []  # ns from the stamp of a node's begin to the end of our own work
        self._clocks: dict[int, StepClock] = {}  # by thread
        self._waits: dict[tuple[str, int], list[float]] = {}  # by the line that waits for data: [us, how often]
        self._seen: set[str] = set()  # phases that were told of
        self.framework = ""
        self._forward = ForwardClock()
        self._backend: Backend | None = None
        self._after: dict[str, str] = {}  # by line of an outermost call: that of the one that came next, the last time
        self._last = ""
        self._at_once = False  # the region may begin or end within a call: nodes count as they end, not with their call
        self._nodes = 0  # that were written at the end
        self._stopped: set[str] = set()  # lines of calls within which a thread stopped, while no hooks told of that
        self._written = False  # some calls were measured without hooks

    def available(self) -> Availability:
        return Availability(True)

    def start(self, region: Region, folder: str) -> None:
        self._folder = folder
        self._at_once = region.kind == "stop"
        self._on = True

    def checkpoint(self) -> None:
        self._write()

    def stop(self) -> Artifact:
        self._on = False
        self._forward.let_go()
        if self._rows:
            self._nodes = self._write()
        nodes = self._nodes
        self._rows, self._calls = {}, {}
        if self._named:
            self.stacks(True)
        return Artifact(self.name, self._folder, FILE if nodes else "", self.format, {"nodes": nodes})

    def abandon(self) -> None:
        self._on = False
        self._forward.abandon()

    def pause(self) -> None:
        self._forward.let_go()  # the stop would be in the time of an operator
        self._clock().begin(STOPPED, perf_counter_ns())

    def resume(self) -> None:
        self._clock().end(STOPPED, perf_counter_ns())

    # ------------------------------------------------------------ the parts of an iteration

    def phase(self, name: str, begins: bool, line: SourceLine | None) -> None:
        """``Backend.watch_phases`` tells."""
        if not self._on:
            return
        clock = self._clock()
        if begins:
            self._seen.add(name)
            if line is not None:
                clock.where = (line.file, line.line)
            clock.begin(name, perf_counter_ns())
        else:
            clock.end(name, perf_counter_ns())

    def _clock(self) -> StepClock:
        thread = threading.get_ident()
        clock = self._clocks.get(thread)
        if clock is None:
            clock = self._clocks[thread] = StepClock()
        return clock

    def tick(self, begins: bool) -> None:
        """Around all that adbg does for an outermost call: none of it is of the iteration."""
        clock = self._clock()
        if begins:
            clock.begin(BACKWARD, perf_counter_ns())
            self._forward.end()
        else:
            self._forward.backward_ended()
            clock.end(BACKWARD, perf_counter_ns())
            if self._next_is_timed():
                self._forward.begin(self._backend.forward_timer() if self._backend else None, clock.outside / 1e9)
            clock.ended = perf_counter_ns()

    def _next_is_timed(self) -> bool:
        """Whether the forward that begins now is to be timed: its call will be of the line that came last time behind
        this one. While there are nodes to become known, stacks are kept, and nothing is timed."""
        following = self._after.get(self._last, self._last)
        return self._on and self._named and is_timed(self._begun.get(following, 0))

    # ------------------------------------------------------------ Observer

    @property
    def active(self) -> bool:
        return self._on

    @property
    def arms(self) -> bool:
        return self._on

    def plan(self, running: Running) -> HookPlan | None:
        """Some of the outermost calls of a line, each with all that is nested in it."""
        serial = running.serial
        call = self._calls.get(serial)
        if call is None:
            line = running.call.location
            place = f"{line.file}:{line.line}" if line is not None else ""
            if len(running.chain) > 1:
                outer = self._calls.get(running.chain[0].serial)
                hooked = outer is not None and outer.hooked
                cold = outer is not None and outer.cold
            else:
                number = self._begun.get(place, 0)
                self._begun[place] = number + 1
                hooked, cold = is_hooked(number), number == 0
            call = self._calls[serial] = _Call(place, running.call.depth, hooked, cold)
        if not call.hooked:
            return None
        if call.written is None:
            call.written = not self._at_once and call.place not in self._stopped and written_nodes.collect(running)
        return None if call.written else HookPlan(every=True)

    def backward_begin(self, running: Running) -> None:
        call = self._calls.get(running.serial)
        if call is not None:
            call.parked = running.state.parked_ns
            call.begun = call.last = perf_counter_ns() - call.parked

    def node_enter(self, visit: Visit) -> None:
        """Behind the stop, if there was one: the gap has none of it."""
        call = self._calls.get(visit.running.serial)
        if call is None and self._at_once and self.plan(visit.running) is not None:
            call = self._calls[visit.running.serial]
        if call is not None and not call.written:
            call.gap = (visit.started_ns - (call.last or visit.started_ns)) / 1000
            call.inner = 0
            behind = self._behind
            if len(behind) < _MOST:
                behind.append(perf_counter_ns() - visit.running.state.parked_ns - visit.started_ns)

    def node_end(self, visit: Visit) -> None:
        call = self._calls.get(visit.running.serial)
        if call is None or visit.us is None:
            return
        if call.written:
            call.by_hooks[visit.key] = visit.us
        else:
            call.ran.append(
                (visit.index, visit.running.call.name(visit.key), visit.key, visit.us, call.gap, call.inner)
            )
            if self._at_once:
                self.framework = visit.running.backend.name
                self._keep(visit.running, call, call.ran[-1:], None)

    def node_passed(self, visit: Visit) -> None:
        call = self._calls.get(visit.running.serial)
        if call is not None:
            call.last = perf_counter_ns() - visit.running.state.parked_ns

    def release(self, running: Running, error: BaseException | None) -> None:
        """The call is over, its graph is still there."""
        now = perf_counter_ns() - running.state.parked_ns
        call = self._calls.pop(running.serial, None)
        if call is None or not call.begun or error is not None or not self._on:
            return
        if call.written:
            call.ran = self._as_written(running, call)
        call.nodes += len(call.ran)
        outer = self._calls.get(running.chain[-2].serial) if len(running.chain) > 1 else None
        if outer is not None:
            outer.inner += call.nodes
            outer.nodes += call.nodes
            if running.call.parent_key is not None:
                key = running.call.parent_key
                outer.inside[key] = outer.inside.get(key, 0) + call.nodes
        if call.depth == 0:
            clock = self._clock()
            outside, spent, waits = clock.take()
            if outside is not None:
                self._waited(waits)
            self._backend = running.backend
            self._after[self._last], self._last = call.place, call.place
            self._iterations.append({
                "backward": running.call.number,
                "place": call.place,
                "hooked": call.hooked,
                "cold": call.cold,
                "disturbed": call.hooked or self._forward.times is not None or not self._named,
                "backward_us": (now - call.begun) / 1000,
                "outside_us": outside / 1000 if outside is not None else None,
                "nodes": call.nodes,
                **{name + "_us": spent.get(name, 0) / 1000 if outside is not None else None for name in PHASES},
            })  # fmt: skip
            del self._iterations[:-_MOST]
        self.framework = running.backend.name
        known = len(self._rows)
        if not self._at_once:
            self._keep(running, call, call.ran, self._forward.times)
        if call.hooked and call.depth == 0:
            self._name(len(self._rows) > known)

    def _as_written(self, running: Running, call: _Call) -> list[written_nodes.Ran]:
        """What was written down of a call. Nothing where a thread stopped meanwhile, which is in a node or a gap: from
        then on hooks tell of the calls of that line."""
        found = written_nodes.ran(running, call.begun + call.parked, call.inside, call.by_hooks)
        if found is None or running.state.parked_ns != call.parked:
            self._stopped.add(call.place)
            return []
        self._written = True
        return found

    def _keep(self, running: Running, call: _Call, ran: list[written_nodes.Ran], times: ForwardTimes | None) -> None:
        for index, name, key, us, gap, inner in ran:
            place = call.place, index, name
            row = self._rows.get(place) or NodeTimes(describe(running, key, index, call.place))
            if not (row.facts["file"] or self._named):  # its first forward may have run before stacks
                row.facts = describe(running, key, index, call.place)
            if row.cold and not call.cold:  # another one: the writer may be at the old one
                row = NodeTimes(row.facts)
                row.cold = False
            row.calls += 1
            row.inner += inner
            row.total += us
            if len(row.us) < _MOST:
                row.us.append(us)
                row.gaps.append(gap)
                forward = times.of(running.call, key) if times is not None else None
                if forward is not None:
                    row.forward.append(forward)
            self._rows[place] = row  # now that it has something: another thread may be writing them

    def _waited(self, waits: dict[tuple[str, int], list[int]]) -> None:
        for place, (ns, times) in waits.items():
            row = self._waits.setdefault(place, [0.0, 0])
            row[0] += ns / 1000
            row[1] += times

    def _name(self, fresh: bool) -> None:
        """Forward stacks make a tiny forward pass 1.3 times as long: they are kept while nodes come that are new."""
        if fresh is self._named:
            self._named = not fresh
            self.stacks(fresh)

    # ------------------------------------------------------------ what came of it

    def costs(self) -> dict[str, dict[str, float]]:
        """See ``node_costs.costs``."""
        return costs(list(self._iterations), dict(self._rows), self._behind)

    def _write(self) -> int:
        """Returns how many nodes were seen; 0: nothing is written."""
        if not self._rows:
            return 0
        iterations = list(self._iterations)  # before the costs, which are those of more then
        found_costs, rows = self.costs(), []
        for (place, index, _), row in list(self._rows.items()):
            cost = found_costs.get(place) or next(iter(found_costs.values()), _NOT_KNOWN)
            us, gap = median(row.us), median(row.gaps)
            own_us = cost["inside_us"] + cost["node_us"] * row.inner / row.calls
            rows.append({
                **row.facts,
                "calls": row.calls,
                "us": max(us - own_us, 0.0),
                "raw_us": us,
                "total_us": max(row.total - own_us * row.calls, 0.0),
                "gap_us": max(gap - cost["gap_us"], 0.0) if index > 1 else 0.0,
                "raw_gap_us": gap,
                "nested": row.inner > 0,
                "forward_us": median(row.forward) if row.forward else None,
                "forward_calls": len(row.forward),
            })  # fmt: skip
        found = {
            "adbg_nodes": 1,
            "framework": self.framework,
            "iterations": [without_own(row, found_costs, self._seen) for row in iterations],
            "unseen": [name for name in PHASES if name not in self._seen],
            "data": [
                {"file": file, "line": line, "us": us, "calls": times}
                for (file, line), (us, times) in list(self._waits.items())
            ],
            "forward": {"timed": self._forward.timed, "why": self._forward.problem},
            "part": self._at_once and not iterations,  # of one backward
            "cost": {"how": WRITTEN if self._written else HOW, "by_line": found_costs},
            "nodes": rows,
        }
        path = os.path.join(self._folder, FILE)
        with open(path + ".new", "w") as file:
            json.dump(found, file)
        os.replace(path + ".new", path)
        return len(rows)

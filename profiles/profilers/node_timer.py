"""The node timer: how long each node of the backward graph ran, and how long nothing did between two of them.

From the hooks that adbg has anyway. They cost some microseconds a node, which is as long as a small node takes, so this
cost is measured on the program itself and subtracted. Only every second backward call is hooked; the others tell how
long a call takes without hooks. Off each node's time comes what adbg still did behind the stamp of its begin (a second
stamp tells). Off the gaps comes as much each that nodes and gaps add up to what a call takes that is not hooked. What
stays in a node's time is the framework's way into the hook behind it, under 1 us.
"""

from __future__ import annotations

import json
import os
import threading
from statistics import median
from time import perf_counter_ns
from typing import Any

from adbg.engine.backends.base import HookPlan
from adbg.engine.outside import own
from adbg.engine.session.observers import Observer
from adbg.engine.session.running_call import Running, Visit
from adbg.profiles.base import Artifact, Availability, Profiler
from adbg.profiles.region import Region

FILE = "nodes.json"
HOW = "every second call runs without hooks: nodes and gaps add up to what these take"
_Key = tuple[str, int, str]  # line of the backward call, index in the execution order, name
_MOST = 4096  # values that are kept of one node: more would only make the median finer


class _Row:
    """One node, over all hooked calls."""

    __slots__ = ("calls", "facts", "gaps", "inner", "total", "us")

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts
        self.calls = 0
        self.inner = 0  # nodes that were measured inside it, of backward calls that it made
        self.total = 0.0
        self.us: list[float] = []
        self.gaps: list[float] = []


class _Call:
    """A call that runs."""

    __slots__ = ("begun", "depth", "gap", "hooked", "inner", "last", "nodes", "place", "ran")

    def __init__(self, place: str, depth: int, hooked: bool) -> None:
        self.place = place
        self.depth = depth
        self.hooked = hooked
        # (index, name, key, us, gap before it, nodes inside it) of what ran in it
        self.ran: list[tuple[int, str, int, float, float, int]] = []
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
        self._rows: dict[_Key, _Row] = {}
        self._iterations: list[dict[str, Any]] = []
        self._calls: dict[int, _Call] = {}  # by serial of the running call
        self._hook_next: dict[str, bool] = {}
        self._behind: list[int] = []  # ns from the stamp of a node's begin to the end of our own work
        self._ended: dict[int, int] = {}  # by thread: when its last outermost call ended
        self.framework = ""

    def available(self) -> Availability:
        return Availability(True)

    def start(self, region: Region, folder: str) -> None:
        self._folder = folder
        self._on = True

    def checkpoint(self) -> None:
        self._write()

    def stop(self) -> Artifact:
        self._on = False
        nodes = self._write()
        self._rows, self._calls = {}, {}
        return Artifact(self.name, self._folder, FILE if nodes else "", self.format, {"nodes": nodes})

    def abandon(self) -> None:
        self._on = False

    # ------------------------------------------------------------ Observer

    @property
    def active(self) -> bool:
        return self._on

    @property
    def arms(self) -> bool:
        return self._on

    def plan(self, running: Running) -> HookPlan | None:
        """Of the outermost calls of a line every second one, with all that is nested in it."""
        serial = running.serial
        call = self._calls.get(serial)
        if call is None:
            line = running.call.location
            place = f"{line.file}:{line.line}" if line is not None else ""
            if len(running.chain) > 1:
                outer = self._calls.get(running.chain[0].serial)
                hooked = outer is not None and outer.hooked
            else:
                hooked = self._hook_next.get(place, True)
                self._hook_next[place] = not hooked
            call = self._calls[serial] = _Call(place, running.call.depth, hooked)
        return HookPlan(every=True) if call.hooked else None

    def backward_begin(self, running: Running) -> None:
        call = self._calls.get(running.serial)
        if call is not None:
            call.begun = call.last = perf_counter_ns() - running.state.parked_ns

    def node_enter(self, visit: Visit) -> None:
        """Behind the stop, if there was one: the gap has none of it."""
        call = self._calls.get(visit.running.serial)
        if call is not None:
            call.gap = (visit.started_ns - call.last) / 1000
            call.inner = 0
            behind = self._behind
            if len(behind) < _MOST:
                behind.append(perf_counter_ns() - visit.running.state.parked_ns - visit.started_ns)

    def node_end(self, visit: Visit) -> None:
        call = self._calls.get(visit.running.serial)
        if call is not None and visit.us is not None:
            call.ran.append(
                (visit.index, visit.running.call.name(visit.key), visit.key, visit.us, call.gap, call.inner)
            )

    def node_passed(self, visit: Visit) -> None:
        call = self._calls.get(visit.running.serial)
        if call is not None:
            call.last = perf_counter_ns() - visit.running.state.parked_ns

    def release(self, running: Running, error: BaseException | None) -> None:
        """The call is over, its graph is still there."""
        now = perf_counter_ns() - running.state.parked_ns
        call = self._calls.pop(running.serial, None)
        if call is None or not call.begun or error is not None:
            return
        call.nodes += len(call.ran)
        outer = self._calls.get(running.chain[-2].serial) if len(running.chain) > 1 else None
        if outer is not None:
            outer.inner += call.nodes
            outer.nodes += call.nodes
        if call.depth == 0:
            thread = threading.get_ident()
            before = self._ended.get(thread)
            began = running.state.started_ns
            self._ended[thread] = perf_counter_ns()
            self._iterations.append({
                "backward": running.call.number,
                "place": call.place,
                "hooked": call.hooked,
                "backward_us": (now - call.begun) / 1000,
                "outside_us": (began - before) / 1000 if before is not None else None,
                "nodes": call.nodes,
            })  # fmt: skip
            del self._iterations[:-_MOST]
        self.framework = running.backend.name
        for index, name, key, us, gap, inner in call.ran:
            row = self._rows.get((call.place, index, name))
            if row is None:
                row = self._rows[call.place, index, name] = _Row(self._describe(running, call, index, key))
            row.calls += 1
            row.inner += inner
            row.total += us
            if len(row.us) < _MOST:
                row.us.append(us)
                row.gaps.append(gap)

    @staticmethod
    def _describe(running: Running, call: _Call, index: int, key: int) -> dict[str, Any]:
        try:
            info = running.call.describe(key)
            stack = running.call.forward_stack(key)[0]
        except own(Exception):
            return {"name": running.call.name(key), "unique_name": "", "file": "", "line": 0, "module": ""}
        line = stack[0] if stack else None
        return {
            "name": info.name,
            "unique_name": info.unique_name,
            "index": index,
            "file": line.file if line is not None else "",
            "line": line.line if line is not None else 0,
            "module": info.module or "",
            "depth": call.depth,
            "backward_line": call.place,
        }

    # ------------------------------------------------------------ what came of it

    def costs(self) -> dict[str, dict[str, float]]:
        """By line of the backward call: what measuring a node costs there, in microseconds. "inside" its time, in the
        gap before it, and in all, from what hooked and plain calls take; 0 where there are none to compare."""
        inside = median(self._behind) / 1000 if self._behind else 0.0
        found = {}
        for place in {row["place"] for row in self._iterations}:
            mine = [row for row in self._iterations if row["place"] == place]
            # the first hooked call of a line also describes its nodes, and warms up what they use
            hooked = [row for row in mine if row["hooked"] and row["nodes"]]
            hooked = hooked[1:] or hooked
            plain = [row["backward_us"] for row in mine if not row["hooked"]]
            cost = found[place] = {
                "inside_us": inside, "gap_us": 0.0, "node_us": 0.0, "hooked": len(hooked), "plain": len(plain),
            }  # fmt: skip
            if hooked and plain:
                longer = median(row["backward_us"] for row in hooked) - median(plain)
                cost["node_us"] = max(longer, 0.0) / median(row["nodes"] for row in hooked)
                cost["plain_us"] = median(plain)
                cost["gap_us"] = self._gap_cost(place, inside, cost["plain_us"], len([r for r in mine if r["hooked"]]))
        return found

    def _gap_cost(self, place: str, inside: float, plain: float, calls: int) -> float:
        """How much to take off every gap, so that nodes and gaps of one call take ``plain`` microseconds."""
        nodes, gaps = 0.0, []
        for (where, index, _), row in self._rows.items():
            if where == place and row.facts["depth"] == 0:
                share = row.calls / calls
                nodes += share * (median(row.us) - inside)
                if index > 1:
                    gaps.append((median(row.gaps), share))
        rest = max(plain - nodes, 0.0)
        low, high = 0.0, max((gap for gap, _ in gaps), default=0.0)
        for _ in range(40):
            middle = (low + high) / 2
            left = sum(share * max(gap - middle, 0.0) for gap, share in gaps)
            low, high = (middle, high) if left > rest else (low, middle)
        return high

    def _write(self) -> int:
        """Returns how many nodes were seen; 0: nothing is written."""
        if not self._rows:
            return 0
        costs, rows = self.costs(), []
        for (place, index, _), row in list(self._rows.items()):
            cost = costs.get(place) or next(iter(costs.values()))
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
                "forward_us": None,
            })  # fmt: skip
        found = {
            "adbg_nodes": 1,
            "framework": self.framework,
            "iterations": list(self._iterations),
            "cost": {"how": HOW, "by_line": costs},
            "nodes": rows,
        }
        path = os.path.join(self._folder, FILE)
        with open(path + ".new", "w") as file:
            json.dump(found, file)
        os.replace(path + ".new", path)
        return len(rows)

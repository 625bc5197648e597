"""The current graph as the panel shows it: loaded pages, folded leaves, lanes. Pure; owned by the UI thread.

Rows are ``GraphRow`` by index (execution order, from 1). A leaf (accumulate node) is folded into the rows that feed it
unless it is of interest itself: current, non-finite, with a breakpoint, or shown on demand. Positions count the lines
that are left.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

from adbg.engine.protocol.messages import GraphBody, NodeRan
from adbg.engine.types import GraphRow, SourceLine
from adbg.tui.app.panels.lanes import LaneLayout, LaneRow
from adbg.tui.text.quantities import change

PAGE = 1000  # rows a request asks for: about 0.2 MB of JSON


class GraphModel:
    """Pages are loaded from the first row on without gaps in the end; gaps in between are simply rows not there yet."""

    def __init__(self) -> None:
        self.version = -1
        self.backward = 0
        self.depth = 0
        self.total = 0
        self.here = 0
        self.note = ""
        self.truncated = False
        self.rows: dict[int, GraphRow] = {}
        self.pages: set[int] = set()  # pages that came, those that wait included
        self._waiting: list[list[GraphRow]] = []
        self._feeders: dict[int, set[int]] = {}
        self.unfolded: set[int] = set()
        self.timed = False  # a row has a time
        self.alarms: set[int] = (
            set()
        )  # rows at which a stop had non-finite evidence: the engine's rows know only grad_outputs[0]
        self._visible: list[int] = []
        self._lanes = LaneLayout(0, lambda row: ())
        self._stale = True

    # ---- what comes in

    def load(self, body: GraphBody, later: bool = False) -> bool:
        """A page. Returns True when it is of another graph than before (then all else was forgotten).

        ``later``: the lines need not have it before ``settle`` (each settling costs 0.5 us a row of the whole graph).
        """
        other = (body.version, body.backward) != (self.version, self.backward)
        if other:
            self.rows, self._feeders, self._waiting, self.pages = {}, {}, [], set()
            self.unfolded, self.alarms = set(), set()
            self.timed = False
            self._stale = True
        self.version, self.backward, self.total, self.here = body.version, body.backward, body.total, body.here
        self.depth, self.note, self.truncated = body.depth, body.note, body.truncated
        if body.rows:
            self.pages.add((body.rows[0].index - 1) // PAGE)
        self._waiting.append(body.rows)
        if not later:
            self.settle()
        return other

    def settle(self) -> None:
        """Take in the pages that wait."""
        waiting, self._waiting = self._waiting, []
        for rows in waiting:
            for row in rows:
                self._take(row if row.index not in self.alarms else replace(row, nonfinite=True))

    def _take(self, row: GraphRow) -> None:
        old = self.rows.get(row.index)
        if old is not None and old.norm is not None and row.norm is None:  # what was measured once stays
            row = replace(row, norm=old.norm, nonfinite=row.nonfinite or old.nonfinite)
        if old is not None and old.us is not None and row.us is None:
            row = replace(row, us=old.us)
        self.rows[row.index] = row
        self.timed = self.timed or row.us is not None
        if old is None or old.edges != row.edges:
            for to in row.edges:
                self._feeders.setdefault(to, set()).add(row.index)
            self._stale = True
        elif row.accumulate and self._folded(old) != self._folded(row):
            self._stale = True

    def place(self, here: int) -> None:
        """The current node is ``here`` now; the states of the rows follow."""
        if here == self.here:
            return
        low, high = sorted((here, self.here))
        self.here = here
        for index in range(max(low, 1), high + 1):
            row = self.rows.get(index)
            if row is not None:
                state = "done" if index < here else "here" if index == here else "todo"
                self.rows[index] = replace(row, state=state)
                self._stale = self._stale or row.accumulate

    def ran(self, nodes: tuple[NodeRan, ...] | list[NodeRan]) -> None:
        """Nodes that ran: their figures, as far as the event has them."""
        for node in nodes:
            row = self.rows.get(node.index)
            if row is not None:
                bad = row.nonfinite or node.nonfinite
                self._stale = self._stale or bad != row.nonfinite
                self.timed = self.timed or node.us is not None
                self.rows[node.index] = replace(
                    row,
                    state="done",
                    us=row.us if node.us is None else node.us,
                    norm=row.norm if node.norm is None else node.norm,
                    nonfinite=bad,
                )

    def alarm(self, index: int) -> None:
        """A stop found something non-finite at this row."""
        self.alarms.add(index)
        if index in self.rows:
            self.rows[index] = replace(self.rows[index], nonfinite=True)
            self._stale = True

    def missing(self, around: int) -> int | None:
        """First index of the page to ask for next: the one around ``around`` first, then those before it (lanes need
        them), then the rest; None when all is there."""
        if self.total == 0:
            return None
        pages = range((self.total - 1) // PAGE + 1)
        own = (max(around, 1) - 1) // PAGE
        for page in sorted(pages, key=lambda p: (p > own, abs(p - own))):
            if page not in self.pages:
                return page * PAGE + 1
        return None

    # ---- what is shown

    @property
    def visible(self) -> list[int]:
        """Indices that have a line, in order."""
        if self._stale:
            self._fold()
        return self._visible

    def _folded(self, row: GraphRow) -> bool:
        if not row.accumulate or row.index in self.unfolded:
            return False
        return not (row.nonfinite or row.breakpoints or row.state == "here")

    def _fold(self) -> None:
        self._visible = [index for index in sorted(self.rows) if not self._folded(self.rows[index])]
        positions = {index: position for position, index in enumerate(self._visible)}
        rows, visible = self.rows, self._visible

        def edges(position: int) -> list[int]:
            return [positions[to] for to in rows[visible[position]].edges if to in positions]

        self._lanes = LaneLayout(len(visible), edges)
        self._stale = False

    def at(self, position: int) -> GraphRow:
        return self.rows[self.visible[position]]

    def position(self, index: int) -> int:
        """Line of ``index``; of a folded leaf, the line of the last row before it that feeds it, else the nearest."""
        visible = self.visible
        found = bisect_left(visible, index)
        if found < len(visible) and visible[found] == index:
            return found
        for position in range(min(found, len(visible)) - 1, -1, -1):
            if index in self.rows[visible[position]].edges:
                return position
            if found - position > 200:
                break
        return max(min(found, len(visible) - 1), 0)

    def lanes(self, position: int) -> LaneRow:
        self.visible  # noqa: B018  brings the layout up to date
        return self._lanes.row(position)

    def lane_width(self, first: int, last: int) -> int:
        """Columns that the lanes of the lines first..last take at most."""
        self.visible  # noqa: B018
        return self._lanes.width(first, last)

    def leaves(self, row: GraphRow) -> list[GraphRow]:
        """Leaves that are folded into ``row``."""
        return [leaf for to in row.edges if (leaf := self.rows.get(to)) is not None and self._folded(leaf)]

    def toggle_leaves(self, index: int) -> bool:
        """Show or fold the leaves that ``index`` feeds (or ``index`` itself); False when there are none."""
        row = self.rows.get(index)
        if row is None:
            return False
        leaves = {to for to in row.edges if to in self.rows and self.rows[to].accumulate}
        if row.accumulate:
            leaves = {index}
        if not leaves:
            return False
        self.unfolded = self.unfolded - leaves if leaves & self.unfolded else self.unfolded | leaves
        self._stale = True
        return True

    def feeders(self, index: int) -> list[int]:
        """Rows (loaded) that feed ``index``, nearest first."""
        return sorted(self._feeders.get(index, ()), reverse=True)

    def change(self, row: GraphRow) -> float | None:
        """How many times the norm of what feeds ``row`` its own is, of grad_outputs[0] each. None where that is not
        known, or makes no sense: at the root, where something is not finite, on the way to a parameter alone, whose
        gradient is a sum over the batch."""
        ends = [self.rows[to].accumulate for to in row.edges if to in self.rows]
        if row.nonfinite or row.accumulate or (ends and all(ends)):
            return None
        return change(row.norm, [self.rows[index].norm for index in self._feeders.get(row.index, ())])

    def find(self, text: str, start: int, step: int) -> int | None:
        """Index of the next row from ``start`` (exclusive, wrapping) whose name, module, parameter or place has
        ``text``."""
        wanted = text.lower()

        def hit(row: GraphRow) -> bool:
            where = f"{row.forward.file}:{row.forward.line}" if row.forward else ""
            words = (row.unique_name, row.module or "", row.parameter or "", where, f"#{row.index}", row.address)
            return any(wanted in word.lower() for word in words)

        return self._next(hit, start, step)

    def named(self, unique_name: str) -> int:
        """Index of the node of that name; 0 where the rows do not have it."""
        return next((row.index for row in self.rows.values() if unique_name and row.unique_name == unique_name), 0)

    def made_at(self, *places: SourceLine | None) -> int:
        """Index of the first node that the first of these lines with any made; 0 where the rows have none."""
        for place in filter(None, places):
            lines = (
                row.index for _, row in sorted(self.rows.items())
                if row.forward is not None and (row.forward.file, row.forward.line) == (place.file, place.line)
            )  # fmt: skip
            if (index := next(lines, 0)) != 0:
                return index
        return 0

    def next_bad(self, start: int, step: int) -> int | None:
        """Index of the next non-finite row."""
        return self._next(lambda row: row.nonfinite, start, step)

    def _next(self, hit: object, start: int, step: int) -> int | None:
        order = sorted(self.rows)
        if not order or not callable(hit):
            return None
        at = bisect_left(order, start)
        size = len(order)
        for distance in range(1, size + 1):
            index = order[(at + step * distance) % size]
            if hit(self.rows[index]):
                return index
        return None

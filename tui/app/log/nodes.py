"""From a record of the log to its node in the graph, and back. UI thread.

adbg's own records have the node's index. Paddle's have its address, as the rows of the graph do; where the graph has
no such node (``paddle.grad`` runs on copies) it is the n-th of its name that ran.
"""

from __future__ import annotations

import bisect
import re
import time
from array import array

from adbg.engine.glog import NodeSaid, node_made, node_said
from adbg.tui.app.log.index import NODE
from adbg.tui.app.log.store import LogStore
from adbg.tui.app.panels.graph_model import GraphModel

_ORDINAL = re.compile(r"\d+(?=GradNode$)")
_HEAD = re.compile(r"\] ?(.*)")
_BEGINS = bytes(1 if kind & NODE else 0 for kind in range(256))
NodeKey = tuple[str, int, int, str]  # name, index, which of its name in the backward (0: unknown), address
_ROWS = 512  # looked at between two looks at the clock


class NodeRecords:
    """Where each node of one backward is about to run: the "Preparing" records directly inside it (those of backwards
    nested in it lie deeper). A long backward is looked through piece by piece.

    Attributes:
        began: row that begins the backward.
    """

    def __init__(self, store: LogStore, began: int) -> None:
        self.began = began
        self._store = store
        self._depth = store.depths[began] + 1
        self._position = began + 1  # rows before it are known
        self._ended = False
        self._rows: dict[str, array[int]] = {}  # by plain name, in order
        self._texts: dict[str, array[int]] = {}
        self._numbered: dict[tuple[str, int], int] = {}

    @property
    def complete(self) -> bool:
        """All that the log has so far is known."""
        return self._ended or self._position >= len(self._store)

    def advance(self, seconds: float) -> bool:
        """Look on for that long; returns ``complete``."""
        deadline = time.monotonic() + seconds
        while not self.complete:
            self._piece()
            if time.monotonic() > deadline:
                break
        return self.complete

    def row_of(self, name: str, index: int, occurrence: int) -> int:
        """Row of node ``index``, or where the log has no index of the ``occurrence``-th of that name; -1: not there."""
        name = plain_name(name)
        row = self._numbered.get((name, index))
        if row is not None:
            return row
        rows = self._rows.get(name, ())
        return rows[occurrence - 1] if 0 < occurrence <= len(rows) else -1

    def occurrence(self, said: NodeSaid, row: int) -> int:
        """Which of the nodes with its name, from 1, the record at ``row`` is about: the last one that was about to run
        there; 0: unknown."""
        mine = self._texts.get(said.text, array("q"))
        last = bisect.bisect_right(mine, row) - 1
        return bisect.bisect_right(self._rows[plain_name(said.name)], mine[last]) if last >= 0 else 0

    def _piece(self) -> None:
        store, low = self._store, self._position
        high = min(low + _ROWS, len(store))
        depths = store.depths[low:high]
        begins = store.kinds[low:high].translate(_BEGINS)
        for at, depth in enumerate(depths):
            if depth < self._depth:
                self._ended = True
                return
            if begins[at] and depth == self._depth:
                self._add(low + at)
        self._position = high

    def _add(self, row: int) -> None:
        found = _HEAD.search(self._store.raw(row))  # 3 us; the line with its summary 20
        said = node_said(found[1]) if found else None
        if said is None:
            return
        name = plain_name(said.name)
        if said.index:
            self._numbered[(name, said.index)] = row
        else:
            self._rows.setdefault(name, array("q")).append(row)
            self._texts.setdefault(said.text, array("q")).append(row)


class NodeLink:
    """Which node of the last backward call a record is about, and which record is about a node. A question is answered
    once ``advance`` has looked through the records.

    Attributes:
        waiting: a question has no answer yet.
    """

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._records: NodeRecords | None = None
        self._asked: tuple[NodeSaid, int] | None = None  # the record whose node is wanted, and its row
        self._wanted: tuple[str, int, int] | None = None  # the node whose record is wanted

    @property
    def waiting(self) -> bool:
        return self._asked is not None or self._wanted is not None

    def drop(self) -> None:
        """Forget the questions."""
        self._asked = self._wanted = None

    def forget(self) -> None:
        """The rows have other numbers."""
        self._records = None
        self.drop()

    def said_at(self, row: int) -> NodeSaid | None:
        """The node of the last backward that the record at ``row`` is about, or that it tells the making of."""
        text, last = self._store.line(row).text, self._store.last_backward()
        said = node_said(text)
        if said is not None:
            return said if self._store.backward_of(row) == last else None
        made = node_made(text)  # in the forward in front of it: an earlier one's nodes stood at the same addresses
        return made if made is not None and self._store.next_backward(row) == last else None

    def ask_node(self, row: int) -> bool:
        """Which node is the record at ``row`` about? False: about none."""
        said = self.said_at(row)
        self._asked, self._wanted = (said, row) if said is not None else None, None
        return said is not None

    def ask_record(self, name: str, index: int, occurrence: int) -> None:
        """Where is node ``index``, the ``occurrence``-th with that name, about to run?"""
        self._asked, self._wanted = None, (name, index, occurrence)

    def advance(self, seconds: float) -> bool:
        """Look on for that long; True when the records are known as far as the log goes."""
        began = self._store.last_backward()
        if self._records is None or self._records.began != began:
            self._records = NodeRecords(self._store, began) if began >= 0 else None
        return self._records is None or self._records.advance(seconds)

    def answer(self) -> tuple[NodeKey | None, int]:
        """The node that was asked for, and the row that was asked for, -1 for none."""
        records, asked, wanted = self._records, self._asked, self._wanted
        self.drop()
        if records is None:
            made = asked[0] if asked is not None else None  # no backward yet
            return ((made.name, 0, 0, made.pointer) if made is not None else None), -1
        if asked is not None:
            said, row = asked
            occurrence = 0 if said.index else records.occurrence(said, row)
            known = said.index or occurrence or said.pointer
            return ((said.name, said.index, occurrence, said.pointer) if known else None), -1
        return None, records.row_of(*wanted) if wanted is not None else -1


def node_index(model: GraphModel, name: str, index: int, occurrence: int, address: str = "") -> int:
    """Index in the graph of the node that a record names; 0 when it is not there."""
    if address:
        for at, known in model.rows.items():
            if known.address == address and plain_name(known.name) == plain_name(name):
                return at
    if index:
        row = model.rows.get(index)
        return index if row is not None and plain_name(row.name) == plain_name(name) else 0
    count = 0
    for at in sorted(model.rows):
        if plain_name(model.rows[at].name) == plain_name(name):
            count += 1
            if count == occurrence:
                return at
    return 0


def occurrence_of(model: GraphModel, index: int) -> int:
    """Which of the nodes with its name node ``index`` is, in execution order; from 1."""
    name = plain_name(model.rows[index].name)
    return sum(1 for at, row in model.rows.items() if at <= index and plain_name(row.name) == name)


def plain_name(name: str) -> str:
    """Without the ordinal of level 6: "mean1GradNode" and "MeanGradNode" are one."""
    return _ORDINAL.sub("", name).lower()

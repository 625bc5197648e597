"""What processes recorded into a run directory, read: while it is written, or later. Any number of readers."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adbg.engine.errors import CommandError
from adbg.engine.node_batch import NodeBatch
from adbg.engine.protocol.codec import from_json
from adbg.engine.protocol.messages import Collective, DiagnosisEnds, Finding, Found, RankFacts
from adbg.engine.record import files as runfiles
from adbg.engine.record.collectives import read_collectives
from adbg.engine.record.files import labels
from adbg.engine.types import Edge, GraphRow, NodeStop, SourceLine


@dataclass(frozen=True, slots=True)
class RecordedBackward:
    """One backward call. ``us`` None: it did not end (still running, or the process died in it)."""

    seq: int
    number: int
    entry: str
    depth: int
    parent: int
    parent_index: int
    thread: int
    iteration: int
    nodes: int
    roots: tuple[str, ...]
    file: str
    line: int
    create_graph: bool
    time: float
    us: float | None
    error: str
    end_seq: int | None = None


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """One thing seen of a node: ``phase`` is "before" or "after"."""

    seq: int
    time: float
    backward: int
    index: int
    phase: str
    us: float | None
    norm: float | None
    nonfinite: bool


class RunReader:
    """Reads what one process recorded, while it is written or later. A call sees all that was committed before it."""

    def __init__(self, run_dir: str | os.PathLike[str], label: str = "") -> None:
        """``label`` "": the first. Raises CommandError when there is nothing to read."""
        self.run_dir = Path(run_dir)
        try:
            found = labels(self.run_dir)
        except OSError as error:
            raise CommandError(f"no run at {run_dir}: {error.strerror}", "see: adbg runs") from None
        if not found or (label and label not in found):
            raise CommandError(f"no recorded events in {run_dir}", "see: adbg runs")
        self.label = label or found[0]
        self._path = runfiles.events_path(self.run_dir, self.label)
        self._db = self._connect()
        known = self._db.execute("SELECT name FROM sqlite_master WHERE name IN ('nodes_ran', 'same_graph')").fetchall()
        self._packs = len(known) == 2  # from schema 4 on

    def _connect(self) -> sqlite3.Connection:
        """Read-only. A process that was killed in the middle of a transaction left a journal that undoes it, which only
        a writer may; on a read-only disk what it left is read as it is."""
        error: Exception | None = None
        for query in ("mode=ro", "mode=rw", "mode=ro&immutable=1"):
            try:
                uri = f"{self._path.absolute().as_uri()}?{query}"
                db = sqlite3.connect(uri, uri=True, check_same_thread=False, timeout=5.0)
                db.execute("SELECT count(*) FROM backward")
                return db
            except sqlite3.Error as problem:
                error = problem
        raise CommandError(f"the record {self._path} cannot be read: {error}", "it was cut off before its first event")

    def close(self) -> None:
        self._db.close()

    @property
    def info(self) -> dict[str, Any]:
        """``run.json``: schema, argv, cwd, pid, rank, started, frameworks, capabilities, ended."""
        return runfiles.read_info(self.run_dir, self.label)

    @property
    def state(self) -> str:
        """ "running", "ended" or "crashed"."""
        own = runfiles.info_path(self.run_dir, self.label).name != "run.json"
        return runfiles.state_of(self.info) if own else runfiles.run_state(self.run_dir)

    @property
    def log_path(self) -> Path:
        return runfiles.vlog_path(self.run_dir, self.label)

    @property
    def output_path(self) -> Path:
        return runfiles.output_path(self.run_dir, self.label)

    def backwards(self) -> list[RecordedBackward]:
        """In order of their beginning."""
        rows = self._db.execute(
            "SELECT seq, number, entry, depth, parent, parent_idx, thread, iteration, nodes, roots, file, line,"
            " create_graph, time, us, error, end_seq FROM backward ORDER BY seq"
        )
        found = []
        for seq, number, entry, depth, parent, parent_idx, thread, iteration, nodes, roots, *rest in rows:
            file, line, create_graph, begun, us, error, end_seq = rest
            facts = (seq, number, entry, depth, parent, parent_idx, thread, iteration, nodes, tuple(json.loads(roots)))
            found.append(RecordedBackward(*facts, file, line, bool(create_graph), begun, us, error or "", end_seq))
        return found

    def graph(self, number: int, start: int = 1, count: int = 2000) -> list[GraphRow]:
        """``count`` rows from index ``start`` of a backward call, as they stood at its end (or at its last event)."""
        found = self._db.execute("SELECT us, error FROM backward WHERE number=?", (number,)).fetchone()
        whole = bool(found and found[0] is not None and not found[1])
        last = start + count - 1
        source = self._source(number)
        edges: dict[int, list[int]] = {}
        for index, to in self._db.execute(
            "SELECT idx, to_idx FROM edge WHERE backward=? AND idx BETWEEN ? AND ? AND to_idx IS NOT NULL"
            " ORDER BY idx, slot",
            (source, start, last),
        ):
            edges.setdefault(index, []).append(to)
        ran = self._ran(number, start, last)
        rows = self._db.execute(
            "SELECT idx, key, name, unique_name, accumulate, parameter, module, file, line, function, shape, dtype,"
            " custom, compiled FROM node WHERE backward=? AND idx BETWEEN ? AND ? ORDER BY idx",
            (source, start, last),
        )
        return [_graph_row(row, edges.get(row[0], ()), ran.get(row[0]), whole) for row in rows]

    def _source(self, number: int) -> int:
        """The call whose nodes and edges are those of ``number``."""
        if not self._packs:
            return number
        row = self._db.execute("SELECT source FROM same_graph WHERE backward=?", (number,)).fetchone()
        return int(row[0]) if row else number

    def edges(self, number: int) -> dict[int, tuple[Edge, ...]]:
        """The edges of a call's recorded nodes, by key, as its graph had them; a producer that did not run is left out
        (``to`` None). Of a run of schema 1 the slots are not known: places in the list stand for them."""
        columns = [row[1] for row in self._db.execute("PRAGMA table_info(edge)")]
        to_slot = "edge.to_slot" if "to_slot" in columns else "0"
        found: dict[int, list[Edge]] = {}
        for key, slot, to, into in self._db.execute(
            f"SELECT node.key, edge.slot, producer.key, {to_slot} FROM edge"
            " JOIN node ON node.backward = edge.backward AND node.idx = edge.idx"
            " LEFT JOIN node AS producer ON producer.backward = edge.backward AND producer.idx = edge.to_idx"
            " WHERE edge.backward=? ORDER BY edge.idx, edge.slot",
            (self._source(number),),
        ):
            found.setdefault(key, []).append(Edge(slot, to, into))
        return {key: tuple(edges) for key, edges in found.items()}

    def _ran(self, number: int, start: int, last: int) -> dict[int, NodeEvent]:
        """What was seen of each node, both phases in one."""
        ran: dict[int, NodeEvent] = {}
        for event in self.events(number):
            if not start <= event.index <= last:
                continue
            old = ran.get(event.index)
            if old is not None:
                event = NodeEvent(
                    event.seq,
                    event.time,
                    number,
                    event.index,
                    event.phase,
                    event.us if event.us is not None else old.us,
                    old.norm if old.norm is not None else event.norm,
                    old.nonfinite or event.nonfinite,
                )
            ran[event.index] = event
        return ran

    def events(self, number: int = 0, after: int = 0) -> list[NodeEvent]:
        """Of one backward call (0: of all), with ``seq`` over ``after``, in order."""
        where, values = "seq > ?", [after]
        if number:  # the call's own range of seq bounds the scan: there is no index to keep up while recording
            where += " AND backward=? AND seq >= coalesce((SELECT seq FROM backward WHERE number=?), 0)"
            where += " AND seq <= coalesce((SELECT end_seq FROM backward WHERE number=?), 9e18)"
            values += [number, number, number]
        rows = self._db.execute(
            f"SELECT seq, time, backward, idx, phase, us, norm, nonfinite FROM node_event WHERE {where} ORDER BY seq",
            values,
        )
        found = [
            NodeEvent(seq, when, backward, index, phase, us, None if norm is None else float(norm), bool(nonfinite))
            for seq, when, backward, index, phase, us, norm, nonfinite in rows
        ]
        packed = self._packed_events(number, after)
        return sorted([*found, *packed], key=lambda event: event.seq) if packed else found

    def _packed_events(self, number: int, after: int) -> list[NodeEvent]:
        """Those that were written down many in a row."""
        if not self._packs:
            return []
        query = "SELECT seq, backward, epoch, rows FROM nodes_ran WHERE last > ? AND (? IN (0, backward)) ORDER BY seq"
        found = []
        for seq, backward, epoch, rows in self._db.execute(query, (after, number)):
            for row in NodeBatch(rows):
                begin, facts = epoch + row.begin_ns / 1e9, (row.norm, row.nonfinite)
                found.append(NodeEvent(seq, begin, backward, row.index, "before", None, *facts))
                if not row.failed:
                    end = begin + row.us / 1e6
                    found.append(NodeEvent(seq + 1, end, backward, row.index, "after", row.us, *facts))
                seq += 2
        return [event for event in found if event.seq > after]

    def forward_stack(self, number: int, index: int) -> list[SourceLine]:
        """Innermost first; [] when none was recorded."""
        row = self._db.execute(
            "SELECT frames FROM node JOIN stack ON stack.id = node.stack WHERE backward=? AND idx=?",
            (self._source(number), index),
        ).fetchone()
        return [SourceLine(*frame) for frame in json.loads(row[0])] if row else []

    def stops(self) -> list[tuple[int, float, NodeStop]]:
        """(seq, time, stop), in order."""
        rows = self._db.execute("SELECT seq, time, body FROM stop ORDER BY seq")
        return [(seq, time, from_json(NodeStop, json.loads(body), "stop")) for seq, time, body in rows]

    def collectives(self, last: int = 0) -> list[Collective]:
        """The ledger of collectives, in order; the ``last`` rows, 0 for all."""
        return read_collectives(self._db, last)

    def artifacts(self) -> list[tuple[int, float, str, str, str]]:
        """(seq, time, kind, path, text), in order."""
        return list(self._db.execute("SELECT seq, time, kind, path, text FROM artifact ORDER BY seq"))

    def diagnosis(self) -> tuple[list[Finding], DiagnosisEnds | None]:
        """Findings as told last under each id, and what each detector came to: None where the program did not get so
        far, or nobody asked."""
        found: dict[int, Finding] = {}
        end = None
        for _, _, kind, _, text in self.artifacts():
            if kind == "finding":
                finding = from_json(Found, json.loads(text), "finding").finding
                found[finding.id] = finding
            elif kind == "diagnosis":
                end = from_json(DiagnosisEnds, json.loads(text), "diagnosis")
        return list(found.values()), end

    def bad_losses(self) -> dict[int, tuple[int, int, int]]:
        """Of the backward calls whose root was not finite: (NaN, infinite, all) elements. Known of calls of which every
        node was recorded."""
        rows = ((path, text) for _, _, kind, path, text in self.artifacts() if kind == runfiles.LOSS)
        return {int(number): tuple(json.loads(text)) for number, text in rows}

    def rank_facts(self) -> list[RankFacts]:
        """What diagnosis told for a comparison with other ranks."""
        texts = [text for _, _, kind, _, text in self.artifacts() if kind == "rank-facts"]
        return [from_json(RankFacts, json.loads(text), "rank-facts") for text in texts]

    def log_index(self, after: int = 0) -> list[tuple[int, int, int]]:
        """(seq, offset, length) of the VLOG records that adbg wrote itself, and of the ranges that the framework wrote
        between two events."""
        return list(self._db.execute("SELECT seq, offset, length FROM log WHERE seq > ? ORDER BY seq", (after,)))


def _graph_row(row: Sequence[Any], edges: Iterable[int], ran: NodeEvent | None, whole: bool) -> GraphRow:
    (index, key, name, unique, accumulate, parameter, module, file, line, function, shape, dtype, custom, compiled) = (
        row
    )
    return GraphRow(
        index=index,
        key=key,
        name=name,
        unique_name=unique,
        state="done" if ran or whole else "todo",
        edges=tuple(edges),
        accumulate=bool(accumulate),
        parameter=parameter,
        module=module,
        forward=SourceLine(file, line, function) if file else None,
        shape=tuple(json.loads(shape)) if shape else None,
        dtype=dtype,
        us=ran.us if ran else None,
        norm=ran.norm if ran else None,
        nonfinite=bool(ran and ran.nonfinite),
        custom=bool(custom),
        compiled=bool(compiled),
    )

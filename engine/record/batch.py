"""Entries of the recorder's queue on their way into rows of one transaction. On the recorder's thread."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from adbg.engine.flag import Flag
from adbg.engine.node_batch import ROW
from adbg.engine.protocol.codec import to_json
from adbg.engine.record.collectives import collective_row
from adbg.engine.record.writer import RunWriter
from adbg.engine.types import BriefRuns, GraphRow, SourceLine

EdgeRow = tuple[int, "int | None", int]  # slot, index of the producer, its slot


class Batch:
    """Queue entries on their way into one transaction."""

    def __init__(self, writer: RunWriter) -> None:
        self._writer = writer
        self._rows: dict[str, list[tuple[Any, ...]]] = {}
        self._ends: list[tuple[Any, ...]] = []
        self._info: dict[str, Any] = {}
        self._logs: list[tuple[int, bytes]] = []
        self.flushes: list[Flag] = []
        self.size = 0
        self.packed = 0  # bytes of nodes

    def add(self, item: tuple[Any, ...]) -> None:
        kind, values = item[0], item[1:]
        self.size += 1
        if kind == "node_event":
            *facts, norm, nonfinite = values
            # sqlite stores NaN as NULL: its name instead
            self._row(kind, (*facts, "nan" if norm is not None and norm != norm else norm, nonfinite))
        elif kind == "log":
            self._logs.append((values[0], _record_bytes(values[1])))
        elif kind == "log_range":
            self._row("log", values)
        elif kind == "graph":
            self._graph(*values)
        elif kind == "backward":
            number, seq, now, facts, roots, file, line, create_graph = values
            row = (number, seq, now, *facts, json.dumps(roots), file, line, create_graph, None, None, "")
            self._row(kind, row)
        elif kind == "brief":
            seq, end_seq, run = values
            call = run.call
            outermost = (call.entry, 0, 0, 0, call.thread, call.iteration, call.nodes)
            ended = (end_seq, run.us, run.error)
            row = (call.number, seq, run.began, *outermost, json.dumps(call.roots), call.file, call.line, False, *ended)
            self._row("backward", row)
        elif kind == "briefs":
            self._briefs(*values)
        elif kind == "end":
            self._ends.append(values)
        elif kind == "stop":
            seq, now, stop = values
            body = json.dumps(to_json(stop), separators=(",", ":"))
            self._row(kind, (seq, now, stop.backward, stop.index, stop.reason.value, stop.phase.value, body))
        elif kind == "collective":
            self._row(kind, collective_row(values[0]))
        elif kind == "info":
            self._info.update(values[0])
        elif kind == "flush":
            self.flushes.append(values[0])
        else:
            if kind == "nodes_ran":
                self.packed += len(values[4])
            self._row(kind, values)

    def commit(self) -> None:
        if self._logs:
            offset, _ = self._writer.append_log(b"".join(data for _, data in self._logs))
            for seq, data in self._logs:
                self._row("log", (seq, offset, len(data)))
                offset += len(data)
        if self._rows or self._ends:
            self._writer.write(self._rows, self._ends)
        if self._info:
            self._writer.update_info(self._info)

    def _row(self, table: str, values: tuple[Any, ...]) -> None:
        self._rows.setdefault(table, []).append(values)

    def _briefs(self, seq: int, epoch: float, runs: BriefRuns, same: bool) -> None:
        """Calls just alike, numbered from ``seq`` on: begin, both phases of each node, end. ``same``: they have the
        graph of ``runs.source``."""
        call, calls = runs.call, len(runs.us)
        facts = (call.entry, 0, 0, 0, call.thread)
        rest = (call.nodes, json.dumps(call.roots), call.file, call.line, False)
        first, began, us = call.number, runs.began, runs.us
        backwards, packs = self._rows.setdefault("backward", []), self._rows.setdefault("nodes_ran", [])
        for place in range(calls):
            number, begin = first + place, seq
            seq += 1
            if runs.nodes:
                rows = runs.nodes[place]
                events = 2 * (len(rows) // ROW.size)
                packs.append((seq, seq + max(events - 1, 0), number, epoch, rows, 0))
                self.packed += len(rows)
                seq += events
            backwards.append((number, begin, began[place], *facts, call.iteration + place, *rest, seq, us[place], ""))
            seq += 1
        if same:
            self._rows.setdefault("same_graph", []).extend(
                (number, runs.source) for number in range(first, first + calls)
            )
        self.size += calls * (1 + bool(runs.nodes) + same)

    def _graph(
        self,
        number: int,
        rows: Sequence[GraphRow],
        stacks: Mapping[int, Sequence[SourceLine]],
        edges: Mapping[int, Sequence[EdgeRow]],
    ) -> None:
        for row in rows:
            self.size += 1
            forward = row.forward
            place = (forward.file, forward.line, forward.function) if forward else ("", 0, "")
            shape = None if row.shape is None else json.dumps(row.shape)
            stack = self._writer.stack_id(stacks.get(row.index, ()))
            flags = (row.accumulate, row.custom, row.compiled, row.parameter, row.module)
            self._row(
                "node", (number, row.index, row.key, row.name, row.unique_name, *flags, *place, shape, row.dtype, stack)
            )
            for edge in edges.get(row.index, ()):
                self._row("edge", (number, row.index, *edge))


def _record_bytes(text: str) -> bytes:
    return (text if text.endswith("\n") else text + "\n").encode("utf-8", "backslashreplace")

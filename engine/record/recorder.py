"""The recorder: plain values from any thread into the run directory.

Callers only append to a queue (0.4 us, nothing is formatted there); one daemon thread ("adbg-recorder") sleeps
until there is something, gathers for 50 ms or 500 rows, and writes. A write that fails ends the recording, says so once
through ``on_problem``, and never reaches a caller. When the process is killed, at most the last 50 ms of what was
handed over are missing; calls that ran without Python are handed over some times a second (``agent.events``).
"""

from __future__ import annotations

import atexit
import collections
import os
import sqlite3
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from adbg.engine.flag import Flag
from adbg.engine.node_batch import ROW
from adbg.engine.outside import own, suppress
from adbg.engine.protocol.messages import Collective
from adbg.engine.record.batch import Batch, EdgeRow
from adbg.engine.record.budget import LIMIT
from adbg.engine.record.files import SCHEMA, process_start
from adbg.engine.record.writer import RunWriter
from adbg.engine.types import BriefRun, BriefRuns, GraphRow, NodeStop, SourceLine

BATCH = 500  # rows per transaction: 0.7 us a row in sqlite, against 10 us one by one
GATHER = 0.05  # seconds
MAX_LOGS = 20_000  # waiting entries above which log records are dropped, and counted
MOST_GRAPHS = 1024  # whose newest call is known
MAX_BATCHES = 2000  # the same for batches of nodes
PACK = 256 << 10  # bytes of nodes in one entry
MAX_PACKED = 16 << 20  # bytes of nodes that wait in entries of that kind
MAX_EVENTS = 200_000  # the same for node events; everything else is never dropped

Problem = Callable[[str], None]


class Recorder:
    """One process's record. Every method may be called from any thread and never raises."""

    def __init__(self, writer: RunWriter | None, on_problem: Problem | None) -> None:
        """Use ``open``. ``writer`` None records nothing."""
        self.before_end: Callable[[], object] = lambda: None  # hands over what is still elsewhere, before it closes
        self._writer = writer
        self._on = writer is not None
        self._on_problem = on_problem
        self._queue: collections.deque[tuple[Any, ...]] = collections.deque()
        self._next = 1  # number of what is handed over next
        self._packed = 0  # bytes of nodes that wait in entries of many calls
        self._numbering = threading.Lock()
        self._wake = Flag()
        self._urgent = Flag()
        self._closing = False
        self._dropped = 0
        self._newest: dict[int, int] = {}  # by call with a graph's rows, the newest one that has the same
        self._close_lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @classmethod
    def open(
        cls,
        run_dir: str | os.PathLike[str],
        rank: int = 0,
        on_problem: Problem | None = None,
        limit: int = LIMIT,
        **info: Any,
    ) -> Recorder:
        """Never raises: when the folder cannot be written, ``on_problem`` hears why and the recorder records nothing.
        ``limit``: bytes that may be kept, 0 for any number; what is oldest goes first. ``info`` goes into run.json
        (argv, cwd, frameworks, capabilities)."""
        pid = os.getpid()
        known = {
            "schema": SCHEMA,
            "argv": list(sys.argv),
            "cwd": _cwd(),
            "python": sys.version.split()[0],
            "pid": pid,
            "pid_start": process_start(pid),
            "rank": rank,
            "started": time.time(),
            "ended": None,
            "limit": limit,
            **info,
        }
        try:
            writer = RunWriter(run_dir, rank, known, limit)
        except own(OSError, sqlite3.Error) as error:
            recorder = cls(None, on_problem)
            recorder._report(
                f"nothing is recorded: {_reason(error)} ({os.fspath(run_dir)}); debugging continues without a record"
            )
            return recorder
        recorder = cls(writer, on_problem)
        recorder._start()
        return recorder

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="adbg-recorder", daemon=True)
        self._thread.start()
        alive = weakref.ref(self)

        def in_child() -> None:
            if recorder := alive():
                recorder._forget()

        def at_exit() -> None:
            if recorder := alive():
                recorder.close()

        os.register_at_fork(after_in_child=in_child)
        atexit.register(at_exit)

    def _forget(self) -> None:
        """In a forked child: the record is the parent's. The database is neither used nor closed here (sqlite: "How to
        corrupt", 2.6); the reference to it is kept for that reason."""
        self._on = False
        self._thread = None
        self._close_lock = threading.Lock()  # another thread of the parent may have held it
        self._numbering = threading.Lock()
        self._queue.clear()

    @property
    def recording(self) -> bool:
        return self._on

    @property
    def run_dir(self) -> str:
        """ "" when nothing is recorded."""
        return str(self._writer.run_dir) if self._writer is not None and self._on else ""

    @property
    def label(self) -> str:
        return self._writer.label if self._writer is not None else ""

    @property
    def dropped(self) -> int:
        """Log records and node events dropped under pressure so far."""
        return self._dropped

    # ---------------------------------------------------------------- what is recorded

    def update_info(self, **info: Any) -> None:
        """Change fields of run.json (frameworks once they are known)."""
        self._put(("info", info))

    def backward_begin(
        self,
        number: int,
        *,
        nodes: int = 0,
        roots: Sequence[str] = (),
        entry: str = "backward",
        depth: int = 0,
        parent: int = 0,
        parent_index: int = 0,
        thread: int = 0,
        iteration: int = 0,
        file: str = "",
        line: int = 0,
        create_graph: bool = False,
        ago: float = 0.0,
    ) -> None:
        """``ago``: seconds since it began. Its nodes were walked since: 12 ms of a process's first call."""
        seq, now = self._numbers(), time.time() - ago
        facts = (entry, depth, parent, parent_index, thread, iteration, nodes)
        self._put(("backward", number, seq, now, facts, tuple(roots), file, line, create_graph))

    def brief(self, run: BriefRun, rows: bytes | None = None, source: int = 0) -> None:
        """``backward_begin`` and ``backward_end`` of a call that was not looked into. ``rows``: its ``node_events`` and
        the graph of call ``source`` (``same_graph``; where that is gone by now, it has none)."""
        begin = self._numbers()
        if rows is not None:
            self.node_events(run.call.number, rows)
            self.same_graph(run.call.number, source)
        self._put(("brief", begin, self._numbers(), run))

    def briefs(self, runs: BriefRuns) -> None:
        """``brief`` of many calls: one entry of the queue for some hundred of them, rows that the recorder's thread
        makes (of 190 nodes each 0.7 us here and 19 there, one by one 7.5 and 25)."""
        every, nodes = len(runs.us), runs.nodes
        most = min(PACK, self._writer.burst if self._writer is not None else PACK)
        share = max(1, most // (max(map(len, nodes), default=0) + 100))
        counts = [2 * (len(rows) // ROW.size) for rows in nodes] or [0] * every
        epoch = time.time() - time.perf_counter_ns() / 1e9
        for start in range(0, every, share):
            end = min(start + share, every)
            call = runs.call._replace(number=runs.call.number + start, iteration=runs.call.iteration + start)
            packed, events = nodes[start:end], sum(counts[start:end])
            size = sum(map(len, packed))
            if size and self._packed >= MAX_PACKED:
                self._dropped += events // 2
                packed, events, size = (), 0, 0
            part = BriefRuns(call, runs.began[start:end], runs.us[start:end], packed, runs.source)
            same = bool(packed) and self._has_graph(runs.source, call.number + end - start - 1)
            with self._numbering:
                self._packed += size
            self._put(("briefs", self._numbers(events + 2 * (end - start)), epoch, part, same))

    def backward_end(self, number: int, us: float | None = None, error: str = "") -> None:
        self._put(("end", self._numbers(), us, error, number))

    def graph(
        self,
        number: int,
        rows: Sequence[GraphRow],
        stacks: Mapping[int, Sequence[SourceLine]],
        edges: Mapping[int, Sequence[EdgeRow]],
    ) -> None:
        """Nodes of a backward call, a page at a time. By index: ``stacks`` their forward stacks, ``edges`` all that the
        graph has, null edges too."""
        self._put(("graph", number, rows, stacks, edges))

    def node_event(
        self,
        backward: int,
        index: int,
        phase: str,
        us: float | None = None,
        norm: float | None = None,
        nonfinite: bool = False,
    ) -> None:
        if len(self._queue) > MAX_EVENTS:
            self._dropped += 1
            return
        self._put(("node_event", self._numbers(), time.time(), backward, index, phase, us, norm, nonfinite))

    def node_events(self, backward: int, rows: bytes, lost: int = 0) -> None:
        """Both phases of many nodes: ``rows`` of a ``NodeBatch``. One row of the record, and one number for each."""
        count = len(rows) // ROW.size
        if len(self._queue) > MAX_BATCHES:
            self._dropped += count
            return
        first = self._numbers(max(2 * count, 1))
        last = first + max(2 * count - 1, 0)
        epoch = time.time() - time.perf_counter_ns() / 1e9
        self._put(("nodes_ran", first, last, backward, epoch, rows, lost))

    def same_graph(self, number: int, source: int) -> bool:
        """Call ``number`` has the graph of call ``source``, which was handed in; False where that is gone by now."""
        if not self._has_graph(source, number):
            return False
        self._put(("same_graph", number, source))
        return True

    def _has_graph(self, source: int, number: int) -> bool:
        """Whether the graph of ``source`` is there, for calls up to ``number``."""
        newest = self._newest.get(source, source)  # rows stay while a call that has them does
        if self._writer is None or newest < self._writer.first:
            self._newest.pop(source, None)
            return False
        if len(self._newest) >= MOST_GRAPHS:
            self._newest.clear()
        self._newest[source] = number
        return True

    def stop(self, stop: NodeStop) -> None:
        self._put(("stop", self._numbers(), time.time(), stop), urgent=True)

    def collective(self, row: Collective) -> None:
        """A row of the ledger, handed in again when it ended later."""
        if len(self._queue) > MAX_EVENTS:
            self._dropped += 1
            return
        self._put(("collective", row))

    def artifact(self, kind: str, path: str, text: str = "") -> None:
        self._put(("artifact", self._numbers(), time.time(), kind, path, text))

    def log(self, line: str) -> None:
        """One VLOG record (one or more lines)."""
        if len(self._queue) > MAX_LOGS:
            self._dropped += 1
            return
        self._put(("log", self._numbers(), line))

    def log_range(self, offset: int, length: int) -> None:
        """Bytes of the VLOG file that the framework wrote itself since the last event."""
        if len(self._queue) > MAX_LOGS:
            self._dropped += 1
            return
        self._put(("log_range", self._numbers(), offset, length))

    def flush(self, timeout: float = 2.0) -> bool:
        """Wait until all that was handed over so far is written; False when it is not within ``timeout`` seconds."""
        if not self._on:
            return False
        done = Flag()
        self._put(("flush", done), urgent=True)
        return done.wait(timeout) and self._on

    def close(self, timeout: float = 5.0) -> None:
        """Write the rest, mark the run as ended. Nothing is recorded afterwards."""
        if self._on and not self._closing:
            with suppress(Exception):
                self.before_end()
        with self._close_lock:
            if self._thread is None or self._closing:
                return
            self._closing = True
            self._wake.set()
            self._urgent.set()
            self._thread.join(timeout)

    def _numbers(self, count: int = 1) -> int:
        """The first of ``count`` numbers."""
        with self._numbering:
            first = self._next
            self._next = first + count
        return first

    def _put(self, item: tuple[Any, ...], urgent: bool = False) -> None:
        if not self._on:
            return
        queue = self._queue
        queue.append(item)
        if not self._wake.is_set():
            self._wake.set()
        if (urgent or len(queue) >= BATCH) and not self._urgent.is_set():
            self._urgent.set()

    # ---------------------------------------------------------------- the recorder's thread

    def _run(self) -> None:
        writer = self._writer
        if writer is None:
            return
        try:
            while not self._closing:
                self._wake.wait()
                if not self._closing:
                    self._urgent.wait(GATHER)
                self._wake.clear()
                self._urgent.clear()
                self._drain(writer)
            self._on = False
            self._drain(writer)
            ended = {"ended": writer.info.get("ended") or time.time()}
            writer.update_info({**ended, "dropped": self._dropped} if self._dropped else ended)
        except own(OSError, sqlite3.Error) as error:
            self._fail(f"recording stopped: {_reason(error)} ({writer.run_dir})")
        except (
            Exception
        ) as error:  # a defect here must not surface as a dying thread's traceback in the program's output
            self._fail(f"recording stopped by a defect of adbg: {type(error).__name__}: {error}")
        with suppress(OSError, sqlite3.Error):
            writer.close()

    def _fail(self, message: str) -> None:
        self._on = False
        waiting = [item[1] for item in list(self._queue) if item[0] == "flush"]
        self._queue.clear()
        for done in waiting:
            done.set()
        with suppress(OSError):
            if self._writer is not None:
                self._writer.update_info({"problem": message})
        self._report(f"{message}; debugging continues without a record")

    def _report(self, message: str) -> None:
        if self._on_problem is not None:
            with suppress(Exception):
                self._on_problem(message)

    def _drain(self, writer: RunWriter) -> None:
        while self._queue:
            batch = Batch(writer)
            try:
                while self._queue and batch.size < BATCH and batch.packed < writer.burst:
                    item = self._queue.popleft()
                    if item[0] == "briefs" and item[3].nodes:
                        size = sum(map(len, item[3].nodes))  # a finalizer may run here, that hands something over
                        with self._numbering:
                            self._packed -= size
                    batch.add(item)
                batch.commit()
            finally:
                for done in batch.flushes:
                    done.set()


def _reason(error: BaseException) -> str:
    """What the system says, without its number: "No space left on device"."""
    return str(getattr(error, "strerror", None) or error)


def _cwd() -> str:
    try:
        return os.getcwd()
    except own(OSError):  # the folder was deleted under the program
        return ""

"""The tables of ``info`` that need no stop, and the states of threads (L4; on "adbg-reader" or a parked thread)."""

from __future__ import annotations

import dataclasses
import sys
import threading

from adbg.engine.graph.index import seen
from adbg.engine.protocol.messages import InfoBody, ThreadState
from adbg.engine.session.session import Session


def thread_states(session: Session) -> list[ThreadState]:
    """Threads that run Python, adbg's own left out; those that the framework made count while they stand in a hook."""
    names = {t.ident: t.name for t in threading.enumerate() if t.ident is not None}
    parked = session.parked
    stopped = parked.thread if parked is not None else 0
    waiting = set(session.turn.waiting)
    states = []
    for ident in sys._current_frames():
        name = names.get(ident, f"thread {ident}")
        if not name.startswith("adbg-"):
            state = "stopped" if ident == stopped else "waiting" if ident in waiting else "running"
            states.append(ThreadState(ident, name, state))
    return sorted(states, key=lambda state: (state.adbg != "stopped", state.name != "MainThread", state.name))


def threads_table(session: Session) -> InfoBody:
    states = thread_states(session)
    return InfoBody(f"{len(states)} threads", ["id", "name", "state"], [[s.id, s.name, s.adbg] for s in states])


def breakpoints_table(session: Session) -> InfoBody:
    states = session.table.states()
    rows = [
        [s.id, s.spec, "yes" if s.enabled else "no", "trace" if s.trace else "once" if s.temporary else "stop", s.hits,
         "?" if s.matches is None else s.matches, s.message]
        for s in states
    ]  # fmt: skip
    text = f"{len(states)} breakpoints" if states else "no breakpoints"
    return InfoBody(text, ["id", "spec", "enabled", "kind", "hits", "matches", "note"], rows)


def capabilities_table(session: Session) -> InfoBody:
    rows = []
    for backend in session.backends:
        for name, able in dataclasses.asdict(backend.capabilities).items():
            rows.append([backend.name, backend.version, name, "yes" if able else "no"])
    text = "" if rows else "no framework was imported yet"
    return InfoBody(text, ["framework", "version", "capability", "there"], rows)


def names_table(session: Session) -> InfoBody:
    """While no graph is at hand: names seen at stops, and those that breakpoints were compared with."""
    counts = {(kind, name): count for kind, name, count in seen()}
    for name in sorted(session.table.names_seen):
        counts.setdefault(("name", name), 0)
    rows: list[list[object]] = [[name, count, kind] for (kind, name), count in counts.items()]
    return InfoBody(
        f"{len(rows)} names seen so far" if rows else "no graph was looked at yet", ["name", "nodes", "kind"], rows
    )


TABLES = {
    "threads": threads_table,
    "breakpoints": breakpoints_table,
    "capabilities": capabilities_table,
}
RUNNING_TABLES = {**TABLES, "names": names_table}  # at a stop the graph at hand has the names

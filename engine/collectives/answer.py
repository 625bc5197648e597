"""``adbg/collectives``: where this process stands in its collectives. Runs on "adbg-reader", stops nothing.

What it reads is safe while the program runs or hangs: the ledger's rows, attributes of process groups (names, ranks,
sequence numbers, time-outs), the framework's flight recorder, frames, and of tensors in frames the shape and dtype.
"""

from __future__ import annotations

import collections
import itertools
import os
import threading
import time
from collections.abc import Container, Iterable
from dataclasses import replace

from adbg.engine.collectives.ledger import Ledger
from adbg.engine.outside import own, suppress
from adbg.engine.protocol.messages import Collective, CollectiveAt, Collectives, CollectivesBody
from adbg.engine.python.user_code import FRAMEWORK, USER, framework_roots, owner_of, running_frames, source_line
from adbg.engine.session.session import Session
from adbg.engine.types import SourceLine

MOST = 2000  # rows in one answer
FRAMES = 12
_WRAPPERS = frozenset(
    ("wrapper", "_wrap", "decorate_context", "_fn", "inner", "__impl__", "__call__", "_wrapped_call_impl")
)
_PYTHON = os.path.dirname(os.__file__) + os.sep + "multiprocessing"  # what starts a spawned rank
_OPEN = ("called", "waiting")
_NAP = 0.001  # seconds without the GIL
_LOOKED_AT = 64  # rows of that moment
_TOLERANCE = 0.05  # seconds between the ledger's and the flight recorder's notice of one call


def answer(session: Session, ledger: Ledger, rank: int | None, request: Collectives) -> CollectivesBody:
    frames, call = _main_thread()
    count = max(1, min(request.last, MOST))
    rows = ledger.values(count)
    notes: list[str] = []
    if request.history:
        for taps in ledger.taps:
            try:
                history = taps.history()
            except own(Exception):  # a form that this version does not have
                history = []
            rows = merged(rows, history)
            with suppress(Exception):
                rows = with_frames(rows, taps.in_frames())
            notes += taps.notes
    if not request.history:
        rows = [row for row in rows if row.state in _OPEN] + rows[-1:]
    return CollectivesBody(
        rank=rank,
        pid=os.getpid(),
        now=time.time(),
        since=ledger.since,
        total=ledger.total,
        groups=[group for taps in ledger.taps for group in taps.groups()],
        rows=rows[-count:],
        frames=frames,
        call=call,
        cpu=_cpu(),
        gil=_gil_wait(),
        backwards=sum(backend.backward_count for backend in session.backends),
        stopped=session.parked is not None,
        notes=notes,
    )


def latest(ledger: Ledger) -> CollectiveAt | None:
    """The collective that this process is in, else the one that it called last; None while there is none. Once a
    second, for the panel of ranks: 30 us."""
    found = next(iter(ledger.beside.values()), None) or ledger.last()
    if found is None:  # found hanging: no ledger
        found = next((row for taps in ledger.taps for row in taps.in_frames()), None)
    if found is None:
        return None
    now = time.time()
    begun = found.ended or found.begun or now
    place = found.place
    return CollectiveAt(
        op=found.op,
        seq=found.seq,
        group=found.group,
        running=found.state in _OPEN,
        since=max(0.0, now - begun),
        shape=None if found.shape is None else list(found.shape),
        dtype=found.dtype,
        file=place.file if place is not None else "",
        line=place.line if place is not None else 0,
    )


def merged(rows: Iterable[Collective], history: Iterable[Collective]) -> list[Collective]:
    """The ledger's rows and the framework's, in order. Of a collective that both have, the ledger's row stays, with the
    number that the framework gave it and what it knows of its end."""
    mine = sorted(rows, key=_begun)
    ahead: dict[str, collections.deque[int]] = {}
    for place, row in enumerate(mine):
        ahead.setdefault(row.group, collections.deque()).append(place)
    history = sorted(history, key=_begun)
    numbers = {(row.group, row.seq) for row in history}
    found: list[Collective] = []
    for theirs in history:
        places = ahead.get(theirs.group, collections.deque())
        while places and _begun(mine[places[0]]) < _begun(theirs) - _TOLERANCE:
            places.popleft()
        same = _same(mine, places, theirs, numbers)
        if same is None:
            found.append(theirs)
            continue
        places.remove(same)
        ours = mine[same]
        state = "done" if theirs.state == "done" and ours.state in ("issued", "unknown") else ours.state
        mine[same] = replace(ours, seq=theirs.seq or ours.seq, state=state, ended=ours.ended or theirs.ended)
    return sorted([*mine, *found], key=_begun)


def with_frames(rows: list[Collective], in_frames: Iterable[Collective]) -> list[Collective]:
    """And what the frames tell: of a collective that the flight recorder has too, the operator and the root."""
    rows = list(rows)
    for found in in_frames:
        place = next((at for at, row in enumerate(rows) if row.thread == found.thread and row.state in _OPEN), None)
        if place is None:
            rows.append(found)
        elif rows[place].source == "flight recorder" and rows[place].op == found.op:
            rows[place] = replace(rows[place], reduce=found.reduce, peer=found.peer)
    return rows


def _begun(row: Collective) -> float:
    return row.begun or float("inf")


def _same(
    mine: list[Collective], places: Iterable[int], theirs: Collective, numbers: Container[tuple[str, int]]
) -> int | None:
    """The place of the ledger's row of it, among those that were noted at about that moment in the same thread: with
    the same number, else the first of the same form, where the ledger's count is out of line. ``numbers``: all that
    the framework knows."""
    latest = _begun(theirs) + _TOLERANCE
    form = None
    for place in itertools.islice(places, _LOOKED_AT):
        ours = mine[place]
        if _begun(ours) > latest:
            break
        if ours.thread != theirs.thread:
            continue
        if ours.seq == theirs.seq:
            return place
        if form is None and ours.shape == theirs.shape and (ours.group, ours.seq) not in numbers:
            form = place
    return form


def _main_thread() -> tuple[list[SourceLine], str]:
    """The user's lines of the main thread, innermost first, and the framework's function that the innermost of them is
    in."""
    live, _ = running_frames(0)
    roots = framework_roots()
    owners = [owner_of(frame, roots) for frame in live]
    first = next((place for place, owner in enumerate(owners) if owner == USER), len(live))
    call = ""
    for frame, owner in zip(live[:first][::-1], owners[:first][::-1]):
        if owner == FRAMEWORK and frame.f_code.co_name not in _WRAPPERS:
            call = f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_name}"
            break
    lines = [source_line(frame) for frame, owner in zip(live, owners) if owner == USER]
    known = [line for line in lines if line is not None]
    return ([line for line in known if not line.file.startswith(_PYTHON)] or known)[:FRAMES], call


def _cpu() -> float:
    """Seconds that the main thread has computed, or was ready to: the machine may be busy with other work."""
    thread = threading.main_thread().native_id
    with suppress(OSError, ValueError, IndexError), open(f"/proc/self/task/{thread}/schedstat", "rb") as file:
        computed, waited = file.read().split()[:2]
        return (int(computed) + int(waited)) / 1e9
    return time.process_time()


def _gil_wait() -> float:
    """Seconds, the least of a few tries."""
    found = []
    for _ in range(3):
        begun = time.perf_counter()
        time.sleep(_NAP)
        found.append(time.perf_counter() - begun - _NAP)
    return max(0.0, min(found))

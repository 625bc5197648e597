"""``adbg/digest`` and ``adbg/bytes``: what ranks compare instead of whole tensors.

At a stop on the parked thread. While the program runs, on its own thread, at the begin of a backward (parameters and
buffers: no optimizer changes them there) or at its end (gradients: a wrapper such as DistributedDataParallel has
reduced them). SHA-256 takes 0.6 ms a MB here, and lets go of the GIL.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from adbg.engine.backends.base import Backend, Graph
from adbg.engine.errors import AdbgError, CommandError, NotStopped, Unsupported
from adbg.engine.graph.index import index_of
from adbg.engine.inspect.context import StopContext
from adbg.engine.inspect.tables import steadily
from adbg.engine.outside import own
from adbg.engine.protocol import messages as protocol
from adbg.engine.session.observers import Observer
from adbg.engine.session.running_call import Running
from adbg.engine.session.session import Session
from adbg.engine.types import BriefRun, NodeInfo, ValueState

WHAT = ("params", "grads", "buffers")
MOST_BYTES = 16 << 20  # of one ``adbg/bytes``: 22 MB of base64, below the limit of a message
SHORT = 16  # hex digits of a block's digest: 64 bits, compared within one tensor only
_FEEDERS = 3  # nodes named of those that flow into one accumulate node


def digest_at(session: Session, stop: StopContext, request: protocol.Digest) -> protocol.DigestBody:
    """All tensors of a kind, at a stop.

    Raises:
        CommandError: no such kind.
    """
    return _digest(session, request, "stop", stop.point.graph, stop.point.backend)


def position(session: Session) -> protocol.DigestBody:
    """Where this process is, in iterations and collectives. Any thread."""
    iteration = sum(backend.iteration for backend in session.backends)
    counts = [backend.collectives_begun() for backend in session.backends]
    worlds = [backend.world() for backend in session.backends]
    reducer = next(filter(None, (backend.reducer() for backend in session.backends)), "")
    return protocol.DigestBody(
        tensors=[],
        at="",
        iteration=iteration,
        collectives=next((count for count in counts if count is not None), None),
        reducer=reducer,
        world=next((count for count in worlds if count is not None), _environment_world()),
    )


def _environment_world() -> int | None:
    """As torchrun, paddle.distributed.launch and mpirun tell it."""
    for name in ("WORLD_SIZE", "PADDLE_TRAINERS_NUM", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return None


def bytes_at(session: Session, request: protocol.Bytes) -> protocol.BytesBody:
    """A window of a tensor's bytes.

    Raises:
        CommandError: there is no such tensor; Unsupported: it has no bytes.
    """
    _check(request.what)
    start, end = max(0, request.start), max(0, request.start) + min(max(0, request.count), MOST_BYTES)
    for name, value, backend in _tensors(session, request.what):
        if name == request.name and value is not None:
            taken = _Window(start, end)
            backend.feed_bits(value, taken.put)
            return protocol.BytesBody(base64.b64encode(taken.data).decode())
    raise CommandError(f"no tensor {request.name!r} among the {request.what} of this rank", "`info params` lists them")


class DigestMoments(Observer):
    """Requests of a running program, each answered at the first moment that it waits for. Costs nothing without one."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: list[_Waiting] = []

    @property
    def active(self) -> bool:
        return bool(self._waiting)

    @property
    def arms(self) -> bool:
        return bool(self._waiting)

    def wait_for(
        self,
        request: protocol.Digest,
        answer: Callable[[protocol.DigestBody], None],
        refuse: Callable[[AdbgError], None],
    ) -> None:
        """One of the two is called: ``answer`` on the program's thread, or ``refuse``."""
        _check(request.what)
        self._session.change(lambda: self._waiting.append(_Waiting(request, answer, refuse)))

    # ---- on the program's threads

    def needs_calls(self) -> bool:
        """The graph tells which nodes made a gradient."""
        return any(each.request.what == "grads" for each in self._waiting)

    def before_backward(self) -> None:
        if not self._waiting:
            return
        where = position(self._session)
        for each in list(self._waiting):
            if time.monotonic() > each.until:
                self._drop(each)
                each.refuse(NotStopped("nobody waits for these digests any more"))
            elif (where.iteration if each.request.by_iteration else where.collectives or 0) > each.request.after:
                if each.request.what == "grads":
                    each.due = True
                else:
                    self._answer(each, "begin", None, None)

    def backward_end(self, running: Running, us: float, error: BaseException | None) -> None:
        if running.call.depth == 0:
            self._ended(running.call, running.backend)

    def brief_end(self, run: BriefRun) -> None:
        self._ended(None, None)

    def _ended(self, graph: Graph | None, backend: Backend | None) -> None:
        for each in list(self._waiting):
            if each.due:
                self._answer(each, "end", graph, backend)

    def _answer(self, each: _Waiting, at: str, graph: Graph | None, backend: Backend | None) -> None:
        self._drop(each)
        try:
            each.answer(_digest(self._session, each.request, at, graph, backend))
        except AdbgError as error:
            each.refuse(error)
        except own(Exception) as error:
            each.refuse(AdbgError(f"hashing failed: {type(error).__name__}: {error}"))

    def _drop(self, each: _Waiting) -> None:
        self._session.change(lambda: self._waiting.remove(each) if each in self._waiting else None)

    def detach(self) -> None:
        self._waiting = []

    def abandon(self) -> None:
        self._waiting = []


class _Waiting:
    """A request, and whom to tell. ``due``: its backward has begun."""

    def __init__(
        self,
        request: protocol.Digest,
        answer: Callable[[protocol.DigestBody], None],
        refuse: Callable[[AdbgError], None],
    ) -> None:
        self.request = request
        self.answer = answer
        self.refuse = refuse
        self.until = time.monotonic() + request.wait
        self.due = False


# ------------------------------------------------------------------ hashing


def _digest(
    session: Session, request: protocol.Digest, at: str, graph: Graph | None, backend: Backend | None
) -> protocol.DigestBody:
    if not request.what:
        return position(session)
    _check(request.what)
    begun = time.perf_counter()
    wanted = set(request.names)
    feeders = _Feeders(graph if request.what == "grads" else None)
    rows = [
        _row(each, name, value, request.block, feeders.of(name) if each is backend else ())
        for name, value, each in _tensors(session, request.what)
        if not wanted or name in wanted
    ]
    here = position(session)
    return dataclasses.replace(here, tensors=rows, at=at, seconds=round(time.perf_counter() - begun, 4))


def _check(what: str) -> None:
    if what not in WHAT:
        raise CommandError(f"cannot hash {what!r}", "one of: " + ", ".join(WHAT))


def _tensors(session: Session, what: str) -> Iterable[tuple[str, Any, Backend]]:
    """(name, tensor, its backend) in the order of the modules; the gradient of a parameter without one is None. Of
    models that use the same name, the second is "name (2)"."""
    seen: dict[str, int] = {}
    for backend in session.backends:
        pairs = steadily(backend.buffers if what == "buffers" else backend.weights)
        if what != "buffers":
            known = {id(value) for _, value in (*pairs, *steadily(backend.parameters))}
            pairs += [(place, value) for place, value in backend.optimized() if id(value) not in known]
        for name, value in pairs:
            count = seen[name] = seen.get(name, 0) + 1
            label = name if count == 1 else f"{name} ({count})"
            yield label, backend.gradient_of(value) if what == "grads" else value, backend


def _row(backend: Backend, name: str, value: Any, block: int, made_by: Sequence[NodeInfo]) -> protocol.TensorDigest:
    meta = backend.meta(value)
    state, note, hashed = meta.state, meta.note, _Hashed(block)
    if state is ValueState.OK:
        try:
            backend.feed_bits(value, hashed.put)
        except Unsupported as error:
            state, note = ValueState.NO_DATA, error.message
    return protocol.TensorDigest(
        name=name,
        shape=None if meta.shape is None else list(meta.shape),
        dtype=meta.dtype,
        nbytes=hashed.size,
        digest=hashed.whole.hexdigest() if state is ValueState.OK else "",
        state=state,
        part=backend.part_of(value) if value is not None else "",
        note=note,
        blocks=hashed.blocks(),
        made_by=list(made_by),
    )


class _Hashed:
    """The digest of bytes that come in pieces, and those of their blocks of ``block`` bytes (0: none)."""

    def __init__(self, block: int) -> None:
        self.whole = hashlib.sha256()
        self.size = 0
        self._block = block
        self._blocks: list[str] = []
        self._open = hashlib.sha256()

    def put(self, piece: memoryview) -> None:
        self.whole.update(piece)
        while self._block and len(piece):
            room = self._block - self.size % self._block
            self._open.update(piece[:room])
            self.size += len(piece[:room])
            piece = piece[room:]
            if self.size % self._block == 0:
                self._close()
        self.size += len(piece)

    def _close(self) -> None:
        self._blocks.append(self._open.hexdigest()[:SHORT])
        self._open = hashlib.sha256()

    def blocks(self) -> list[str]:
        if self._block and self.size % self._block:
            self._close()
        return self._blocks


class _Window:
    """Bytes ``start`` to ``end`` of what comes in pieces."""

    def __init__(self, start: int, end: int) -> None:
        self.data = bytearray()
        self._start = start
        self._end = end
        self._at = 0

    def put(self, piece: memoryview) -> None:
        first, last = max(0, self._start - self._at), max(0, self._end - self._at)
        self.data += piece[first:last]
        self._at += len(piece)


class _Feeders:
    """The nodes whose gradients flow into the accumulate node of a parameter, in a walked graph."""

    def __init__(self, graph: Graph | None) -> None:
        self._graph = graph
        self._keys: dict[str, int] | None = None

    def of(self, parameter: str) -> list[NodeInfo]:
        graph = self._graph
        if graph is None:
            return []
        if self._keys is None:
            infos = ((key, graph.describe(key)) for key in graph.order() if graph.is_accumulate(key))
            self._keys = {info.parameter: key for key, info in infos if info.parameter}
        key = self._keys.get(parameter)
        if key is None:
            return []
        consumers = dict.fromkeys(consumer for consumer, _ in index_of(graph).consumers(graph, key))
        return [graph.describe(consumer) for consumer in list(consumers)[:_FEEDERS]]

"""One connection to a front end: a reader thread, a writer thread, a bounded queue between.

``send`` is called from hooks: it never blocks and never raises. Events that may be lost are dropped while the queue is
full, and counted; responses and stops are always kept. A failed send or the end of the stream becomes one call of
``on_gone``.
"""

from __future__ import annotations

import collections
import contextlib
import io
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from adbg.engine import own_threads
from adbg.engine.descriptors import Own, freed, lifted, never_freed
from adbg.engine.errors import AdbgError, ProtocolError
from adbg.engine.outside import own, suppress
from adbg.engine.protocol import codec as wire

LIMIT = 4096  # messages waiting; at 300 bytes each about 1 MB
PAUSE = 0.05  # seconds: within that, the batches of ``send_later`` beyond the first BURST wait and go together
BURST = 8  # what few calls tell goes out at once
AT_ONCE = 16_384  # bytes that ``send_now`` sends at most
NAP, SPARED = 0.0005, 0.2  # seconds: of a sleep in ``await_writer``, and of all of them together
_NO_WAIT = int(socket.MSG_NOSIGNAL) | int(socket.MSG_DONTWAIT)  # of enumerations the | is a Python function

Message = dict[str, Any]
Later = Callable[[], list[Message]]


class Connection:
    """Owns what ``sock`` is on (``sock`` itself is detached). ``on_message`` and ``on_bad`` (an unreadable message) run
    on "adbg-reader", ``on_gone`` once, on whichever thread found the connection gone."""

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[Message], None],
        on_bad: Callable[[ProtocolError], None],
        on_gone: Callable[[], None],
    ) -> None:
        self._own = Own(lifted(sock.detach()))
        self._sock = socket.socket(fileno=self._own.number)
        self._sock.settimeout(None)  # whatever the program's default is
        never_freed(self._sock)
        self._on_message = on_message
        self._on_bad = on_bad
        self._on_gone = on_gone
        self._queue: collections.deque[Message | bytes] = collections.deque()
        # Reentrant: a signal handler may stop the program within a send. Entered directly where hooks send: a Condition
        # is entered by Python code, and an interrupt in there would leave it locked.
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self._later: Callable[[], Later] | None = None
        self._due = self._calm = 0.0
        self._window, self._batches = 0.0, 0  # begin of the current PAUSE, and batches of ``send_later`` in it
        self._busy = False  # the writer is in a send
        self._spared = SPARED
        self._pushing = False  # ``send_now`` runs
        self._whole = self._sock.family == socket.AF_UNIX  # it takes AT_ONCE bytes whole or not at all
        self._closing = False
        self._last = False  # the next message is the last one
        self._gone = False
        self.dropped = 0  # messages dropped since the start

    def start(self) -> None:
        """Start both threads."""
        alive = weakref.ref(self)  # who knows of the threads is not to keep what they belong to

        def end() -> None:
            if connection := alive():
                connection.close()

        self._reader = own_threads.begin(self._read, "adbg-reader", end=end)
        own_threads.begin(self._write, "adbg-writer", end=end)

    @property
    def gone(self) -> bool:
        return self._gone

    def send(self, message: Message | bytes, droppable: bool = False) -> None:
        """Queue a message (dataclasses inside it are encoded on the writer thread) or one that is framed already."""
        with self._lock:
            if self._gone or self._closing:
                return
            if droppable and len(self._queue) >= LIMIT:
                self.dropped += 1
                return
            self._queue.append(message)
            self._closing = self._last
            self._wake.notify()

    def in_order(self) -> contextlib.AbstractContextManager[Any]:
        """What is taken from elsewhere and sent within it comes before what anybody takes later."""
        return self._lock

    def send_later(self, gather: Callable[[], Later], calm: float = 0.0) -> None:
        """Call ``gather`` on the writer thread, at once or within PAUSE seconds where there is much of it, and send the
        messages that what it returns then takes (within ``in_order``). One is pending at most. ``calm``:
        nobody waits for it, so many seconds are soon enough (at each wake-up the writer takes 0.1 to 0.3 ms of CPU time
        beside a training step: 4% of one of 4 ms)."""
        if self._later is None or (self._calm and not calm):
            with self._lock:
                self._calm = time.monotonic() + calm if calm else 0.0
                self._later = gather
                self._wake.notify()

    def send_now(self) -> None:
        """Send on this thread what waits, within ``in_order`` and behind ``await_writer``; never waits. For what a
        process did last before it is killed (a pool's workers): on a busy machine the writer comes too late for it, 1
        time in 10 with two processes beside. What a signal handler sends meanwhile comes behind it."""
        if self._busy or self._pushing or self._gone or self._closing or not self._whole:
            return
        self._pushing = True
        try:
            # Taken out behind the send: an interrupt has somebody hear it twice, and loses nothing.
            batch = list(self._queue)
            data = b"".join([m if isinstance(m, bytes) else _encode(m) for m in batch])
            if 0 < len(data) <= AT_ONCE:
                self._own.check()
                self._sock.send(data, _NO_WAIT)
                for _ in batch:
                    self._queue.popleft()
        except own(OSError, ValueError):
            pass  # the socket is full, or gone: the writer finds out
        finally:
            self._pushing = False
        if self._queue:
            self._wake.notify()

    def await_writer(self) -> None:
        """Wait until the writer has nothing in hand, SPARED seconds in the life of the connection at most. Sleeps: what
        interrupts it leaves no lock behind."""
        while self._busy and not self._gone and self._spared > 0:
            begin = time.monotonic()
            time.sleep(NAP)
            self._spared -= time.monotonic() - begin

    def flush(self, timeout: float) -> bool:
        """Wait until all is sent; False when it is not within ``timeout`` seconds or the client disconnected."""
        deadline = time.monotonic() + timeout
        with self._lock:
            while (self._queue or self._busy) and not self._gone:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._wake.wait(min(left, 0.05))
            return not self._gone

    def close(self) -> None:
        """End the connection after what is queued was sent. Does not wait; ``flush`` first to be sure."""
        with self._lock:
            self._closing = True
            self._wake.notify_all()

    def close_after_answer(self) -> None:
        """The next message sent is the last one."""
        self._last = True

    def hang_up(self) -> None:
        """End it now, whatever waits."""
        self.close()
        self._shut()

    def abandon(self) -> None:
        """In a forked child: close this process's copy of the socket, without a word (the parent still uses it)."""
        self._gone = True
        self._own.close()

    # ---- reader

    def _read(self) -> None:
        _untraced()
        stream = io.BufferedReader(_Incoming(self._sock, self._own), 1 << 16)
        try:
            while not self._gone:
                try:
                    message = wire.read_message(stream)
                except ProtocolError as error:
                    self._on_bad(error)
                    if getattr(error, "fatal", False):
                        self.close()  # the writer sends the answer, then ends the connection
                        while stream.read(1 << 16):
                            pass
                        break
                    continue
                if message is None:
                    break
                self._on_message(message)
        except own(OSError, ValueError):
            pass
        self._lost()

    # ---- writer

    def _write(self) -> None:
        _untraced()
        try:
            while True:
                batch = self._next_batch()
                if batch is None:
                    break
                if batch:
                    self._send(b"".join(batch))
        except own(OSError, ValueError):
            pass
        self._shut()
        self._reader.join(0.5)  # it takes in what is left: closed with unread data, the last answer would be lost
        self._lost()

    def _send(self, data: bytes) -> None:
        """MSG_NOSIGNAL: a script may have set SIGPIPE back to its default; a front end that died must not end it."""
        view = memoryview(data)
        while view:
            self._own.check()
            view = view[self._sock.send(view, socket.MSG_NOSIGNAL) :]

    def _next_batch(self) -> list[bytes] | None:
        """What is to be sent now, encoded; None at the end. Waits for it."""
        with self._lock:
            self._busy = False
            self._wake.notify_all()
            while not self._queue:
                if self._gone or self._closing:
                    return None
                now = time.monotonic()
                due = max(self._due, self._calm)
                if self._later is not None and now >= due:
                    break
                self._wake.wait(None if self._later is None else max(due - now, 0.001))
            self._busy = True
            later = self._later if time.monotonic() >= max(self._due, self._calm) else None
            if later is not None:
                self._later, self._calm = None, 0.0
                self._due = self._next_due()
        taken = later() if later is not None else list
        # Both under one lock: another thread may take and send what is older than what is taken here.
        with self._lock:
            messages = [*self._queue, *taken()]
            self._queue.clear()
        return [m if isinstance(m, bytes) else _encode(m) for m in messages]

    def _next_due(self) -> float:
        """A batch goes out now: when the next one may."""
        now = time.monotonic()
        if now - self._window >= PAUSE:
            self._window, self._batches = now, 0
        self._batches += 1
        return now if self._batches < BURST else self._window + PAUSE

    def _lost(self) -> None:
        with self._lock:
            if self._gone:
                return
            self._gone = True
            self._queue.clear()
            self._wake.notify_all()
        self._shut()
        self._own.close()
        freed(self._sock)
        self._on_gone()

    def _shut(self) -> None:
        if self._own.ours:
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)


def _untraced() -> None:
    """A program that has its threads traced or profiled (``threading.settrace``) does not mean adbg's."""
    sys.settrace(None)
    sys.setprofile(None)


class _Incoming(io.RawIOBase):
    """What comes in. Each read asks first whether the socket is still there: the program may have closed it, and its
    number may be a socket of the program's."""

    def __init__(self, sock: socket.socket, own: Own) -> None:
        super().__init__()
        self._sock = sock
        self._own = own

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._own.check()
        return self._sock.recv_into(buffer)


def _encode(message: Message) -> bytes:
    """An event that cannot be encoded is a defect; it must not cost the connection."""
    try:
        return wire.encode(wire.to_json(message))
    except own(AdbgError, ValueError, TypeError) as error:
        text = f"adbg: an event could not be sent: {error}\n"
        body = {"output": text, "category": "important"}
        return wire.encode({"seq": 0, "type": "event", "event": "output", "body": body})

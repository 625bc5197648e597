"""What a thread of the program sends by itself (``Connection.send_now``), interrupted by handlers that send and raise.
Witness: what the other end reads, whole messages in the order of their numbers, none of them lost."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from adbg.engine.agent import connection as module
from adbg.engine.agent.connection import AT_ONCE, Connection
from adbg.engine.protocol import codec as wire


class Other:
    """The other end, and the connection, whose threads are not started: nobody else sends."""

    def __init__(self) -> None:
        ours, self.sock = socket.socketpair()
        self.connection = Connection(ours, lambda m: None, lambda e: None, lambda: None)

    def now(self, *numbers: int, size: int = 10) -> None:
        with self.connection.in_order():
            for number in numbers:
                self.connection.send({"seq": number, "text": "x" * size})
            self.connection.send_now()

    def read(self, count: int) -> list[int]:
        self.sock.settimeout(10)
        stream = self.sock.makefile("rb")
        found = []
        for _ in range(count):
            message = wire.read_message(stream)
            assert message is not None
            found.append(message["seq"])
        return found

    def waits(self) -> list[Any]:
        return list(self.connection._queue)


@pytest.fixture
def other() -> Iterator[Other]:
    made = Other()
    yield made
    made.connection.abandon()
    made.sock.close()


def test_it_is_there_when_the_call_returns(other: Other) -> None:
    other.now(1, 2, 3)
    assert other.waits() == [] and other.read(3) == [1, 2, 3]


def test_what_does_not_fit_is_the_writers(other: Other) -> None:
    other.now(1, size=2 * AT_ONCE)
    assert len(other.waits()) == 1
    other.connection.start()
    assert other.read(1) == [1]


def test_a_full_socket_keeps_nobody(other: Other) -> None:
    count = 0
    while not other.waits():
        count += 1
        other.now(count, size=4000)
        assert count < 10_000
    other.connection.send({"seq": count + 1})
    other.connection.start()
    assert other.read(count + 1) == list(range(1, count + 2))


def test_what_a_handler_sends_meanwhile_comes_behind(other: Other, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the send and behind it: as messages are encoded, and in the socket's own function."""
    plain, sock = module._encode, other.connection._sock
    sent: list[int] = []

    def handler(number: int) -> None:
        if number not in sent:
            sent.append(number)
            other.now(number)

    def encode(message: Any) -> bytes:
        if message["seq"] == 2:
            handler(4)
        return plain(message)

    class Interrupted:
        def send(self, data: bytes, flags: int) -> int:
            done = sock.send(data, flags)
            handler(5)
            return done

    monkeypatch.setattr(module, "_encode", encode)
    other.connection._sock = Interrupted()  # type: ignore[assignment]
    other.now(1, 2, 3)
    other.now()
    other.connection._sock = sock
    assert sent == [4, 5] and other.read(5) == [1, 2, 3, 4, 5]


class Alarm(Exception):
    pass


@pytest.mark.parametrize("raises", [False, True])
def test_signals_break_nothing(other: Other, raises: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer's handler that sends, and may raise, some thousand times while the main thread sends."""
    # It may ring in the finalizer of what an earlier test left, which pytest would make a failure of this one.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    count, lost = 0, []
    inside = False

    def ring(*_: object) -> None:
        nonlocal count
        count += 1
        other.connection.send({"seq": 1_000_000 + count})
        if raises and inside:
            raise Alarm

    got: list[int] = []

    def read() -> None:
        stream = other.sock.makefile("rb")
        while (message := wire.read_message(stream)) is not None and message["seq"] >= 0:
            got.append(message["seq"])

    reader = threading.Thread(target=read)
    reader.start()
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
    try:
        for number in range(3000):
            try:
                inside = True
                other.now(number)
                inside = False
            except Alarm:
                inside = False
                lost.append(number)  # where it was not sent, it was interrupted before
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    other.connection.send({"seq": -1})
    other.connection.start()
    reader.join(20)
    own = [number for number in got if number < 1_000_000]
    rung = [number for number in got if number >= 1_000_000]
    assert list(dict.fromkeys(own)) == sorted(set(own)), "in order, and what was interrupted perhaps twice"
    assert set(range(3000)) - set(own) <= set(lost) and count > 10
    if not raises:  # a handler may itself be interrupted by the next one
        assert len(own) == 3000 and sorted(rung) == list(range(1_000_001, 1_000_001 + count))

"""What a network and a full system do to the way between hosts: silence, no descriptor, no thread. Nothing closes it
for good, and nothing is lost without a word to the agents."""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.failing import Failing
from support.patience import patience

from adbg.engine.launch.hosts import tunnel
from adbg.engine.launch.hosts.tunnel import Door, Passage, Secured, dial

TOKEN = "7" * 64


class Way:
    """An agent's side of a door: ``agent`` and ``session`` are the two unix ends, ``far`` and ``near`` the TCP ends."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(folder / "client.sock"))
        self._server.listen()
        self._server.settimeout(patience(20))
        self.ends: dict[bool, socket.socket] = {}
        made = Secured.__init__

        def noted(secured: Secured, context: Any, raw: socket.socket, server: bool) -> None:
            self.ends[server] = raw
            made(secured, context, raw, server)

        monkeypatch.setattr(Secured, "__init__", noted)
        self.door = Door(("127.0.0.1", 0), str(folder / "client.sock"), TOKEN)
        connect = partial(dial, ("127.0.0.1", self.door.port), self.door.fingerprint, TOKEN)
        self.path = folder / "far.sock"
        self.passage = Passage(self.path, connect)

    def open(self) -> tuple[socket.socket, socket.socket]:
        """(the agent's end, the session's)."""
        agent = socket.socket(socket.AF_UNIX)
        agent.settimeout(patience(20))
        agent.connect(str(self.path))
        agent.sendall(b"hello")
        while True:  # those who said nothing and went were carried too
            session, _ = self._server.accept()
            session.settimeout(patience(20))
            if said := session.recv(5):
                assert said == b"hello"
                return agent, session
            session.close()

    def close(self) -> None:
        self.passage.close()
        self.door.close()
        self._server.close()


@pytest.fixture
def way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    made = Way(tmp_path, monkeypatch)
    yield made
    made.close()


def deafen(sock: socket.socket) -> None:
    """What comes in is thrown away before TCP sees it: nothing is acknowledged, as where a cable is pulled."""
    nothing = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF: return 0
    program = struct.pack("HP", 1, ctypes.addressof(nothing))
    sock.setsockopt(socket.SOL_SOCKET, 26, program)  # SO_ATTACH_FILTER


def test_a_lost_network_is_noticed_within_a_minute(way: Way) -> None:
    agent, session = way.open()
    for raw in way.ends.values():
        assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        found = [
            raw.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        ]
        assert found == [30, 10, 3, 60000]
    agent.close()
    session.close()


@pytest.mark.parametrize("sending", [False, True])
def test_a_lost_network_ends_both_ends(way: Way, monkeypatch: pytest.MonkeyPatch, sending: bool) -> None:
    """Also where nothing is said, and where what is said is not acknowledged."""
    monkeypatch.setattr(tunnel, "QUIET", (1, 1, 1))
    agent, session = way.open()
    for raw in way.ends.values():
        deafen(raw)
    for end in (agent, session) if sending else ():
        end.sendall(b"x")
    for end in (agent, session):
        assert end.recv(1) == b"", "its end: a detach"
        end.close()


@pytest.mark.parametrize("side", ["door", "passage"])
def test_a_failed_accept_closes_nothing(way: Way, monkeypatch: pytest.MonkeyPatch, side: str) -> None:
    place: Any = way.door if side == "door" else way.passage
    failing = Failing(place._sock)
    monkeypatch.setattr(place, "_sock", failing)
    failing.use_up(("127.0.0.1", way.door.port) if side == "door" else str(way.path))
    agent, session = way.open()
    agent.sendall(b"through")
    assert session.recv(7) == b"through"
    agent.close()
    session.close()


def test_no_thread_for_a_newcomer_closes_nothing(
    way: Way, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start = threading.Thread.start
    refused = []

    def limited(thread: threading.Thread) -> None:
        if thread.name == "adbg-tunnel" and len(refused) < 2:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", way.door.port)) as sock:
            sock.settimeout(patience(20))
            assert sock.recv(1) == b"", "hung up on"
    agent, session = way.open()
    agent.close()
    session.close()
    assert len(refused) == 2 and way.door._strangers == []


def test_no_descriptor_for_the_inner_socket(
    way: Way, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Who came is hung up on and forgotten; nothing is written to stderr."""
    made = socket.socket

    def none_left(family: int = -1, *rest: Any, **more: Any) -> socket.socket:
        if family == socket.AF_UNIX and threading.current_thread().name == "adbg-tunnel":
            raise OSError(errno.EMFILE, "Too many open files")
        return made(family, *rest, **more)

    monkeypatch.setattr(tunnel.socket, "socket", none_left)
    secured = dial(("127.0.0.1", way.door.port), way.door.fingerprint, TOKEN)
    secured.raw.settimeout(patience(20))
    with secured.raw:
        while secured.raw.recv(1 << 16):
            pass
    end = time.monotonic() + patience(20)
    while way.door._strangers:
        assert time.monotonic() < end, "it is still taken for a stranger"
        time.sleep(0.01)
    assert "Traceback" not in capfd.readouterr().err

"""A front end of few lines: listens as ``adbg run`` does, speaks the wire, keeps every event. Plain JSON."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from adbg.engine.protocol import codec as wire
from adbg.engine.protocol import rendezvous
from support.patience import patience

LIMIT = 30.0  # seconds


class Refused(Exception):
    """An error response; ``error`` is its body's error object."""

    def __init__(self, message: dict[str, Any]) -> None:
        super().__init__(message["message"])
        self.error = message["body"]["error"]


class FrontEnd:
    """The listening side. ``config`` is what a debuggee needs."""

    def __init__(self, run_dir: str = "", stacks: bool = True) -> None:
        self.folder = rendezvous.private_dir()
        path = str(self.folder / "s")
        self.config = rendezvous.SessionConfig(path, rendezvous.new_token(), run_dir, stacks)
        rendezvous.write_config(self.folder / "session.json", self.config)
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.bind(path)
        self._sock.listen(8)
        self._sock.settimeout(patience(LIMIT))
        self.peers: list[Peer] = []

    def accept(self) -> Peer:
        """The next agent that dials. One that comes late looks first whether somebody is here, without a word."""
        while True:
            sock = self._sock.accept()[0]
            if sock.recv(1, socket.MSG_PEEK):
                break
            sock.close()
        peer = Peer(sock, self.config.token)
        self.peers.append(peer)
        return peer

    def __enter__(self) -> FrontEnd:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for peer in self.peers:
            peer.close()
        self._sock.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Peer:
    """The connection to one agent."""

    def __init__(self, sock: socket.socket, token: str) -> None:
        self.sock = sock
        self.sock.settimeout(patience(LIMIT))
        self.token = token
        self.events: list[dict[str, Any]] = []
        self.responses: dict[int, dict[str, Any]] = {}
        self._file = sock.makefile("rb")
        self._seq = 0
        self._seen = 0  # stops taken by ``stopped``

    def send(self, command: str, **arguments: Any) -> int:
        self._seq += 1
        self.sock.sendall(
            wire.encode({"seq": self._seq, "type": "request", "command": command, "arguments": arguments})
        )
        return self._seq

    def read(self) -> dict[str, Any] | None:
        """Take in one message; None at the end of the connection."""
        try:
            message = wire.read_message(self._file)
        except ConnectionResetError:
            return None
        if message is not None and message["type"] == "event":
            self.events.append(message)
        elif message is not None:
            self.responses[message["request_seq"]] = message
        return message

    def until(self, done: Callable[[], Any], what: str) -> Any:
        """Read messages until ``done()`` is true."""
        deadline = time.monotonic() + patience(LIMIT)
        while not (value := done()):
            if self.read() is None:
                raise ConnectionError(f"the connection ended before {what}")
            assert time.monotonic() < deadline, f"{what} did not come in time"
        return value

    def drain(self) -> None:
        """Read to the end of the connection."""
        while self.read() is not None:
            pass

    def answer(self, seq: int) -> dict[str, Any]:
        """The body of the response to request ``seq``."""
        message = self.until(lambda: self.responses.get(seq), f"answer {seq}")
        if not message["success"]:
            raise Refused(message)
        body: dict[str, Any] = message["body"]
        return body

    def request(self, command: str, **arguments: Any) -> dict[str, Any]:
        return self.answer(self.send(command, **arguments))

    def event(self, name: str, number: int = 1) -> dict[str, Any]:
        """The body of the ``number``-th event of that name."""

        def found() -> Any:
            bodies = [e["body"] for e in self.events if e["event"] == name]
            return len(bodies) >= number and bodies[number - 1]

        body: dict[str, Any] = self.until(found, f"event {name}")
        return body

    def bodies(self, name: str) -> list[dict[str, Any]]:
        """Bodies of the events of that name read so far."""
        return [e["body"] for e in self.events if e["event"] == name]

    def begin(self, *specs: str, entry: bool = False, filters: list[str] | None = None) -> None:
        """initialize, breakpoints ``specs``, configurationDone."""
        self.event("adbg/hello")
        self.request("initialize", token=self.token, adbg=True)
        self.set(*specs)
        if filters is not None:
            self.request("setExceptionBreakpoints", filters=filters)
        self.request("configurationDone", stop_on_entry=entry)

    def set(self, *specs: str, **facts: Any) -> list[dict[str, Any]]:
        """Replace the breakpoints; ids from 1."""
        wanted = [{"name": spec, "id": id, **facts} for id, spec in enumerate(specs, 1)]
        states: list[dict[str, Any]] = self.request("setFunctionBreakpoints", breakpoints=wanted)["breakpoints"]
        return states

    def stopped(self) -> dict[str, Any]:
        """The next stop, in full."""
        self._seen += 1
        stop: dict[str, Any] = self.event("stopped", self._seen)["adbg"]
        return stop

    def go(self, command: str = "continue", **arguments: Any) -> dict[str, Any]:
        """Go on, to the next stop."""
        self.request(command, **arguments)
        return self.stopped()

    def value(self, expression: str) -> Any:
        return self.request("evaluate", expression=expression)["value"]

    def close(self) -> None:
        """As a process that is killed: no word, both directions at once."""
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._file.close()
        self.sock.close()


def where(stop: dict[str, Any]) -> tuple[str, str, int, int]:
    """(reason, node's unique name or "", index, depth) of a stop."""
    return stop["reason"], stop["node"]["unique_name"] if stop["node"] else "", stop["index"], stop["depth"]

"""A client that can do wrong: raw bytes over the socket of an agent that listens, and its answers as plain JSON."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

from adbg.engine.protocol.codec import encode, read_message
from adbg.engine.protocol.rendezvous import listen_dir, read_config
from support.patience import patience

LIMIT = 30.0  # seconds


class BareClient:
    """Connected to the agent of process ``pid``, not initialised."""

    def __init__(self, pid: int) -> None:
        config = read_config(listen_dir(pid) / "session.json")
        self.token = config.token
        self.path = Path(config.socket)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(patience(LIMIT))
        self.socket.connect(config.socket)
        self._file = self.socket.makefile("rb")
        self._seq = 0
        self.events: list[dict[str, Any]] = []

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def post(self, command: Any, arguments: Any = None) -> int:
        """Send a request, do not wait; its seq."""
        self._seq += 1
        message = {"seq": self._seq, "type": "request", "command": command, "arguments": arguments or {}}
        self.send(encode(message))
        return self._seq

    def next_response(self) -> dict[str, Any]:
        """The next response; events on the way are kept. Fails when the agent hangs up."""
        deadline = time.monotonic() + patience(LIMIT)
        while time.monotonic() < deadline:
            message = read_message(self._file)
            assert message is not None, "the agent hung up"
            if message["type"] == "response":
                return message
            self.events.append(message)
        raise AssertionError("no response")

    def request(self, command: Any, arguments: Any = None) -> dict[str, Any]:
        """Send a request and wait for its own response."""
        seq = self.post(command, arguments)
        response = self.next_response()
        assert response["request_seq"] == seq, response
        return response

    def initialize(self) -> dict[str, Any]:
        return self.request("initialize", {"clientID": "test", "token": self.token, "adbg": True})

    def wait_event(self, name: str) -> dict[str, Any]:
        """The next event of this name, also one that came already."""
        while True:
            for position, message in enumerate(self.events):
                if message["event"] == name:
                    return self.events.pop(position)
            message = read_message(self._file)
            assert message is not None, f"the agent hung up before {name}"
            assert message["type"] == "event", json.dumps(message)
            self.events.append(message)

    def hung_up(self) -> bool:
        """True when the agent closed the connection (what it sent before is thrown away)."""
        try:
            while self._file.read(1):
                pass
        except OSError:
            return False
        return True

    def close(self) -> None:
        self._file.close()
        self.socket.close()

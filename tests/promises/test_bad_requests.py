"""The promise "no harm", the other way: whatever a client sends, it gets an error answer and the program goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.bare_client import BareClient
from support.frameworks import only_here
from support.program import debuggee, digest_of

from adbg.engine.protocol.codec import encode
from adbg.engine.protocol.messages import MAX_MESSAGE

pytestmark = only_here("torch", "the wire is the same for every framework")


class Listening:
    """listening.py, which trains until ``finish`` is called; one process serves all tests of this module."""

    def __init__(self, folder: Path) -> None:
        self._finish = folder / "finish"
        command = [sys.executable, str(debuggee("listening")), str(self._finish)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("listening")

    def finish(self) -> tuple[str, str]:
        self._finish.touch()
        return self.process.communicate(timeout=60)


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Listening]:
    program = Listening(tmp_path)
    yield program
    program.process.kill()
    program.process.communicate()


@pytest.fixture
def client(listening: Listening) -> Iterator[BareClient]:
    connected = BareClient(listening.process.pid)
    assert connected.initialize()["success"] is True
    yield connected
    connected.close()


def check_error(answer: dict[str, Any]) -> None:
    """An answer that says no, with one line of reason and no traceback."""
    assert answer["type"] == "response"
    assert answer["success"] is False, answer
    assert answer["message"].strip(), answer
    assert "Traceback" not in json.dumps(answer), answer


def framed(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def finish_unharmed(listening: Listening) -> None:
    output, errors = listening.finish()
    assert listening.process.returncode == 0, errors
    assert len(digest_of(output)) == 64
    assert "Traceback" not in errors, errors


def test_malformed(listening: Listening, client: BareClient) -> None:
    """Broken JSON, JSON of the wrong shape, wrong types: each is answered, and the next good request works."""
    for body in (
        b"{",
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b'"text"',
        b"{}",
        b'{"seq":1}',
        b'{"type":"request","command":"threads"}',
        b'{"seq":"x","type":"request","command":"threads"}',
        b'{"seq":1000,"type":"request"}',
        b'{"seq":1000,"type":"request","command":7}',
        b'{"seq":1000,"type":"request","command":"threads","arguments":[]}',
        b'{"seq":1000,"type":"request","command":"evaluate","arguments":{"expression":5}}',
        b'{"seq":1000,"type":"request","command":"evaluate"}',
        b'{"seq":1000,"type":"request","command":"adbg/graph","arguments":{"start":"first"}}',
        b'{"seq":1000,"type":"request","command":"setFunctionBreakpoints","arguments":{"breakpoints":[{"nom":"Mul"}]}}',
        b'{"seq":1000,"type":"nonsense","command":"threads"}',
        b"[" * 100_000,
    ):
        client.send(framed(body))
        check_error(client.next_response())
    assert client.request("threads")["success"] is True
    finish_unharmed(listening)


@pytest.mark.parametrize(
    "header",
    [b"Content-Length: -5\r\n\r\n", b"Content-Length: many\r\n\r\n", b"Length: 5\r\n\r\n12345", b"x" * 70_000],
    ids=["negative", "no number", "none", "endless"],
)
def test_bad_header(listening: Listening, client: BareClient, header: bytes) -> None:
    """After a header that cannot be read nothing can be: an error answer and the end of this connection, of no more."""
    client.send(header)
    check_error(client.next_response())
    assert client.hung_up()
    again = BareClient(listening.process.pid)
    assert again.initialize()["success"] is True
    again.close()
    finish_unharmed(listening)


def test_too_large(listening: Listening, client: BareClient) -> None:
    """A message over the limit is refused, its bytes are skipped, and the next request works."""
    size = MAX_MESSAGE + 1
    client.send(b"Content-Length: %d\r\n\r\n" % size)
    sent = 0
    while sent < size:
        piece = min(1 << 20, size - sent)
        client.send(b"x" * piece)
        sent += piece
    answer = client.next_response()
    check_error(answer)
    assert str(MAX_MESSAGE) in answer["message"]
    assert client.request("threads")["success"] is True
    finish_unharmed(listening)


def test_unknown(listening: Listening, client: BareClient) -> None:
    for command in ("launchMissiles", "adbg/nothing", "", "initialise", "__class__"):
        answer = client.request(command)
        check_error(answer)
        if command:
            assert command in answer["message"]
    assert client.request("threads")["success"] is True
    finish_unharmed(listening)


def test_out_of_order(listening: Listening, client: BareClient) -> None:
    """Requests that need a stopped program while it runs, a second initialize, a continue that continues nothing."""
    client.request("configurationDone")
    for command, arguments in (
        ("evaluate", {"expression": "grad_outputs"}),
        ("setExpression", {"expression": "grad_outputs[0]", "value": "1"}),
        ("continue", {}),
        ("next", {}),
        ("stepIn", {}),
        ("stepOut", {}),
        ("adbg/after", {}),
        ("scopes", {"frameId": 1}),
        ("variables", {"variablesReference": 99}),
        ("adbg/tensor", {"expression": "grad_outputs[0]"}),
        ("adbg/until", {"spec": "]["}),
    ):
        answer = client.request(command, arguments)
        check_error(answer)
        assert "running" in answer["message"] or "stopped" in answer["message"] or command == "adbg/until", answer
    assert client.request("threads")["success"] is True
    finish_unharmed(listening)


def test_before_initialize(listening: Listening) -> None:
    """Nothing is done for a stranger: not even a disconnect or a SIGTERM."""
    for command in ("threads", "setFunctionBreakpoints", "disconnect", "terminate", "pause", "configurationDone"):
        client = BareClient(listening.process.pid)
        check_error(client.request(command, {"breakpoints": []} if command.startswith("set") else {}))
        client.close()
    assert listening.process.poll() is None
    finish_unharmed(listening)


def test_client_hangs_up_in_the_middle(listening: Listening, client: BareClient) -> None:
    """Half a message behind 200 requests whose answers nobody reads: the program is free again, and so is the door."""
    client.request("configurationDone")
    client.request("setFunctionBreakpoints", {"breakpoints": [{"name": "SinBackward0", "id": 1}]})
    client.wait_event("stopped")
    for _ in range(200):
        client.post("adbg/graph", {"start": 1, "count": 2000})
    whole = encode({"seq": 5000, "type": "request", "command": "threads", "arguments": {}})
    client.send(whole[: len(whole) // 2])
    client.close()
    again = BareClient(listening.process.pid)
    assert again.initialize()["success"] is True
    again.request("configurationDone")
    again.request("pause")
    again.wait_event("stopped")
    assert again.request("evaluate", {"expression": "1 + 1"})["body"]["value"] == 2
    again.close()
    finish_unharmed(listening)

"""The agent's manners: who may speak, what a bad request gets, what becomes of the program when nobody speaks."""

from __future__ import annotations

import collections
import io
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
from fake_backend import FakeBackend, FakeDebuggee, FakeGraph
from support.dialled import Dialled
from support.front_end import FrontEnd, Peer, Refused

from adbg.engine.agent import agent as agents
from adbg.engine.agent import listener
from adbg.engine.agent.connection import LIMIT, Connection, Message
from adbg.engine.agent.requests import Requests
from adbg.engine.inspect.dispatch import Answers
from adbg.engine.protocol import codec as wire
from adbg.engine.protocol import messages as protocol
from adbg.engine.protocol import rendezvous


@pytest.fixture
def front() -> Iterator[FrontEnd]:
    with FrontEnd() as front:
        yield front


def chain(backend: FakeBackend) -> Any:
    return backend.backward(FakeGraph.chain(3, 2.0))["w"].tolist()


def at_a_stop(front: FrontEnd) -> tuple[Peer, FakeDebuggee]:
    debuggee = FakeDebuggee(front.config, chain)
    peer = front.accept()
    peer.begin("#1")
    peer.stopped()
    return peer, debuggee


# ------------------------------------------------------------------ who may speak


def test_the_first_request_must_be_initialize(front: FrontEnd) -> None:
    debuggee = FakeDebuggee(front.config, chain)
    peer = front.accept()
    with pytest.raises(Refused, match="'threads' before 'initialize'"):
        peer.request("threads")
    peer.drain()  # the connection is closed
    assert debuggee.join() == [4.0] * 4  # and the program runs on


def test_a_wrong_token_ends_the_connection(front: FrontEnd) -> None:
    debuggee = FakeDebuggee(front.config, chain)
    peer = front.accept()
    with pytest.raises(Refused, match="wrong token"):
        peer.request("initialize", token=front.config.token[:-1] + "g")
    peer.drain()
    assert debuggee.join() == [4.0] * 4
    assert not debuggee.agent.session.attached


def test_hello_proves_who_dialled(front: FrontEnd) -> None:
    FakeDebuggee(front.config, chain)
    hello = front.accept().event("adbg/hello")
    assert hello["token"] == front.config.token
    assert hello["process"]["pid"] == os.getpid() and hello["process"]["protocol"] == protocol.PROTOCOL_VERSION


def test_adbg_events_go_only_to_a_client_that_knows_them(front: FrontEnd) -> None:
    debuggee = FakeDebuggee(front.config, chain)
    peer = front.accept()
    peer.request("initialize", token=front.config.token)
    peer.set("#4")
    peer.request("configurationDone")
    peer.stopped()
    peer.request("continue")
    debuggee.join()
    peer.drain()
    assert {e["event"] for e in peer.events} - {"adbg/hello"} <= {"initialized", "stopped", "breakpoint", "output"}


# ------------------------------------------------------------------ requests


def test_every_request_of_the_protocol_has_an_answer(front: FrontEnd) -> None:
    _, debuggee = at_a_stop(front)
    assert set(protocol.REQUESTS) <= Requests(debuggee.agent).commands()
    assert Answers.commands() <= set(protocol.REQUESTS)


BAD = {
    "no json": b"Content-Length: 4\r\n\r\n{{{{",
    "no object": b"Content-Length: 2\r\n\r\n[]",
    "no type": wire.encode({"seq": 1, "command": "threads"}),
    "no seq": wire.encode({"type": "request", "command": "threads"}),
    "seq no number": wire.encode({"seq": "x", "type": "request", "command": "threads"}),
    "command no text": wire.encode({"seq": 1, "type": "request", "command": ["threads"]}),
    "unknown": wire.encode({"seq": 1, "type": "request", "command": "adbg/nope"}),
    "arguments no object": wire.encode({"seq": 1, "type": "request", "command": "evaluate", "arguments": 3}),
    "field missing": wire.encode({"seq": 1, "type": "request", "command": "evaluate", "arguments": {}}),
    "field of wrong type": wire.encode(
        {"seq": 1, "type": "request", "command": "adbg/graph", "arguments": {"start": "x"}}
    ),
    "too large": b"Content-Length: %d\r\n\r\n%s" % (protocol.MAX_MESSAGE + 1, b" " * (protocol.MAX_MESSAGE + 1)),
    "initialize twice": wire.encode({"seq": 1, "type": "request", "command": "initialize", "arguments": {}}),
    "configured twice": wire.encode({"seq": 1, "type": "request", "command": "configurationDone"}),
    "pause at a stop": wire.encode({"seq": 1, "type": "request", "command": "pause"}),
    "bad dump": wire.encode({"seq": 1, "type": "request", "command": "adbg/dump", "arguments": {"what": "?"}}),
    "deep json": b"Content-Length: 200000\r\n\r\n" + b"[" * 200_000,
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_gets_an_error_and_nothing_else_happens(front: FrontEnd, name: str) -> None:
    peer, debuggee = at_a_stop(front)
    before = len(peer.events)
    peer.sock.sendall(BAD[name])
    message = peer.read()
    assert message is not None and message["type"] == "response" and message["success"] is False
    assert message["message"] and set(message["body"]["error"]) == {"id", "format", "hint"}
    assert peer.value("1 + 1") == 2  # still there, still stopped
    assert len(peer.events) == before
    peer.request("continue")
    assert debuggee.join() == [4.0] * 4


def test_a_header_that_cannot_be_read_ends_the_connection_and_frees_the_program(front: FrontEnd) -> None:
    peer, debuggee = at_a_stop(front)
    peer.sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
    message = peer.read()
    assert message is not None and not message["success"]
    peer.drain()
    assert debuggee.join() == [4.0] * 4


def test_what_needs_a_stop_is_refused_while_the_program_runs(front: FrontEnd) -> None:
    ended = threading.Event()
    debuggee = FakeDebuggee(front.config, lambda b: ended.wait(20))
    peer = front.accept()
    peer.begin()
    for command, arguments in (("evaluate", {"expression": "1"}), ("continue", {}), ("adbg/node", {}), ("next", {})):
        with pytest.raises(Refused, match="running") as refused:
            peer.request(command, **arguments)
        assert refused.value.error["id"] == 2
    names = [t["name"] for t in peer.request("threads")["threads"]]
    assert "MainThread" in names and "fake-program" in names and "adbg-reader" not in names
    frames = peer.request("stackTrace")["stackFrames"]  # of the main thread: this very test
    assert "test_what_needs_a_stop_is_refused_while_the_program_runs" in [frame["name"] for frame in frames]
    assert peer.request("adbg/info", what="breakpoints")["rows"] == []
    assert peer.request("adbg/vlog", levels="")["levels"]["*"] == 0
    assert peer.request("adbg/record")["recording"] is False
    ended.set()
    debuggee.join()


def test_requests_sent_at_once_are_all_answered_in_order(front: FrontEnd) -> None:
    ended = threading.Event()
    debuggee = FakeDebuggee(front.config, lambda b: chain(b) and ended.wait(20))
    peer = front.accept()
    peer.begin("#1")
    peer.stopped()
    numbers = [peer.send("evaluate", expression=f"{i} + 1") for i in range(200)]
    last = peer.send("continue")
    late = peer.send("evaluate", expression="1")
    assert [peer.answer(n)["value"] for n in numbers] == list(range(1, 201))
    peer.answer(last)
    with pytest.raises(Refused, match="running"):
        peer.answer(late)
    ended.set()
    debuggee.join()


def test_an_expression_that_exits_or_fails_is_only_an_error(front: FrontEnd) -> None:
    peer, debuggee = at_a_stop(front)
    for expression in ("nope", "exit(3)", "1/0", "(", "[0][1]"):
        with pytest.raises(Refused):
            peer.request("evaluate", expression=expression)
    peer.request("continue")
    assert debuggee.join() == [4.0] * 4


def test_disconnect_disarms_everything_and_lets_the_program_go(front: FrontEnd) -> None:
    peer, debuggee = at_a_stop(front)
    peer.request("disconnect")
    peer.drain()
    assert debuggee.join() == [4.0] * 4
    assert not debuggee.backend.armed and debuggee.backend.sink is None


def test_an_expression_without_end_does_not_hold_the_program_when_its_client_is_gone(front: FrontEnd) -> None:
    peer, debuggee = at_a_stop(front)
    peer.send("evaluate", expression="while True:\n  try: pass\n  except Exception: pass", context="statement")
    time.sleep(0.2)  # it is running
    peer.close()
    assert debuggee.join() == [4.0] * 4


# ------------------------------------------------------------------ nobody speaks


def test_without_a_front_end_the_program_runs_undebugged_and_says_so(tmp_path: Path) -> None:
    said = io.StringIO()
    with redirect_stderr(said):
        found = agents.start(rendezvous.SessionConfig(str(tmp_path / "none"), "t"))
    assert found is None
    assert said.getvalue().count("\n") == 1 and "running undebugged" in said.getvalue()


def test_a_front_end_that_never_speaks_does_not_hold_the_program(tmp_path: Path) -> None:
    with Dialled(tmp_path, "print('ran')", patience=0.3) as run:
        run.peer.event("adbg/hello")
        status, out, err = run.end()
    assert (status, out) == (0, "ran\n") and "said nothing" in err


def test_a_client_that_does_not_read_holds_nothing_up(front: FrontEnd) -> None:
    def script(backend: FakeBackend) -> float:
        begun = time.monotonic()
        for _ in range(3000):
            backend.backward(FakeGraph.chain(3))
        return time.monotonic() - begun

    debuggee = FakeDebuggee(front.config, script)
    peer = front.accept()
    peer.begin("* after if False")
    assert debuggee.join() < 15


def test_events_are_dropped_and_counted_but_answers_and_stops_never() -> None:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    connection = Connection(ours, lambda m: None, lambda e: None, lambda: None)
    connection.start()
    for i in range(3 * LIMIT):
        connection.send({"seq": i, "text": "x" * 100}, droppable=True)
    connection.send({"seq": -1})
    assert connection.dropped > 0
    connection.close()
    stream = theirs.makefile("rb")
    got = []
    while (message := wire.read_message(stream)) is not None:
        got.append(message["seq"])
    assert got[-1] == -1 and len(got) == 3 * LIMIT + 1 - connection.dropped
    theirs.close()


def test_what_a_stop_sends_comes_before_what_the_writer_takes_behind_it() -> None:
    """The writer has begun a batch and does not run for a while: the program sends what waits, then a message, and goes
    on."""
    ours, theirs = socket.socketpair()
    connection = Connection(ours, lambda m: None, lambda e: None, lambda: None)
    waiting: collections.deque[int] = collections.deque([1, 2])
    begun, over = threading.Event(), threading.Event()

    def take() -> list[Message]:
        taken = list(waiting)
        waiting.clear()
        return [{"seq": number} for number in taken]

    def gathered() -> Callable[[], list[Message]]:
        begun.set()
        assert over.wait(10)
        return take

    connection.start()
    connection.send_later(gathered)
    assert begun.wait(10)
    with connection.in_order():
        for message in take():
            connection.send(message)
    connection.send({"seq": 3})
    waiting.append(4)
    over.set()
    stream = theirs.makefile("rb")
    got = []
    for _ in range(4):
        message = wire.read_message(stream)
        assert message is not None
        got.append(message["seq"])
    connection.close()
    theirs.close()
    assert got == [1, 2, 3, 4]


# ------------------------------------------------------------------ breakpoint() and listen()


def run_python(text: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, env={**os.environ, **env}
    )


def test_breakpoint_outside_adbg_does_nothing_and_says_so_once() -> None:
    done = run_python("import adbg\nfor _ in range(3): adbg.breakpoint()\nprint('on')")
    assert (done.returncode, done.stdout) == (0, "on\n")
    assert done.stderr.count("\n") == 1 and "does nothing" in done.stderr


def test_import_adbg_brings_in_no_engine_and_nothing_of_others() -> None:
    done = run_python("import sys; before = set(sys.modules); import adbg; print(*sorted(set(sys.modules) - before))")
    assert done.stdout.split() == ["adbg"]


def test_pythonbreakpoint_0_is_honoured_under_the_agent(tmp_path: Path) -> None:
    with Dialled(tmp_path, "breakpoint()\nprint('on')", env={**os.environ, "PYTHONBREAKPOINT": "0"}) as run:
        run.peer.begin()
        assert run.end() == (0, "on\n", "")


LISTENS = """
import sys, adbg, time
adbg.listen(); adbg.listen()
print("up", flush=True)
sys.stdin.readline()
print("done")
"""


def test_listen_opens_a_private_door_serves_one_after_another_and_cleans_up() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", LISTENS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    folder = rendezvous.listen_dir(process.pid)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (folder.parent, folder, *folder.iterdir())}
    assert modes.pop(folder.parent.name) == modes.pop(folder.name) == 0o700
    assert {"agent.sock", "session.json"} <= set(modes) and set(modes.values()) == {0o600}
    config = rendezvous.read_config(folder / "session.json")
    for _ in range(2):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(config.socket)
        peer = Peer(sock, config.token)
        body = peer.request("initialize", token=config.token, adbg=True)
        assert body["adbg"]["pid"] == process.pid
        assert peer.request("threads")["threads"]
        peer.close()
    out, err = process.communicate("\n", timeout=30)
    assert (process.returncode, out, err) == (0, "done\n", "")
    assert not folder.exists()


SHORT_OF_DESCRIPTORS = """
import os, resource, adbg
adbg.listen()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
free = os.dup(0); os.close(free)
resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
print("short", flush=True); input()
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print("well", flush=True); input()
"""


def test_listen_goes_on_after_a_shortage_of_descriptors() -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", SHORT_OF_DESCRIPTORS], **pipes)  # type: ignore[call-overload]
    assert process.stdout.readline() == "short\n"
    config = rendezvous.read_config(rendezvous.listen_dir(process.pid) / "session.json")
    with socket.socket(socket.AF_UNIX) as early, socket.socket(socket.AF_UNIX) as sock:
        early.connect(config.socket)
        time.sleep(0.3)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "well\n"
        sock.connect(config.socket)
        peer = Peer(sock, config.token)
        assert peer.request("initialize", token=config.token, adbg=True)["adbg"]["pid"] == process.pid
        peer.close()
    out, err = process.communicate("\n", timeout=30)
    assert (process.returncode, out, err) == (0, "", "")


def test_folders_of_dead_processes_are_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for name in (str(dead.pid), str(os.getpid()), "notes"):
        (tmp_path / name).mkdir()
    listener.remove_stale(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([str(os.getpid()), "notes"])

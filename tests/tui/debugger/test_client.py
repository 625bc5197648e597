"""The client and its listener against an agent that speaks over a real socket."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.failing import Failing
from support.patience import patience
from support.scripted_agent import ScriptedAgent

from adbg.engine import errors
from adbg.engine.errors import AdbgError, CommandError, DebuggeeGone, NotStopped
from adbg.engine.protocol import codec as wire
from adbg.engine.protocol import messages as protocol
from adbg.engine.protocol.messages import Hello, ProcessInfo
from adbg.engine.protocol.rendezvous import SessionConfig, listen_dir, write_config
from adbg.tui.debugger.client import Client, Listener, connect, initialize


class Session:
    """A listener, one agent, its client."""

    def __init__(self) -> None:
        self.joined: list[tuple[Client, Hello]] = []
        self.there = threading.Event()
        self.events: list[object] = []
        self.reasons: list[str] = []
        self.lost = threading.Event()
        self.listener = Listener(self.welcome)
        self.agent = ScriptedAgent(self.listener.config.socket, self.listener.token)
        assert self.there.wait(5)
        self.client = self.joined[0][0]

    def welcome(self, client: Client, hello: Hello) -> None:
        self.joined.append((client, hello))
        client.start(self.events.append, self.on_lost)
        self.there.set()

    def on_lost(self, reason: str) -> None:
        self.reasons.append(reason)
        self.lost.set()


@pytest.fixture
def session() -> Iterator[Session]:
    made = Session()
    yield made
    made.agent.gone()
    made.client.close()
    made.listener.close()


def wait_for(condition: object, seconds: float = 5) -> None:
    limit = time.monotonic() + patience(seconds)
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.005)


def test_the_socket_is_private_and_goes_away(session: Session) -> None:
    path = session.listener.socket_path
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(path.parent).st_mode) == 0o700
    assert len(session.listener.token) == 64
    session.listener.close()
    assert not path.parent.exists()


def test_hello_tells_who_the_agent_is(session: Session) -> None:
    hello = session.joined[0][1]
    assert (hello.process.pid, hello.process.argv) == (1000, ["train.py"])
    body = initialize(session.client, session.listener.token, None)
    assert body.adbg is not None and body.adbg.rank == 0
    sent = session.agent.requests[0]
    assert isinstance(sent, protocol.Initialize) and sent.adbg and sent.token == session.listener.token


@pytest.mark.parametrize(
    "first",
    [
        {
            "type": "event",
            "event": "adbg/hello",
            "body": wire.to_json(Hello("0" * 64, ProcessInfo(1, 0, [], "", "", ""))),
        },
        {"type": "event", "event": "adbg/hello", "body": {"token": 3}},
        {"type": "request", "command": "initialize", "seq": 1, "arguments": {}},
    ],
    ids=["wrong token", "malformed", "no hello"],
)
def test_a_stranger_is_hung_up_on(session: Session, first: dict[str, object]) -> None:
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stranger.connect(str(session.listener.socket_path))
    stranger.sendall(wire.encode(first))
    stranger.settimeout(5)
    assert stranger.recv(1) == b""
    assert len(session.joined) == 1
    stranger.close()


def test_a_failed_accept_does_not_end_it(session: Session) -> None:
    listener = session.listener
    failing = listener._sock = Failing(listener._sock)  # type: ignore[assignment]
    failing.use_up(str(listener.socket_path))
    agent = ScriptedAgent(listener.config.socket, listener.token)
    wait_for(lambda: len(session.joined) == 2)
    agent.gone()


def test_answers_find_their_requests_when_many_threads_ask(session: Session) -> None:
    session.agent.values.update({f"v{i}": i for i in range(40)})
    answers: dict[int, object] = {}

    def ask(number: int) -> None:
        answers[number] = session.client.request(protocol.Evaluate(f"v{number}")).value

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert answers == {i: i for i in range(40)}


def test_a_refusal_comes_as_the_error_it_is(session: Session) -> None:
    with pytest.raises(CommandError, match="name 'nope' is not defined"):
        session.client.request(protocol.Evaluate("nope"))
    with pytest.raises(NotStopped):
        session.client.request(protocol.Continue())


def test_every_kind_of_error_has_a_number_of_its_own() -> None:
    kinds = {value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, AdbgError)}
    assert len({kind.ID for kind in kinds}) == len(kinds) == 9
    assert all(errors.error_of_id(kind.ID) is kind for kind in kinds)
    assert errors.error_of_id(99) is errors.error_of_id(None) is AdbgError


def test_a_lost_connection_fails_what_waits(session: Session) -> None:
    session.agent.silent.add("evaluate")
    future = session.client.send(protocol.Evaluate("1 + 1"))
    session.agent.gone()
    with pytest.raises(DebuggeeGone):
        future.result(5)
    assert session.lost.wait(5) and len(session.reasons) == 1
    with pytest.raises(DebuggeeGone):
        session.client.request(protocol.Threads())


def test_no_answer_in_time_is_an_error_and_the_next_request_works(session: Session) -> None:
    session.agent.silent.add("evaluate")
    with pytest.raises(AdbgError, match=r"no answer to 'evaluate' within 0\.05 s"):
        session.client.request(protocol.Evaluate("1 + 1"), 0.05)
    session.agent.silent.clear()
    assert session.client.request(protocol.Evaluate("1 + 1")).value == 2


def test_events_arrive_in_order_and_unknown_ones_are_passed_over(session: Session) -> None:
    session.agent.event(protocol.Output("one"))
    session.agent.put({"type": "event", "event": "adbg/tomorrow", "body": {"x": 1}})
    session.agent.put({"type": "event", "event": "stopped", "body": {"reason": 5}})
    session.agent.event(protocol.Output("two"))
    wait_for(lambda: len(session.events) == 2)
    assert session.events == [protocol.Output("one"), protocol.Output("two")]


def test_a_message_that_is_no_json_does_not_end_the_session(session: Session) -> None:
    with session.agent.lock:
        session.agent.sock.sendall(b"Content-Length: 3\r\n\r\n{a}")
    assert session.client.request(protocol.Evaluate("1 + 1")).value == 2


def test_a_broken_header_ends_it_with_a_reason(session: Session) -> None:
    with session.agent.lock:
        session.agent.sock.sendall(b"Content-Length: many\r\n\r\n")
    assert session.lost.wait(5)
    assert "unreadable message" in session.reasons[0]


def test_another_protocol_version_is_refused(session: Session) -> None:
    session.agent.process = ProcessInfo(1, 0, [], "", "", "", protocol=protocol.PROTOCOL_VERSION + 1)
    with pytest.raises(AdbgError, match="same version of adbg"):
        initialize(session.client, session.listener.token, None)


@pytest.fixture
def listening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of this process, as ``adbg.listen()`` makes it, with somebody at the socket."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", tempfile.mkdtemp(dir="/tmp"))  # a short path: a socket lies in it
    folder = listen_dir(os.getpid())
    folder.parent.mkdir(0o700)
    folder.mkdir(0o700)
    write_config(folder / "session.json", SessionConfig(str(folder / "agent.sock"), "t"))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "agent.sock"))
        (folder / "agent.sock").chmod(0o600)
        server.listen(8)
        yield folder
    shutil.rmtree(os.environ["XDG_RUNTIME_DIR"])


def test_connect_says_when_nobody_listens(listening: Path) -> None:
    assert connect(os.getpid())[1].token == "t"
    with pytest.raises(DebuggeeGone, match="no agent can be reached in process 4194305: No such file"):
        connect(4194305)
    for damage in (
        lambda: (listening / "session.json").write_text("[]"),
        (listening / "session.json").unlink,
        (listening / "agent.sock").unlink,
    ):
        damage()
        with pytest.raises(DebuggeeGone, match="no agent can be reached"):
            connect(os.getpid())


@pytest.mark.parametrize("name", ["..", ".", "agent.sock", "session.json"])
def test_connect_trusts_no_file_that_another_user_could_have_made(listening: Path, name: str) -> None:
    """Open to others, a link, another user's, or of another kind: refused with its path, not followed."""
    path = Path(os.path.normpath(listening / name))
    mode = path.stat().st_mode
    path.chmod(0o777)
    with pytest.raises(AdbgError, match=f"other users may enter {path}"):
        connect(os.getpid())
    path.chmod(mode)
    if os.getuid() == 0:
        os.chown(path, 12345, -1)
        with pytest.raises(AdbgError, match=f"{path} belongs to user 12345"):
            connect(os.getpid())
        os.chown(path, 0, -1)
    assert connect(os.getpid())
    moved = path.with_name("moved")
    path.rename(moved)
    path.symlink_to(moved)
    with pytest.raises(AdbgError, match=r"not used|no agent can be reached"):
        connect(os.getpid())
    path.unlink()
    moved.rename(path)


def test_connect_speaks_to_the_process_that_was_asked_for(listening: Path, tmp_path: Path) -> None:
    """Another process answers at the socket of this one: a pid that was used again, or somebody's trap."""
    code = "import socket, sys; s = socket.socket(1); s.bind(sys.argv[1]); s.listen(); print(flush=True); input()"
    (listening / "agent.sock").unlink()
    command = [sys.executable, "-c", code, str(listening / "agent.sock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        (listening / "agent.sock").chmod(0o600)
        with pytest.raises(AdbgError, match=f"process {process.pid} of user {os.getuid()} answers in place"):
            connect(os.getpid())
        process.stdin.write("\n")

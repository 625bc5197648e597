"""The client side of the wire: a listener that agents dial, and one connection to one agent.

Threads: ``Listener`` accepts on its own daemon thread and hands each trusted agent to a callback there. Each ``Client``
has one daemon reader thread; answers complete futures, events go to the callback on that reader thread (so a callback
must not send a request and wait). ``request`` may be called from any other thread.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from adbg.engine.errors import AdbgError, DebuggeeGone, ProtocolError, error_of_id
from adbg.engine.protocol import codec as wire
from adbg.engine.protocol.accepting import accept_all
from adbg.engine.protocol.messages import EVENTS, PROTOCOL_VERSION, REQUESTS, Hello, Initialize, InitializeBody, Refused
from adbg.engine.protocol.rendezvous import (
    CODE,
    SOCKET,
    SessionConfig,
    check_peer,
    new_token,
    peer_pid,
    private_dir,
    session_dir,
    trusted_config,
)

HELLO_TIMEOUT = 30.0  # seconds within which a new connection must identify itself: an agent may wait for its lock
REQUEST_TIMEOUT = 30.0

EventCallback = Callable[[Any], None]
LostCallback = Callable[[str], None]


class Client:
    """One connection to one agent.

    Args:
        sock: a connected unix stream socket; owned from now on.
        stream: a buffered reader of it, when one has read from it already.
        token: of this agent's own session, "" for the front end's.

    Attributes:
        peer: pid of the process at the other end, as this host's kernel knows it; 0: not known.
    """

    def __init__(self, sock: socket.socket, stream: BinaryIO | None = None, token: str = "") -> None:
        self.token = token
        self.peer = peer_pid(sock)
        self._sock = sock
        self._stream: BinaryIO = stream if stream is not None else sock.makefile("rb")
        self._send_lock = threading.Lock()
        self._lock = threading.Lock()
        self._pending: dict[int, tuple[str, Future[Any]]] = {}
        self._seq = 0
        self._lost: str | None = None
        self._on_event: EventCallback = lambda body: None
        self._on_lost: LostCallback = lambda reason: None
        self._reader: threading.Thread | None = None

    def start(self, on_event: EventCallback, on_lost: LostCallback) -> None:
        """Begin to read. ``on_event`` gets the body dataclass of each event; ``on_lost`` gets the reason, once, when
        the connection ended; both on the reader thread. Events sent earlier are not lost: they wait in the socket."""
        self._on_event = on_event
        self._on_lost = on_lost
        self._reader = threading.Thread(target=self._read, name="adbg-client", daemon=True)
        self._reader.start()

    @property
    def lost(self) -> bool:
        return self._lost is not None

    def send(self, arguments: Any) -> Future[Any]:
        """Send a request (an arguments dataclass of ``protocol``); the future yields its body dataclass or an
        AdbgError."""
        command: str = type(arguments).COMMAND
        future: Future[Any] = Future()
        with self._lock:
            if self._lost is not None:
                raise DebuggeeGone(self._lost)
            self._seq += 1
            seq = self._seq
            self._pending[seq] = (command, future)
        message = {"seq": seq, "type": "request", "command": command, "arguments": wire.to_json(arguments)}
        try:
            with self._send_lock:
                self._sock.sendall(wire.encode(message))
        except OSError as error:
            self._forget(seq)
            raise DebuggeeGone(f"the connection to the program was lost: {error.strerror or error}") from None
        return future

    def request(self, arguments: Any, timeout: float = REQUEST_TIMEOUT) -> Any:
        """Send and wait for the body dataclass (``REQUESTS`` says which one).

        Raises:
            AdbgError: the agent's error, or no answer within ``timeout`` seconds; DebuggeeGone when the connection
                ends.
        """
        if threading.current_thread() is self._reader:
            raise RuntimeError("a request on the client's own reader thread would wait for itself")
        future = self.send(arguments)
        try:
            return future.result(timeout)
        except FutureTimeout:
            command = type(arguments).COMMAND
            raise AdbgError(
                f"no answer to {command!r} within {timeout:g} s: the program may be busy in one long operation",
                "try again, or pause the program first",
            ) from None

    def wait_end(self, timeout: float) -> None:
        """Wait until everything that the agent sent was read and the connection ended, at most ``timeout`` seconds."""
        if self._reader is not None and threading.current_thread() is not self._reader:
            self._reader.join(timeout)

    def close(self) -> None:
        """End the connection; for the agent that is a ``disconnect``."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._end("the connection was closed")
        if self._reader is None:
            self._sock.close()

    # ------------------------------------------------------------------ reader thread

    def _read(self) -> None:
        reason = "the program ended, or the connection to it was lost"
        try:
            while True:
                try:
                    message = wire.read_message(self._stream)
                except ProtocolError as error:
                    if getattr(error, "fatal", False):
                        reason = f"the agent sent an unreadable message: {error.message}"
                        break
                    continue
                if message is None:
                    break
                self._dispatch(message)
        except (OSError, ValueError):
            pass  # the socket was reset or closed under the read
        finally:
            self._end(reason)
            with contextlib.suppress(OSError):
                self._stream.close()
                self._sock.close()
            self._on_lost(self._lost or reason)

    def _dispatch(self, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if kind == "response":
            self._answer(message)
        elif kind == "event":
            cls = EVENTS.get(str(message.get("event")))
            if cls is None:
                return  # a newer agent's event
            try:
                body = wire.from_json(cls, message.get("body") or {}, str(message.get("event")))
            except ProtocolError:
                return
            self._on_event(body)

    def _answer(self, message: dict[str, Any]) -> None:
        with self._lock:
            entry = self._pending.pop(message.get("request_seq", 0), None)
        if entry is None:
            return  # it timed out before
        command, future = entry
        try:
            if message.get("success"):
                future.set_result(wire.from_json(REQUESTS[command][1], message.get("body") or {}, command))
            else:
                future.set_exception(error_of(message))
        except ProtocolError as error:
            future.set_exception(error)

    def _forget(self, seq: int) -> None:
        with self._lock:
            self._pending.pop(seq, None)

    def _end(self, reason: str) -> None:
        with self._lock:
            if self._lost is None:
                self._lost = reason
            pending, self._pending = list(self._pending.values()), {}
        for _, future in pending:
            future.set_exception(DebuggeeGone(self._lost))


def error_of(message: dict[str, Any]) -> AdbgError:
    """The AdbgError that a failed response carries: DAP's ``body.error`` has its kind as ``id`` and its text as
    ``format``, and adbg's ``hint`` beside them; a server that sends none has the text in ``message``."""
    body = message.get("body")
    detail = body.get("error") if isinstance(body, dict) else None
    detail = detail if isinstance(detail, dict) else {}
    text = str(detail.get("format") or message.get("message") or "the agent refused the request")
    return error_of_id(detail.get("id"))(text, str(detail.get("hint") or ""))


class Listener:
    """The front end's socket: in a folder of mode 0700, itself 0600, and every agent must know the token.

    Args:
        on_agent: called with (client, hello) for each trusted agent, on a thread of that agent's own; the client is
            not started.
        on_refused: called with what a process that runs already says where no agent can start, on such a thread.
        config: its ``run_dir`` and ``stacks`` are kept; ``self.config`` is it with the socket and the token, for
            the launcher. A token that it has is kept too.
        folder: where the socket goes; "" for a new folder.
    """

    def __init__(
        self,
        on_agent: Callable[[Client, Hello], None],
        config: SessionConfig | None = None,
        on_refused: Callable[[Refused], None] = lambda refused: None,
        folder: str = "",
    ) -> None:
        self._on_agent = on_agent
        self._on_refused = on_refused
        self.directory: Path = session_dir(Path(os.path.abspath(folder))) if folder else private_dir()
        self.token = config.token if config is not None and config.token else new_token()
        self.socket_path = self.directory / SOCKET
        base = config or SessionConfig("", "")
        self.config = replace(base, socket=str(self.socket_path), token=self.token)
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.bind(str(self.socket_path))
        os.chmod(self.socket_path, 0o600)
        self._sock.listen(64)
        self._thread = threading.Thread(target=self._accept, name="adbg-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and remove the folder."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._sock.close()
        for name in (SOCKET, CODE, "session.json"):
            with contextlib.suppress(OSError):
                (self.directory / name).unlink()
        with contextlib.suppress(OSError):
            self.directory.rmdir()

    def _accept(self) -> None:
        # One thread per newcomer: a silent one must not keep the others (64 ranks, say) waiting for its time-out.
        accept_all(lambda: self._sock, self._greet, "adbg-greet")

    def _greet(self, sock: socket.socket) -> None:
        """Read ``adbg/hello`` (or why none comes) and compare the token; close the connection on anything else."""
        try:
            sock.settimeout(HELLO_TIMEOUT)
            stream = sock.makefile("rb")
            message = wire.read_message(stream)
            name = str(message.get("event")) if message is not None else ""
            if message is None or name not in (Hello.EVENT, Refused.EVENT):  # type: ignore[attr-defined]
                raise ProtocolError("no adbg/hello")
            hello: Hello | Refused = wire.from_json(EVENTS[name], message.get("body"), name)
            if not hmac.compare_digest(hello.token.encode(), self.token.encode()):
                raise ProtocolError("wrong token")
            sock.settimeout(None)
        except (OSError, ProtocolError):
            sock.close()
            return
        if isinstance(hello, Refused):
            sock.close()
            self._on_refused(hello)
        else:
            self._on_agent(Client(sock, stream), hello)


def connect(pid: int) -> tuple[Client, SessionConfig]:
    """A client for the agent of process ``pid``, which called ``adbg.listen()``; not started, not initialized.

    Raises:
        DebuggeeGone: no agent listens there.
        AdbgError: something does that may be another user's.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        config = trusted_config(pid)
        sock.connect(config.socket)
        check_peer(sock, pid)
    except (OSError, ValueError, KeyError, TypeError) as error:
        sock.close()
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DebuggeeGone(f"no agent can be reached in process {pid}: {reason}") from None
    except AdbgError:
        sock.close()
        raise
    return Client(sock, token=config.token), config


def initialize(client: Client, token: str, stacks: bool | None, timeout: float = REQUEST_TIMEOUT) -> InitializeBody:
    """The first request of a session.

    Raises:
        ProtocolError: the agent speaks another protocol version.
    """
    body: InitializeBody = client.request(Initialize(clientID="adbg", token=token, adbg=True, stacks=stacks), timeout)
    if body.adbg is not None and body.adbg.protocol != PROTOCOL_VERSION:
        raise ProtocolError(
            f"the program's agent speaks protocol {body.adbg.protocol}, this adbg speaks {PROTOCOL_VERSION}",
            "use the same version of adbg on both sides",
        )
    return body

"""One TCP connection under TLS 1.3, carried to and from a unix socket. Agents and front ends only ever see the unix
socket, as they do where ssh carries it.

``Door`` stands at the front end's host: it opens the port that ``--listen`` asked for and lets in who shows the
session's token. ``Passage`` stands at the other: agents there dial its unix socket. Each connection has one thread that
moves bytes both ways: OpenSSL's objects must not be used by two at a time.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

from adbg.engine.errors import AdbgError, CommandError
from adbg.engine.launch.hosts.certificate import client_context, fingerprint_of, make_certificate, server_context
from adbg.engine.protocol.accepting import accept_all
from adbg.engine.protocol.rendezvous import peer_of

GREETING = 5.0  # seconds for the handshake and the token
STRANGERS = 32  # connections at a time that have not shown the token; of more the oldest is hung up on
FULL = 1 << 20  # bytes that wait for one side before the other is not read any more
QUIET = (30, 10, 3)  # TCP asks after so many seconds of silence, then every so many, and gives up after so many times
_PIECE = 1 << 16


def parse_address(text: str) -> tuple[str, int]:
    """ "HOST:PORT", "[::1]:PORT"; PORT 0 lets the system choose.

    Raises:
        CommandError: it is something else.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or not host:
        raise CommandError(f"expected HOST:PORT, got {text!r}", "for example: 10.0.0.5:4711")
    return host.removeprefix("[").removesuffix("]"), int(port)


def notice_silence(raw: socket.socket) -> None:
    """Have TCP end the connection when the other host is out of reach, though nobody says so: after a minute, whether
    or not something is to be sent. Raises OSError."""
    idle, interval, count = QUIET
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    values = {
        "TCP_KEEPIDLE": idle,
        "TCP_KEEPINTVL": interval,
        "TCP_KEEPCNT": count,
        "TCP_USER_TIMEOUT": (idle + interval * count) * 1000,
    }
    for name, value in values.items():
        if hasattr(socket, name):  # Linux has all four
            raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Secured:
    """The TLS side of a connection: bytes in the clear in ``inbox``, what is to be sent in ``outbox`` (ciphertext)."""

    def __init__(self, context: ssl.SSLContext, raw: socket.socket, server: bool) -> None:
        self.raw = raw
        self.outbox = bytearray()
        self.inbox = bytearray()
        self.ended = False
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server)

    def shake(self, deadline: float) -> None:
        """Raises OSError when the handshake fails or is not done by ``deadline``."""
        while True:
            try:
                self._tls.do_handshake()
                self.flush(deadline)
                return
            except ssl.SSLWantReadError:
                self.flush(deadline)
                self._more(deadline)

    def peer(self) -> bytes:
        """The other side's certificate, DER."""
        return self._tls.getpeercert(True) or b""

    def take(self, count: int, deadline: float) -> bytes:
        """``count`` bytes, by ``deadline``. Raises OSError."""
        while len(self.inbox) < count:
            self.open()
            if len(self.inbox) < count:
                if self.ended:
                    raise ConnectionError("the connection ended")
                self._more(deadline)
        data = bytes(self.inbox[:count])
        del self.inbox[:count]
        return data

    def seal(self, data: bytes | memoryview) -> None:
        """Have ``data`` sent."""
        if data:
            self._tls.write(data)
        self.outbox += self._outgoing.read()

    def arrived(self, data: bytes) -> None:
        """Ciphertext came; b"" at its end."""
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        self.open()

    def open(self) -> None:
        """Read what can be read in the clear."""
        try:
            while piece := self._tls.read(_PIECE):
                self.inbox += piece
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            self.ended = True
        self.outbox += self._outgoing.read()

    def flush(self, deadline: float) -> None:
        self.outbox += self._outgoing.read()
        self.raw.settimeout(max(0.01, deadline - time.monotonic()))
        self.raw.sendall(self.outbox)
        self.outbox.clear()

    def _more(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        self.raw.settimeout(left)
        data = self.raw.recv(_PIECE)
        if not data:
            raise ConnectionError("the connection ended")
        self._incoming.write(data)


class Clear:
    """A unix socket (one that ssh forwards) in the place of a ``Secured``: nothing is wrapped."""

    def __init__(self, raw: socket.socket) -> None:
        self.raw = raw
        self.outbox = bytearray()
        self.inbox = bytearray()
        self.ended = False

    def seal(self, data: bytes | memoryview) -> None:
        self.outbox += data

    def arrived(self, data: bytes) -> None:
        self.inbox += data
        self.ended = not data


Carrier = Secured | Clear


def carry(secured: Carrier, plain: socket.socket, first: Callable[[], None] = lambda: None) -> None:
    """Move bytes both ways until either side ends; what has come by then is delivered. ``first``: called when the plain
    side has sent something."""
    raw = secured.raw
    spoken = False
    for sock in (raw, plain):
        sock.setblocking(False)
    ended = False
    with contextlib.suppress(OSError):
        while not (ended and not secured.outbox) and not (secured.ended and not secured.inbox):
            reading = [] if ended or len(secured.outbox) > FULL else [plain]
            reading += [] if secured.ended or len(secured.inbox) > FULL else [raw]
            writing = [raw] if secured.outbox else []
            writing += [plain] if secured.inbox else []
            readable, writable, _ = select_of(reading, writing)
            if plain in readable:
                data = plain.recv(_PIECE)
                ended = not data
                secured.seal(data)
                if data and not spoken:
                    spoken = True
                    first()
            if raw in readable:
                secured.arrived(raw.recv(_PIECE))
            if raw in writable:
                del secured.outbox[: raw.send(secured.outbox)]
            if plain in writable:
                del secured.inbox[: plain.send(secured.inbox)]
    for sock in (raw, plain):
        sock.close()


def select_of(
    reading: list[socket.socket], writing: list[socket.socket]
) -> tuple[set[socket.socket], set[socket.socket], None]:
    """``select.select`` without its limit of 1024 descriptors; waits."""
    poll = select.poll()
    by_number = {sock.fileno(): sock for sock in (*reading, *writing)}
    for number, sock in by_number.items():
        poll.register(number, (select.POLLIN if sock in reading else 0) | (select.POLLOUT if sock in writing else 0))
    readable, writable = set(), set()
    for number, events in poll.poll():
        sock = by_number[number]
        if events & ~select.POLLOUT and sock in reading:
            readable.add(sock)
        if events & ~select.POLLIN and sock in writing:
            writable.add(sock)
    return readable, writable, None


class Door:
    """The port of a session. Whoever connects must finish the handshake and show the token, within GREETING seconds;
    only then is the session's unix socket opened for it.

    Args:
        address: as ``parse_address`` gives it.
        path: the unix socket that agents are carried to.
    """

    def __init__(self, address: tuple[str, int], path: str, token: str) -> None:
        certificate, key = make_certificate()
        self.fingerprint = fingerprint_of(certificate)
        self._context = server_context(certificate, key)
        self.path = path
        self._token = token.encode()
        self._strangers: list[socket.socket] = []
        self._lock = threading.Lock()
        host, port = address
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._sock = socket.create_server(address, family=family, backlog=64)
        except OSError as error:
            raise AdbgError(
                f"cannot listen on {host}:{port}: {error.strerror or error}",
                "choose an address of this host, and a free port",
            ) from None
        self.port: int = self._sock.getsockname()[1]
        threading.Thread(target=self._accept, name="adbg-door", daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _accept(self) -> None:
        accept_all(lambda: self._sock, self._greet, "adbg-tunnel")

    def _unknown(self, raw: socket.socket) -> None:
        with self._lock:
            self._strangers.append(raw)
            if len(self._strangers) > STRANGERS:
                with contextlib.suppress(OSError):
                    self._strangers.pop(0).shutdown(socket.SHUT_RDWR)

    def _known(self, raw: socket.socket) -> None:
        with self._lock:
            if raw in self._strangers:
                self._strangers.remove(raw)

    def _greet(self, raw: socket.socket) -> None:
        plain: socket.socket | None = None
        deadline = time.monotonic() + GREETING
        self._unknown(raw)
        try:
            try:
                notice_silence(raw)
                secured = Secured(self._context, raw, server=True)
                secured.shake(deadline)
                if not hmac.compare_digest(secured.take(len(self._token), deadline), self._token):
                    raise ConnectionError("wrong token")
                plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                plain.connect(self.path)
            finally:
                self._known(raw)
        except (OSError, ValueError):
            raw.close()
            if plain is not None:
                plain.close()
            return
        carry(secured, plain)


def dial(address: tuple[str, int], fingerprint: str, token: str) -> Secured:
    """Connect to a ``Door`` that has the certificate of that fingerprint.

    Raises:
        AdbgError: nobody answers there, or somebody else does.
    """
    host, port = address
    deadline = time.monotonic() + GREETING
    try:
        raw = socket.create_connection(address, GREETING)
    except OSError as error:
        raise AdbgError(
            f"no session answers at {host}:{port}: {error.strerror or error}",
            "is `adbg run --listen` still running there?",
        ) from None
    try:
        notice_silence(raw)
        secured = Secured(client_context(), raw, server=False)
        secured.shake(deadline)
        if not hmac.compare_digest(fingerprint_of(secured.peer()), fingerprint):
            raise AdbgError(
                f"{host}:{port} shows another certificate than this session has: nothing was sent to it",
                "copy session.json again; if it is the present one, somebody is in between",
            )
        secured.seal(token.encode())
        secured.flush(deadline)
    except OSError as error:
        raw.close()
        raise AdbgError(f"{host}:{port} does not speak as a session does: {error}", "check the address") from None
    except AdbgError:
        raw.close()
        raise
    return secured


class Passage:
    """A unix socket (0600, in a private folder) whose connections go to a session elsewhere.

    Args:
        path: of the socket.
        connect: opens the way there, once a connection.
        on_peer: told the process that has begun to speak, on a thread of its connection.
    """

    def __init__(
        self, path: Path, connect: Callable[[], Carrier], on_peer: Callable[[int], None] = lambda pid: None
    ) -> None:
        self._connect = connect
        self._on_peer = on_peer
        self.speaking = 0  # connections on which something was said, and that are open
        self._lock = threading.Lock()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.bind(str(path))
        os.chmod(path, 0o600)
        self._sock.listen(64)
        threading.Thread(target=self._accept, name="adbg-passage", daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _accept(self) -> None:
        accept_all(lambda: self._sock, self._through, "adbg-tunnel")

    def _through(self, plain: socket.socket) -> None:
        try:
            pid = peer_of(plain)[0]
            carrier = self._connect()
        except (AdbgError, OSError):
            plain.close()  # the agent says that nobody answers, and the program runs on
            return
        spoke = False

        def first() -> None:
            nonlocal spoke
            spoke = True
            with self._lock:
                self.speaking += 1
            self._on_peer(pid)

        try:
            carry(carrier, plain, first)
        finally:
            if spoke:
                with self._lock:
                    self.speaking -= 1

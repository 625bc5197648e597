"""The port of a session: its certificate, who gets in, and that every byte arrives. Real sockets on the loopback."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from support.patience import patience

from adbg.engine.errors import AdbgError, CommandError
from adbg.engine.launch.hosts import tunnel
from adbg.engine.launch.hosts.certificate import _pem, fingerprint_of, make_certificate
from adbg.engine.launch.hosts.tunnel import Door, Passage, dial, parse_address

TOKEN = "7" * 64


class Inner:
    """The session's own unix socket: counts who comes, and sends back what it gets."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.came = 0
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.bind(self.path)
        self._sock.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._sock.accept()
            except OSError:
                return
            self.came += 1
            threading.Thread(target=self._echo, args=(peer,), daemon=True).start()

    @staticmethod
    def _echo(peer: socket.socket) -> None:
        with peer:
            while data := peer.recv(1 << 16):
                peer.sendall(data)

    def close(self) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


@pytest.fixture
def inner(tmp_path: Path) -> Iterator[Inner]:
    made = Inner(tmp_path / "client.sock")
    yield made
    made.close()


@pytest.fixture
def door(inner: Inner) -> Iterator[Door]:
    made = Door(("127.0.0.1", 0), inner.path, TOKEN)
    yield made
    made.close()


def raw_to(door: Door) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", door.port))
    sock.settimeout(patience(20))
    return sock


def hung_up(sock: socket.socket) -> bool:
    try:
        while sock.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is the witness")
def test_the_certificate_is_one(tmp_path: Path) -> None:
    """As another program reads it: well formed, signed by its own key, and never the same twice."""
    certificate, _ = make_certificate()
    file = tmp_path / "c.pem"
    file.write_bytes(_pem("CERTIFICATE", certificate))
    words = ["openssl", "verify", "-check_ss_sig", "-CAfile", str(file), str(file)]
    verdict = subprocess.run(words, capture_output=True, text=True)
    assert verdict.returncode == 0, verdict.stderr
    told = subprocess.run(
        ["openssl", "x509", "-in", str(file), "-noout", "-fingerprint", "-sha256"], capture_output=True, text=True
    )
    assert told.stdout.strip().rpartition("=")[2].replace(":", "").lower() == fingerprint_of(certificate)
    assert make_certificate()[0] != certificate


def test_every_byte_arrives_both_ways(inner: Inner, door: Door, tmp_path: Path) -> None:
    """5 MB that come back while they are still sent: neither side may wait for the other."""
    passage = Passage(tmp_path / "far.sock", partial(dial, ("127.0.0.1", door.port), door.fingerprint, TOKEN))
    data = os.urandom(5 << 20)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(patience(30))
        sock.connect(str(tmp_path / "far.sock"))
        threading.Thread(target=sock.sendall, args=(data,), daemon=True).start()
        got = hashlib.sha256()
        count = 0
        while count < len(data):
            piece = sock.recv(1 << 16)
            assert piece
            got.update(piece)
            count += len(piece)
    assert got.digest() == hashlib.sha256(data).digest() and inner.came == 1
    passage.close()


def test_the_end_of_the_session_reaches_the_far_side(inner: Inner, tmp_path: Path) -> None:
    door = Door(("127.0.0.1", 0), str(tmp_path / "nobody.sock"), TOKEN)
    passage = Passage(tmp_path / "far.sock", partial(dial, ("127.0.0.1", door.port), door.fingerprint, TOKEN))
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(patience(20))
        sock.connect(str(tmp_path / "far.sock"))
        assert hung_up(sock), "no front end behind the door"
    door.close()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(patience(20))
        sock.connect(str(tmp_path / "far.sock"))
        assert hung_up(sock), "no door any more"
    passage.close()


@pytest.mark.parametrize("token", ["8" * 64, "7" * 63, ""])
def test_without_the_token_nobody_comes_to_the_session(
    inner: Inner, door: Door, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel, "GREETING", 1.0)
    secured = dial(("127.0.0.1", door.port), door.fingerprint, token)
    secured.raw.settimeout(patience(20))
    assert hung_up(secured.raw) and inner.came == 0


def test_what_is_no_tls_is_hung_up_on(inner: Inner, door: Door) -> None:
    with raw_to(door) as sock:
        sock.sendall(TOKEN.encode() + b"\r\n" * 100)
        assert hung_up(sock) and inner.came == 0


def test_older_tls_is_refused(inner: Inner, door: Door) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with raw_to(door) as sock, pytest.raises(OSError):
        context.wrap_socket(sock)
    assert inner.came == 0


def test_another_certificate_gets_no_token(inner: Inner, door: Door) -> None:
    """Somebody in between has a certificate of his own: what he receives in the clear is nothing."""
    with pytest.raises(AdbgError, match="another certificate than this session has: nothing was sent"):
        dial(("127.0.0.1", door.port), "0" * 64, TOKEN)
    assert inner.came == 0


def test_silent_strangers_keep_nobody_out(inner: Inner, door: Door) -> None:
    silent = [raw_to(door) for _ in range(tunnel.STRANGERS + 8)]
    secured = dial(("127.0.0.1", door.port), door.fingerprint, TOKEN)
    secured.seal(b"hello")
    deadline = tunnel.time.monotonic() + patience(20)
    secured.flush(deadline)
    assert secured.take(5, deadline) == b"hello" and inner.came == 1
    assert hung_up(silent[0])
    for sock in silent:
        sock.close()
    secured.raw.close()


def test_addresses() -> None:
    assert parse_address("node1:4711") == ("node1", 4711) and parse_address("[::1]:0") == ("::1", 0)
    for text in ("node1", ":4711", "node1:x", "node1:70000", ""):
        with pytest.raises(CommandError, match="expected HOST:PORT"):
            parse_address(text)
    with pytest.raises(AdbgError, match=r"no session answers at 127\.0\.0\.1:1"):
        dial(("127.0.0.1", 1), "0" * 64, TOKEN)
    with pytest.raises(AdbgError, match="cannot listen on"):
        Door(("192.0.2.1", 0), "/nowhere", TOKEN)

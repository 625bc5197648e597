"""A certificate for one session, made with the standard library alone: ``ssl`` uses certificates, and cannot make them.

A P-256 key (FIPS 186-5) and a self-signed X.509 certificate (RFC 5280) in DER (X.690). It is never checked against a
name or an authority: whoever connects compares its fingerprint with the one in ``session.json``. The handshake itself
is OpenSSL's; here one number is drawn and multiplied, once a session (23 ms).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import secrets
import ssl
import tempfile
from collections.abc import Iterator

# The curve: y^2 = x^3 - 3x + B over the integers modulo P; G has order N.
_P = 2**256 - 2**224 + 2**192 + 2**96 - 1
_N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)

Point = tuple[int, int] | None  # None: the point at infinity


def make_certificate() -> tuple[bytes, bytes]:
    """(certificate, private key), both DER. The key is PKCS 8."""
    secret = secrets.randbelow(_N - 1) + 1
    public = _times(secret, _G)
    assert public is not None
    key_info = _sequence(
        _sequence(_oid(1, 2, 840, 10045, 2, 1), _oid(1, 2, 840, 10045, 3, 1, 7)), _bits(_octets(public))
    )
    algorithm = _sequence(_oid(1, 2, 840, 10045, 4, 3, 2))  # ecdsa-with-SHA256
    name = _sequence(_tagged(0x31, _sequence(_oid(2, 5, 4, 3), _tagged(0x0C, b"adbg session"))))
    always = _sequence(_tagged(0x17, b"200101000000Z"), _tagged(0x18, b"99991231235959Z"))  # RFC 5280, 4.1.2.5
    body = _sequence(
        _tagged(0xA0, _integer(2)), _integer(secrets.randbits(120) + 1), algorithm, name, always, name, key_info
    )
    certificate = _sequence(body, algorithm, _bits(_signature(secret, hashlib.sha256(body).digest())))
    inner = _sequence(_integer(1), _tagged(0x04, secret.to_bytes(32, "big")), _tagged(0xA1, _bits(_octets(public))))
    kind = _sequence(_oid(1, 2, 840, 10045, 2, 1), _oid(1, 2, 840, 10045, 3, 1, 7))
    return certificate, _sequence(_integer(0), kind, _tagged(0x04, inner))


def fingerprint_of(certificate: bytes) -> str:
    """SHA-256 of the DER form, hex."""
    return hashlib.sha256(certificate).hexdigest()


def server_context(certificate: bytes, key: bytes) -> ssl.SSLContext:
    """TLS 1.3 with that certificate. OpenSSL reads the key from a file: one in memory, where the system has those."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with _file(_pem("CERTIFICATE", certificate) + _pem("PRIVATE KEY", key)) as path:
        context.load_cert_chain(path)
    return context


def client_context() -> ssl.SSLContext:
    """TLS 1.3 to a certificate that is checked by its fingerprint: ``ssl`` itself checks none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@contextlib.contextmanager
def _file(content: bytes) -> Iterator[str]:
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("adbg"), "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
        return
    fd, path = tempfile.mkstemp(prefix="adbg-")  # 0600
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
        yield path
    finally:
        os.unlink(path)


def _pem(label: str, data: bytes) -> bytes:
    text = base64.b64encode(data).decode()
    lines = [text[start : start + 64] for start in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""]).encode()


# ------------------------------------------------------------------ the curve


def _add(one: Point, other: Point) -> Point:
    if one is None or other is None:
        return one or other
    (x1, y1), (x2, y2) = one, other
    if x1 == x2:
        if (y1 + y2) % _P == 0:
            return None
        slope = (3 * x1 * x1 - 3) * pow(2 * y1, -1, _P)
    else:
        slope = (y2 - y1) * pow(x2 - x1, -1, _P)
    x = (slope * slope - x1 - x2) % _P
    return x, (slope * (x1 - x) - y1) % _P


def _times(factor: int, point: Point) -> Point:
    found: Point = None
    while factor:
        if factor & 1:
            found = _add(found, point)
        point = _add(point, point)
        factor >>= 1
    return found


def _signature(secret: int, digest: bytes) -> bytes:
    """ECDSA (FIPS 186-5, 6.4)."""
    number = int.from_bytes(digest, "big")
    while True:
        nonce = secrets.randbelow(_N - 1) + 1
        point = _times(nonce, _G)
        assert point is not None
        r = point[0] % _N
        s = pow(nonce, -1, _N) * (number + r * secret) % _N
        if r and s:
            return _sequence(_integer(r), _integer(s))


def _octets(point: tuple[int, int]) -> bytes:
    return b"\x04" + point[0].to_bytes(32, "big") + point[1].to_bytes(32, "big")


# ------------------------------------------------------------------ DER


def _tagged(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def _sequence(*parts: bytes) -> bytes:
    return _tagged(0x30, b"".join(parts))


def _integer(value: int) -> bytes:
    return _tagged(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _bits(content: bytes) -> bytes:
    return _tagged(0x03, b"\0" + content)


def _oid(first: int, second: int, *rest: int) -> bytes:
    content = bytearray([first * 40 + second])
    for number in rest:
        digits = [number & 0x7F]
        while number := number >> 7:
            digits.append(0x80 | number & 0x7F)
        content += bytes(reversed(digits))
    return _tagged(0x06, bytes(content))

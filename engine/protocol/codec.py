"""DAP framing and the codec between JSON and the dataclasses of ``messages``.

Framing is ``Content-Length: N\\r\\n\\r\\n`` + N bytes of UTF-8 JSON (DAP's base protocol). Floats JSON cannot write are
the strings "nan", "inf", "-inf". Reading is strict about types and names the field that is wrong; unknown fields are
ignored, so that a newer client can speak to an older agent.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import types
import typing
from typing import Any, BinaryIO

from adbg.engine.errors import ProtocolError
from adbg.engine.protocol.messages import MAX_MESSAGE

_MAX_HEADER = 4096
_PLAIN = frozenset((str, int, bool, type(None)))  # written as they are


# ------------------------------------------------------------------ JSON <-> dataclasses


def to_json(value: Any) -> Any:
    """A dataclass, enum, tuple or float as plain JSON values."""
    if value is None or value is True or value is False or isinstance(value, (str, int)):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "nan" if value != value else ("inf" if value > 0 else "-inf")
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value):
        fields = ((name, getattr(value, name)) for name in _field_names(value.__class__))
        return {name: field if field.__class__ in _PLAIN else to_json(field) for name, field in fields}
    raise ProtocolError(f"cannot send a {type(value).__name__} over the wire", "this is a bug in adbg: report it")


def from_json(cls: Any, value: Any, where: str = "message") -> Any:
    """``value`` (plain JSON) as ``cls``: a dataclass, an enum, a builtin, or a generic of these.

    Raises:
        ProtocolError: a field is missing or of the wrong type; the message names it.
    """
    return _reader(cls)(value, where)


@functools.cache
def _field_names(cls: type) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(cls))


def _wrong(where: str, expected: str, value: Any) -> ProtocolError:
    return ProtocolError(f"{where}: expected {expected}, got {type(value).__name__} {str(value)[:60]!r}")


def _read_float(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        if value in ("nan", "inf", "-inf"):
            return float(value)
        raise _wrong(where, "a number", value)
    return float(value)


def _read_plain(cls: type, name: str) -> Any:
    def read(value: Any, where: str) -> Any:
        if not isinstance(value, cls) or (cls is int and isinstance(value, bool)):
            raise _wrong(where, name, value)
        return value

    return read


@functools.cache
def _reader(cls: Any) -> Any:
    """A function (json value, where) -> value. Cached: type hints are resolved once per class (0.1 ms each)."""
    if cls is Any:
        return lambda value, where: value
    if cls is float:
        return _read_float
    if cls in (str, int, bool):
        return _read_plain(cls, {str: "a string", int: "an integer", bool: "true or false"}[cls])
    if cls is type(None):
        return _read_none
    origin = typing.get_origin(cls)
    if origin in (typing.Union, types.UnionType):
        return _union_reader(typing.get_args(cls))
    if origin in (list, tuple):
        return _sequence_reader(origin, typing.get_args(cls))
    if origin is dict:
        return _dict_reader(_reader(typing.get_args(cls)[1]))
    if isinstance(cls, type) and issubclass(cls, enum.Enum):
        return _enum_reader(cls)
    if dataclasses.is_dataclass(cls):
        return _dataclass_reader(cls)
    raise TypeError(f"no reader for {cls!r}")


def _read_none(value: Any, where: str) -> None:
    if value is not None:
        raise _wrong(where, "null", value)


def _union_reader(arms: tuple[Any, ...]) -> Any:
    readers = [_reader(arm) for arm in arms if arm is not type(None)]
    optional = type(None) in arms

    def read(value: Any, where: str) -> Any:
        if value is None and optional:
            return None
        if len(readers) == 1:
            return readers[0](value, where)
        for reader in readers:
            try:
                return reader(value, where)
            except ProtocolError:
                continue
        raise _wrong(where, "one of several types", value)

    return read


def _sequence_reader(origin: Any, args: tuple[Any, ...]) -> Any:
    fixed = None if origin is list or args[-1] is Ellipsis else [_reader(a) for a in args]
    item = _reader(args[0])

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, list):
            raise _wrong(where, "a list", value)
        if fixed is not None:
            if len(value) != len(fixed):
                raise _wrong(where, f"a list of {len(fixed)}", value)
            return tuple(r(v, f"{where}[{i}]") for i, (r, v) in enumerate(zip(fixed, value)))
        return origin(item(v, f"{where}[{i}]") for i, v in enumerate(value))

    return read


def _dict_reader(item: Any) -> Any:
    def read(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(where, "an object", value)
        return {key: item(v, f"{where}.{key}") for key, v in value.items()}

    return read


def _enum_reader(cls: type[enum.Enum]) -> Any:
    def read(value: Any, where: str) -> Any:
        try:
            return cls(value)
        except ValueError:
            raise _wrong(where, "one of " + ", ".join(str(m.value) for m in cls), value) from None

    return read


def _dataclass_reader(cls: Any) -> Any:
    hints = typing.get_type_hints(cls)
    fields = []
    for f in dataclasses.fields(cls):
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        fields.append((f.name, _reader(hints[f.name]), required))

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(where, "an object", value)
        known = {}
        for name, reader, required in fields:
            if name in value:
                known[name] = reader(value[name], f"{where}.{name}")
            elif required:
                raise ProtocolError(f"{where}: the field {name!r} is missing")
        return cls(**known)

    return read


# ------------------------------------------------------------------ framing


def encode(message: dict[str, Any]) -> bytes:
    """One framed message. ``message`` must be plain JSON already."""
    body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def read_message(stream: BinaryIO) -> dict[str, Any] | None:
    """The next message of a buffered stream, or None at its end.

    Raises:
        ProtocolError: a bad header, a message over MAX_MESSAGE, or a body that is not an object. After a bad body the
            stream is at the next message; after a bad header (``fatal`` attribute true) it cannot be read any more.
    """
    length = _read_header(stream)
    if length is None:
        return None
    if length > MAX_MESSAGE:
        _skip(stream, length)
        raise ProtocolError(f"message of {length} bytes refused: the limit is {MAX_MESSAGE}", "ask for a smaller page")
    body = stream.read(length)
    if len(body) < length:
        return None
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"invalid JSON in a message: {error}") from None
    if not isinstance(message, dict):
        raise ProtocolError("a message is not a JSON object")
    return message


def _fatal(text: str) -> ProtocolError:
    error = ProtocolError(text)
    error.fatal = True  # type: ignore[attr-defined]
    return error


def _read_header(stream: BinaryIO) -> int | None:
    length = None
    seen = 0
    while True:
        line = stream.readline(_MAX_HEADER)
        if not line:
            return None
        seen += len(line)
        if seen > _MAX_HEADER or not line.endswith(b"\n"):
            raise _fatal("bad message header: too long")
        if line in (b"\r\n", b"\n"):
            if length is None:
                raise _fatal("bad message header: no Content-Length")
            return length
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            text = value.strip()
            if not text.isdigit() or len(text) > 12:
                raise _fatal(f"bad message header: Content-Length {text[:20]!r}")
            length = int(text)


def _skip(stream: BinaryIO, length: int) -> None:
    while length > 0:
        piece = stream.read(min(length, 1 << 20))
        if not piece:
            return
        length -= len(piece)

"""pprof's ``profile.proto``, gzipped or not, written and read without the protobuf library.

https://github.com/google/pprof/blob/main/proto/profile.proto has the fields; the numbers below are its.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from adbg.profiles.report.formats.collapsed import frame_of
from adbg.profiles.report.formats.problem import FormatError, damaged
from adbg.profiles.report.model import BYTES, DEEPEST, NATIVE, NODE, SAMPLES, SECONDS, Builder, Frame, Profile

_KIND = "pprof profile"
_SAMPLE_TYPE, _SAMPLE, _MAPPING, _LOCATION, _FUNCTION, _STRINGS = 1, 2, 3, 4, 5, 6
_PERIOD_TYPE, _PERIOD, _COMMENT = 11, 12, 13
_NANO = 1e9
_LARGEST = 1 << 30  # bytes, unpacked
_INLINED = 100  # frames that a byte of the file stands for: a location may have many inlined functions, named once
_SCALES = {"nanoseconds": 1e-9, "microseconds": 1e-6, "milliseconds": 1e-3, "seconds": 1.0}


def is_pprof(head: bytes) -> bool:
    """A profile begins with a sample type: field 1, a message of two short fields."""
    return len(head) > 4 and head[0] == 0x0A and 2 <= head[1] <= 12 and head[2] == 0x08


# ------------------------------------------------------------------ the wire


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value) if value else b""


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _packed(field: int, values: Iterable[int]) -> bytes:
    return _bytes(field, b"".join(map(_varint, values)))


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field, value) of a message: numbers, or the bytes of a string or a message. Raises ValueError."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        field, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _read_varint(data, at)
            yield field, value
        elif kind == 2:
            length, at = _read_varint(data, at)
            if at + length > len(data):
                raise ValueError("it ends inside a field")
            yield field, data[at : at + length]
            at += length
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError(f"unknown kind of field {kind}")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("it ends inside a number")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _integers(value: int | bytes) -> list[int]:
    """A repeated number, packed or one at a time; two's complement."""
    numbers: list[int] = []
    if isinstance(value, int):
        numbers = [value]
    else:
        at = 0
        while at < len(value):
            number, at = _read_varint(value, at)
            numbers.append(number)
    return [number - (1 << 64) if number >> 63 else number for number in numbers]


# ------------------------------------------------------------------ writing


def write(profile: Profile, path: Path) -> None:
    strings: dict[str, int] = {"": 0}

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings))

    kind, unit, scale = {
        SECONDS: ("time", "nanoseconds", _NANO),
        BYTES: ("space", "bytes", 1.0),
    }.get(profile.unit, ("samples", "count", 1.0))
    value_type = _number(1, text(kind)) + _number(2, text(unit))
    parts = [_bytes(_SAMPLE_TYPE, value_type)]
    for stack, weight, thread in profile.samples:
        label = _bytes(3, _number(1, text("thread")) + _number(2, text(thread))) if thread else b""
        locations = _packed(1, [index + 1 for index in reversed(stack)])
        parts.append(_bytes(_SAMPLE, locations + _packed(2, [_whole(weight * scale)]) + label))
    modules: dict[str, int] = {}
    for number, frame in enumerate(profile.frames, 1):
        module = modules.setdefault(frame.module, len(modules) + 1) if frame.side == NATIVE and frame.module else 0
        line = _bytes(4, _number(1, number) + _number(2, frame.line))
        parts.append(_bytes(_LOCATION, _number(1, number) + _number(2, module) + line))
        function, file = text(frame.name), text(frame.file or ("node" if frame.side == NODE else frame.module))
        start = frame.line if profile.lines == "first" else 0
        # No system name: where it equals the name, pprof cuts what lies in "<>", and "<module>" is nothing then
        body = _number(1, number) + _number(2, function) + _number(4, file) + _number(5, start)
        parts.append(_bytes(_FUNCTION, body))
    for name, number in modules.items():
        parts.append(_bytes(_MAPPING, _number(1, number) + _number(5, text(name)) + _number(7, 1)))
    if profile.period:
        parts += [_bytes(_PERIOD_TYPE, value_type), _number(_PERIOD, _whole(profile.period * scale))]
    parts += [_bytes(_STRINGS, value.encode("utf-8", "replace")) for value in strings]
    data = b"".join(parts)
    path.write_bytes(data if path.suffix == ".pb" else gzip.compress(data, 6, mtime=0))


def _whole(weight: float) -> int:
    """As the format's numbers are: of 64 bits with a sign."""
    if not abs(weight) < 1 << 63:
        raise FormatError(f"a pprof profile has no number as large as {weight:g}", "write it for speedscope")
    return round(weight)


# ------------------------------------------------------------------ reading


def read(path: Path) -> Profile:
    data = path.read_bytes()
    try:
        if data[:2] == b"\x1f\x8b":
            data = _unzipped(data)
        return _profile(data)
    except (ValueError, EOFError, zlib.error, OSError, IndexError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise damaged(path, _KIND, str(error) or type(error).__name__) from None


def _unzipped(data: bytes) -> bytes:
    """Bounded: a file of a megabyte may claim to hold a thousand."""
    with gzip.open(io.BytesIO(data)) as file:
        whole = file.read(_LARGEST + 1)
    if len(whole) > _LARGEST:
        raise ValueError(f"it unpacks to more than {_LARGEST >> 20} MiB")
    return whole


def _profile(data: bytes) -> Profile:
    parts: dict[int, list[bytes]] = {}
    numbers: dict[int, int] = {}
    for field, value in fields(data):
        if isinstance(value, bytes):
            parts.setdefault(field, []).append(value)
        else:
            numbers[field] = value
    strings = [value.decode("utf-8", "replace") for value in parts.get(_STRINGS, [])]
    types = [_message(value) for value in parts.get(_SAMPLE_TYPE, [])]
    column = len(types) - 1  # the last one is what pprof shows: cpu beside a count of samples
    unit = strings[_int(types[column], 2)]
    scale = _SCALES.get(unit, 1.0)
    builder = Builder()
    locations = _locations(parts, strings, builder)
    room = _INLINED * (len(data) + 1024)
    for row in parts.get(_SAMPLE, []):
        stack: list[int] = []
        values: list[int] = []
        thread = ""
        for field, value in fields(row):
            if field == 1:
                stack += _integers(value)
            elif field == 2:
                values += _integers(value)
            elif field == 3 and isinstance(value, bytes):
                label = _message(value)
                if strings[_int(label, 1)] in ("thread", "thread_name", "thread name"):
                    thread = strings[_int(label, 2)]
        whole: list[int] = []
        for number in reversed(stack):
            whole += locations[number]
            if len(whole) > DEEPEST:
                break
        room -= len(whole)
        if room < 0:
            raise ValueError("its stacks are a hundred times as large as the file")
        builder.add(whole, values[column] * scale, thread)
    period = numbers.get(_PERIOD, 0) * scale if unit in _SCALES else 0.0
    kind = SECONDS if unit in _SCALES else BYTES if unit == "bytes" else SAMPLES
    return Profile(builder.frames, builder.samples, kind, period=period, meta={"format": "pprof"})


def _message(data: bytes) -> dict[int, int | bytes]:
    return dict(fields(data))


def _int(message: dict[int, int | bytes], field: int) -> int:
    value = message.get(field, 0)
    if not isinstance(value, int):
        raise ValueError(f"field {field} is no number")
    return value


def _locations(parts: dict[int, list[bytes]], strings: Sequence[str], builder: Builder) -> dict[int, list[int]]:
    """Frames of each location, the outermost first: inlined functions lie in one."""
    functions: dict[int, tuple[str, str]] = {}
    for row in parts.get(_FUNCTION, []):
        message = _message(row)
        functions[_int(message, 1)] = strings[_int(message, 2)], strings[_int(message, 4)]
    modules: dict[int, str] = {}
    for row in parts.get(_MAPPING, []):
        message = _message(row)
        modules[_int(message, 1)] = strings[_int(message, 5)].rpartition("/")[2]
    found: dict[int, list[int]] = {}
    for row in parts.get(_LOCATION, []):
        number, module, address = 0, "", 0
        frames: list[Frame] = []
        for field, value in fields(row):
            if field == 1 and isinstance(value, int):
                number = value
            elif field == 2 and isinstance(value, int):
                module = modules.get(value, "")
            elif field == 3 and isinstance(value, int):
                address = value
            elif field == 4 and isinstance(value, bytes):
                line = _message(value)
                name, file = functions.get(_int(line, 1), ("", ""))
                frames.append(_frame(name, file, _int(line, 2), module))
        outermost_first = frames[::-1][:DEEPEST] or [Frame(f"{address:#x}", side=NATIVE, module=module)]
        found[number] = [builder.frame(frame) for frame in outermost_first]
    return found


def _frame(name: str, file: str, line: int, module: str) -> Frame:
    if module:
        return Frame(name, file if file != module else "", line, NATIVE, module)
    if file == "node":
        return Frame(name, side=NODE)
    side = frame_of(f"{name} ({file}:{line})").side if file else frame_of(name).side
    return Frame(name, file, line, side)

"""Gzipped logs as far as they can be read: those of killed jobs have no end. Pure; on whatever thread reads."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import BinaryIO

MAGIC = b"\x1f\x8b"
_PIECE = 1 << 14  # bytes read at once: of a damaged file, what a piece would have given is lost


def unpacked(file: BinaryIO, first: bytes = b"") -> Iterator[bytes]:
    """What gzip members hold, one after the other; ``first`` was read from ``file`` already. Whatever can be unpacked
    is handed out before anything is raised.

    Raises:
        EOFError: the file ends within a member.
        zlib.error: it is damaged, or no gzip file.
    """
    data = first or file.read(_PIECE)
    while data:
        member = zlib.decompressobj(31)
        while not member.eof:
            if not data:
                raise EOFError("the end of the file is missing")
            if text := member.decompress(data):
                yield text
            data = member.unused_data if member.eof else file.read(_PIECE)
        data = (data or file.read(_PIECE)).lstrip(b"\0")  # tape drives pad

"""glog's text grammar: VLOG records read and written (L1, stdlib only; pure, any thread).

::

    record = TAB* severity MMDD " " HH:MM:SS.uuuuuu " " tid " " file ":" line "] " text NL { continuation line NL }

TAB* is the nesting (PyLayer / nested backward). Lines that belong to no record (warnings, tracebacks, prints) are *foreign*.
Records that adbg writes itself have no C++ source line: there the number behind the file is the VLOG level.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Record:
    """One record. ``severity`` is I, W, E or F; "" marks foreign text (then ``text`` and ``continuation`` are its lines).

    ``offset`` and ``length`` are its bytes in the stream. ``time`` is "1121 00:54:27.615494".
    """

    indent: int
    severity: str
    time: str
    tid: int
    file: str
    line: int
    text: str
    continuation: tuple[str, ...] = ()
    offset: int = 0
    length: int = 0

    @property
    def level(self) -> int | None:
        """The VLOG level, where it is known."""
        raise NotImplementedError


class Parser:
    """Incremental: feed bytes as they come."""

    def feed(self, data: bytes) -> list[Record]:
        """Records that are complete now (a record is complete when the next one begins)."""
        raise NotImplementedError

    def flush(self) -> list[Record]:
        """The end of the stream: the rest."""
        raise NotImplementedError


def parse(text: str | bytes) -> list[Record]:
    """All records of a whole log."""
    raise NotImplementedError


def format_record(
    text: str, file: str, line: int, indent: int = 0, severity: str = "I", time_ns: int | None = None, tid: int | None = None
) -> str:
    """One record with its newline; further lines of ``text`` become continuation lines."""
    raise NotImplementedError


def parse_levels(text: str) -> dict[str, int]:
    """"6" -> {"*": 6}; "backward=6,nodes=5"; "off" -> {"*": 0}; "" -> {}. Raises CommandError."""
    raise NotImplementedError

"""Logs, debugging aids, tables and the record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from adbg.engine.protocol.messages.registry import Empty, request


@dataclass(frozen=True, slots=True)
class VlogBody:
    """``regions`` as asked for; ``file``: where fd 2 goes while a framework logs there, "" when it does not."""

    levels: dict[str, int]  # "*" is the global level
    regions: list[str] = field(default_factory=list)
    file: str = ""


@request("adbg/vlog", VlogBody)
@dataclass(frozen=True, slots=True)
class Vlog:
    """``levels``: "6", "backward=6,nodes=5", "off" (regions too), or "" to only ask. ``at`` ("FILE:A-B") has them only
    while these forward lines run; with ``backward`` only while the nodes run that were made there."""

    levels: str = ""
    at: str = ""
    backward: bool = False


@dataclass(frozen=True, slots=True)
class AidRow:
    """One of a framework's own debugging aids. ``note``: what this build does with it."""

    framework: str
    name: str
    value: str
    values: str
    what: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class AidsBody:
    aids: list[AidRow]


@request("adbg/aids", AidsBody)
@dataclass(frozen=True, slots=True)
class Aids:
    """Switch the aid ``name`` to ``value`` and answer with it alone; both empty: all of them."""

    name: str = ""
    value: str = ""


@dataclass(frozen=True, slots=True)
class InfoBody:
    """A table for people and scripts: ``columns`` and ``rows`` of cells, ``text`` a line above it."""

    text: str = ""
    columns: list[str] = field(default_factory=list)
    rows: list[list[Any]] = field(default_factory=list)


@request("adbg/info", InfoBody)
@dataclass(frozen=True, slots=True)
class Info:
    """``what``: backward, breakpoints, threads, params, memory, capabilities, names (every node name of this graph and
    seen)."""

    what: str


@dataclass(frozen=True, slots=True)
class RecordBody:
    recording: bool
    run_dir: str
    message: str = ""


@request("adbg/record", RecordBody)
@dataclass(frozen=True, slots=True)
class Record:
    on: bool | None = None  # None only asks


@request("adbg/frames", Empty)
@dataclass(frozen=True, slots=True)
class Frames:
    """Which frames stacks show, and breakpoints at lines count: the user's alone, or the framework's too."""

    all: bool


@dataclass(frozen=True, slots=True)
class StacksBody:
    on: bool = False


@request("adbg/stacks", StacksBody)
@dataclass(frozen=True, slots=True)
class Stacks:
    """Forward stacks and module paths of the nodes made from now on; ``on`` None: only ask."""

    on: bool | None = None

"""The run directory: its files, its tables, one writer and one reader (L1, stdlib only)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adbg.engine.types import GraphRow, NodeStop

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class RecordedBackward:
    """One row of table ``backward``. ``us`` None: it did not end."""

    seq: int
    number: int
    entry: str
    depth: int
    parent: int
    parent_index: int
    thread: int
    iteration: int
    nodes: int
    roots: tuple[str, ...]
    file: str
    line: int
    create_graph: bool
    time: float
    us: float | None
    error: str


class RunReader:
    """Reads one rank of a run directory, while it is written or later."""

    def __init__(self, run_dir: str | os.PathLike[str], label: str = "") -> None:
        raise NotImplementedError

    @property
    def info(self) -> dict[str, Any]:
        raise NotImplementedError

    @property
    def state(self) -> str:
        """"running", "ended" or "crashed"."""
        raise NotImplementedError

    def backwards(self) -> list[RecordedBackward]:
        raise NotImplementedError

    def graph(self, number: int, start: int = 1, count: int = 2000) -> list[GraphRow]:
        raise NotImplementedError

    def stops(self) -> Sequence[tuple[int, float, NodeStop]]:
        raise NotImplementedError

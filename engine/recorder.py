"""The recorder: plain values from any thread into the run directory (L2, stdlib only).

Callers only append to a queue; one daemon thread ("adbg-recorder") writes in batches. A write that fails ends the recording,
says so once through ``on_problem``, and never reaches a caller.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from adbg.engine.types import GraphRow, NodeStop, SourceLine, TensorMeta, TensorStats


class Recorder:
    """One process's record. Every method may be called from any thread, costs about a microsecond, and never raises."""

    @classmethod
    def open(
        cls, run_dir: str | os.PathLike[str], rank: int = 0, on_problem: Callable[[str], None] | None = None, **info: Any
    ) -> Recorder:
        """Never raises: when the folder cannot be written, ``on_problem`` hears why and the recorder records nothing.
        ``info`` goes into run.json (argv, cwd, frameworks, capabilities)."""
        raise NotImplementedError

    @property
    def recording(self) -> bool:
        raise NotImplementedError

    @property
    def run_dir(self) -> str:
        raise NotImplementedError

    @property
    def dropped(self) -> int:
        """Log lines and node events dropped under pressure so far."""
        raise NotImplementedError

    def update_info(self, **info: Any) -> None:
        """Change fields of run.json (frameworks once they are known)."""
        raise NotImplementedError

    def backward_begin(
        self, number: int, *, nodes: int = 0, roots: Sequence[str] = (), entry: str = "backward", depth: int = 0, parent: int = 0,
        parent_index: int = 0, thread: int = 0, iteration: int = 0, file: str = "", line: int = 0, create_graph: bool = False,
    ) -> None:
        raise NotImplementedError

    def backward_end(self, number: int, us: float | None = None, error: str = "") -> None:
        raise NotImplementedError

    def graph(self, number: int, rows: Sequence[GraphRow], stacks: Mapping[int, Sequence[SourceLine]] | None = None) -> None:
        """The nodes of a backward call; ``stacks`` (by index) their forward stacks. May be called with pages."""
        raise NotImplementedError

    def node_event(
        self, backward: int, index: int, phase: str, us: float | None = None, norm: float | None = None, nonfinite: bool = False
    ) -> None:
        raise NotImplementedError

    def tensor(
        self, backward: int, index: int, role: str, slot: int, meta: TensorMeta, stats: TensorStats | None = None,
        payload: bytes | None = None,
    ) -> None:
        raise NotImplementedError

    def stop(self, stop: NodeStop) -> None:
        raise NotImplementedError

    def artifact(self, kind: str, path: str, text: str = "") -> None:
        raise NotImplementedError

    def log(self, line: str) -> None:
        """One VLOG record (one or more lines)."""
        raise NotImplementedError

    def set_exit(self, code: int | None) -> None:
        raise NotImplementedError

    def flush(self, timeout: float = 2.0) -> bool:
        """Wait until all that was handed over so far is written; False when it is not within ``timeout`` seconds."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

"""Profiles of a process that runs already (``support/late.py``), asked for over the wire."""

from __future__ import annotations

import json
import pstats
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adbg.profiles import registry
from support.front_end import Peer
from support.late import Late, Session, leave


def names(framework: str) -> list[str]:
    """The profilers that measure in a program of ``framework`` and are there."""
    others = {"torch", "paddle"} - {framework}
    made = {name: registry.make(name) for name in registry.REGISTRY if name not in others}
    return [name for name, profiler in made.items() if profiler.where == "program" and profiler.available().ok]


class Profiled:
    """One attach. ``start``, then let the program do something, then ``ended``."""

    def __init__(self, peer: Peer, folder: Path) -> None:
        self.peer = peer
        self.folder = folder
        self._ended = 0

    def start(self, name: str, kind: str, count: int = 0, **facts: Any) -> dict[str, Any]:
        request = {key: facts.pop(key) for key in ("cores", "nice") if key in facts}
        region = {"kind": kind, "count": count, "warmup": 0, "place": "", "spec": "", **facts}
        words = {"action": "start", "profiler": name, "region": region, "folder": str(self.folder), **request}
        state: dict[str, Any] = self.peer.request("adbg/profile", **words)["state"]
        return state

    def stop(self) -> dict[str, Any]:
        state: dict[str, Any] = self.peer.request("adbg/profile", action="stop")["state"]
        return state

    def ended(self) -> dict[str, Any]:
        """The state of the next profile that is over."""

        def found() -> Any:
            bodies = [body["state"] for body in self.peer.bodies("adbg/profile")]
            over = [state for state in bodies if state["state"] in ("done", "partial", "failed")]
            return len(over) > self._ended and over[self._ended]

        state: dict[str, Any] = self.peer.until(found, "the end of the profile")
        self._ended += 1
        return state


@contextmanager
def attached(program: Late, folder: Path) -> Iterator[Profiled]:
    with Session() as session:
        peer = session.enter(program)
        peer.begin()
        yield Profiled(peer, folder)
        leave(peer)


def meta_of(folder: Path | str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(folder) / "meta.json").read_text())
    return found


def calls_of(folder: Path | str, function: str) -> int:
    """How often a function was called, as the standard library's pstats reads it."""
    rows = pstats.Stats(str(Path(folder) / "profile.pstats")).stats  # type: ignore[attr-defined]
    return sum(row[1] for (_, _, name), row in rows.items() if name == function)

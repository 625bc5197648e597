"""Which profilers there are, by name. Importing this imports none of them; nobody else names their modules."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable

from adbg.engine.errors import CommandError
from adbg.engine.protocol import messages as p
from adbg.profiles.base import Profiler


def _lazy(module: str, cls: str) -> Callable[[], Profiler]:
    def make() -> Profiler:
        found: Profiler = getattr(importlib.import_module(f"adbg.profiles.profilers.{module}"), cls)()
        return found

    return make


REGISTRY: dict[str, Callable[[], Profiler]] = {
    "cprofile": _lazy("cprofile", "CProfile"),
    "nodes": _lazy("node_timer", "NodeTimer"),
    "yep": _lazy("yep", "Yep"),
    "py-spy": _lazy("pyspy", "PySpy"),
    "torch": _lazy("torch_profiler", "TorchProfiler"),
    "paddle": _lazy("paddle_profiler", "PaddleProfiler"),
}
ALIASES = {
    "cProfile": "cprofile", "node_timer": "nodes", "timer": "nodes", "pyspy": "py-spy",
    "gperftools": "yep", "torch.profiler": "torch", "paddle.profiler": "paddle",
}  # fmt: skip


def known(name: str) -> str:
    """The registered name. Raises CommandError."""
    found = ALIASES.get(name, name)
    if found not in REGISTRY:
        close = difflib.get_close_matches(name, [*REGISTRY, *ALIASES], 1, 0.5)
        hint = f"did you mean {ALIASES.get(close[0], close[0])}? " if close else ""
        raise CommandError(f"unknown profiler {name!r}", f"{hint}there are {', '.join(REGISTRY)}")
    return found


def make(name: str) -> Profiler:
    """A fresh one. Raises CommandError for an unknown name."""
    return REGISTRY[known(name)]()


def row_of(name: str) -> p.ProfilerRow:
    profiler = make(name)
    can = profiler.available()
    return p.ProfilerRow(name, profiler.what, profiler.where, can.ok, can.why, can.hint)

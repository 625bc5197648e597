"""Stands for ``adbg.engine.agent.agent`` where only launching is tested: writes down who started it, and when a
framework is imported.
"""

from __future__ import annotations

import os
import sys

from adbg.engine.agent import import_watch as importwatch


def start(config: object, main: bool) -> None:
    _note(f"start main={main}")
    if os.environ.get("STUB_AGENT_FAILS"):
        raise RuntimeError("no debugger here")
    if main:
        importwatch.watch({"torch": lambda: _note("torch imported")})


def _note(text: str) -> None:
    import queue  # a name that a script may want for a file of its own

    assert queue.Queue, "the standard library's"
    log = os.environ.get("STUB_AGENT_LOG")
    if log:
        with open(log, "a") as file:
            file.write(f"{os.getpid()} {text} torch={'torch' in sys.modules}\n")

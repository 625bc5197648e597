"""A session with a framework and its profiles, in the process of the test."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

from adbg.engine.backends import REGISTRY
from adbg.engine.protocol import messages as p
from adbg.engine.session.session import Session
from adbg.profiles.control import Profiling
from support.patience import patience


class _Silent:
    def event(self, body: object, droppable: bool = False) -> None:
        """Nobody is there."""


class Run:
    """A session with a framework, and the profiles of it. ``told``: (state, what meta.json said then)."""

    def __init__(self, framework: str, folder: Path) -> None:
        self.session = Session(_Silent())
        self.session.set_filters([])
        self.session.add_backend(REGISTRY[framework]())
        self.told: list[tuple[str, str]] = []
        self.profiling = Profiling(self.session, self._tell, lambda: str(folder))
        self.session.observe(self.profiling)
        self.session.attach()
        self._framework = framework

    def _tell(self, body: p.ProfileChanged) -> None:
        try:
            with open(os.path.join(body.state.folder, "meta.json")) as file:
                said = json.load(file)["state"]
        except OSError:
            said = ""
        self.told.append((body.state.state, said))

    def start(self, name: str, count: int, kind: str = "iterations") -> None:
        self.profiling.answer(p.Profile("start", name, p.ProfileRegion(kind, count, 0)))

    @property
    def state(self) -> str:
        return self.profiling.state().state

    def step(self) -> None:
        if self._framework == "torch":
            import torch

            torch.tanh(torch.ones(4, requires_grad=True)).sum().backward()
        else:
            import paddle

            x = paddle.ones([4])
            x.stop_gradient = False
            paddle.tanh(x).sum().backward()


def on_a_thread(what: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=what, daemon=True)
    thread.start()
    return thread


def comes(thread: threading.Thread) -> bool:
    thread.join(patience(20))
    return not thread.is_alive()

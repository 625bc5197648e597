"""When a training step on torch is in the forward (the outermost call of a module), in an optimizer's step, or waits
for a DataLoader.

Modules are seen by standing in for ``Module.__call__``, not by torch's global forward hooks: what is compiled while
such a hook is in is compiled again once it is gone. torch.compile asks which function ``__call__`` is, so torch's own
is back in its place as long as anything compiles. A step that is compiled itself (``torch.compile(optimizer.step)``)
is compiled once more as torch's hooks of it come or go.
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from adbg.engine.backends.common.timing.phases import PhaseTaps, Point

_is_compiling = torch.compiler.is_compiling
_COMPILER = "torch._dynamo.callback"


class _Stepping(threading.local):
    def __init__(self) -> None:
        self.frames: list[int] = []  # ids of the frames that run this thread's steps, outermost first


class TorchPhases(PhaseTaps):
    def __init__(self, line: Callable[[Any], Any]) -> None:
        super().__init__(line)
        self._handles: list[Any] = []
        self._stepping = _Stepping()
        self._compiler: Any = None  # torch's list of whom to tell when it compiles

    def points(self) -> Iterable[Point]:
        yield torch.nn.Module, "__call__", "forward"
        base = getattr(dataloader, "_BaseDataLoaderIter", None)
        if base is not None and "__next__" in vars(base):
            yield base, "__next__", "data"

    def put_in(self) -> None:
        super().put_in()
        self._stepping = _Stepping()
        self._handles = [
            register_optimizer_step_pre_hook(self._step_begins),
            register_optimizer_step_post_hook(self._step_ended),
        ]
        self._meet_compiler()

    def take_out(self) -> None:
        handler, self._compiler = self._compiler, None
        if handler is not None:
            handler.remove_start_callback(self._compile_begins)
            handler.remove_end_callback(self._compile_ended)
        for handle in self._handles:
            handle.remove()
        self._handles = []
        super().take_out()

    # ---- the compiler

    def unseen(self) -> bool:
        if _is_compiling():
            return True
        if self._compiler is None and _COMPILER in sys.modules:
            self._meet_compiler()
        return False

    def _meet_compiler(self) -> None:
        """Once it is imported, which is not before the program uses it."""
        handler = getattr(sys.modules.get(_COMPILER), "callback_handler", None)
        if handler is not None and self._compiler is None:
            self._compiler = handler
            handler.register_start_callback(self._compile_begins)
            handler.register_end_callback(self._compile_ended)

    def _compile_begins(self, facts: object) -> None:
        for owner, name, original, ours in self._replaced:
            if owner is torch.nn.Module and vars(owner).get(name) is ours:
                setattr(owner, name, original)

    def _compile_ended(self, facts: object) -> None:
        for owner, name, original, ours in self._replaced:
            if owner is torch.nn.Module and vars(owner).get(name) is original:
                setattr(owner, name, ours)

    # ---- an optimizer's step

    def _step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if _is_compiling():
            return
        running = self._stepping.frames
        frame: types.FrameType | None = sys._getframe(1)
        key = id(frame)
        if running:  # a step within a step, or one that raised and has no end
            around = set()
            while frame is not None:
                around.add(id(frame))
                frame = frame.f_back
            running[:] = [step for step in running if step in around and step != key]
            if not running:
                self.end("optimizer")
        running.append(key)
        if len(running) == 1:
            self.begin("optimizer")

    def _step_ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if _is_compiling():
            return
        running, key = self._stepping.frames, id(sys._getframe(1))
        if key in running:
            del running[running.index(key) :]
            if not running:
                self.end("optimizer")

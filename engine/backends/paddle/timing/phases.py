"""When a training step on Paddle is in the forward (the outermost call of a Layer), in an optimizer's step, or waits
for a DataLoader. ``Layer.__call__`` is stood in for by ``modules``, which follows Layers anyway."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import paddle
from paddle.io.dataloader import dataloader_iter

from adbg.engine.backends.common.timing.phases import PhaseTaps, Point
from adbg.engine.backends.paddle.modules import Modules

_LOADERS = ("_DataLoaderIterSingleProcess", "_DataLoaderIterMultiProcess")


class PaddlePhases(PhaseTaps):
    def __init__(self, line: Callable[[Any], Any], modules: Modules) -> None:
        super().__init__(line)
        self._modules = modules

    def points(self) -> Iterable[Point]:
        for loader in (getattr(dataloader_iter, name, None) for name in _LOADERS):
            if loader is not None and "__next__" in vars(loader):
                yield loader, "__next__", "data"
        for kind in _kinds(paddle.optimizer.Optimizer):
            for name in ("step", "minimize"):
                if name in vars(kind):
                    yield kind, name, "optimizer"

    def put_in(self) -> None:
        super().put_in()
        self._modules.tell_outermost(self._forward)

    def take_out(self) -> None:
        self._modules.tell_outermost(None)
        super().take_out()

    def _forward(self, begins: bool) -> None:
        if begins:
            self.begin("forward")
        else:
            self.end("forward")


def _kinds(kind: Any) -> Iterable[Any]:
    """Paddle's own optimizers; a class of the user's steps by one of them."""
    yield kind
    for inner in kind.__subclasses__():
        if inner.__module__.partition(".")[0] == "paddle":
            yield from _kinds(inner)

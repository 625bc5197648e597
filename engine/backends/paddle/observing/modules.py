"""Forwards of outermost Layers on Paddle."""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar

import paddle
from paddle.nn import Layer

from adbg.engine.backends.common.observing.module_calls import ModuleCalls, Modules
from adbg.engine.backends.common.observing.stand_ins import StandIns
from adbg.engine.backends.common.user_files import FrameFilter
from adbg.engine.backends.paddle import private
from adbg.engine.backends.paddle.native.own import aids_aside


def static() -> bool:
    """A static graph is being built: no tensor has a value."""
    return not paddle.in_dynamic_mode()


@contextlib.contextmanager
def unseen() -> Any:
    """What adbg computes here records no gradient, and no aid of the program's sees it."""
    with aids_aside(), paddle.no_grad():
        yield


class ModulesTap(ModuleCalls):
    kind: ClassVar[type[Layer]] = Layer

    def __init__(self, frames: FrameFilter, modules: Modules) -> None:
        super().__init__(frames, modules, StandIns(static), unseen)

    def grad_mode(self) -> bool:
        return private.has_grad()

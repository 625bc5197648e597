"""Forwards of outermost modules on torch. Seen by standing in for ``Module.__call__``, not by global forward hooks: see
``timing.phases``."""

from __future__ import annotations

from typing import ClassVar

import torch

from adbg.engine.backends.common.observing.module_calls import ModuleCalls, Modules
from adbg.engine.backends.common.user_files import FrameFilter
from adbg.engine.backends.torch import private
from adbg.engine.backends.torch.observing.stand_ins import TorchStandIns


class ModulesTap(ModuleCalls):
    kind: ClassVar[type[torch.nn.Module]] = torch.nn.Module

    def __init__(self, frames: FrameFilter, modules: Modules) -> None:
        super().__init__(frames, modules, TorchStandIns(), private.undisturbed)

    def grad_mode(self) -> bool:
        return torch.is_grad_enabled()

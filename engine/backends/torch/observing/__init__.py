"""Taps for diagnosis on torch: what a training script does beside its backwards. A module a need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data._utils import fetch, signal_handling

from adbg.engine.backends.base import Tap
from adbg.engine.backends.common.observing.loaders import LoadersTap
from adbg.engine.backends.common.observing.module_calls import Modules
from adbg.engine.backends.common.user_files import FrameFilter
from adbg.engine.backends.torch import private
from adbg.engine.backends.torch.observing.functions import FunctionsTap
from adbg.engine.backends.torch.observing.hooks import HooksTap
from adbg.engine.backends.torch.observing.modules import ModulesTap
from adbg.engine.backends.torch.observing.operators import OperatorTap
from adbg.engine.backends.torch.observing.recomputes import RecomputesTap
from adbg.engine.backends.torch.observing.stand_ins import TorchStandIns
from adbg.engine.backends.torch.observing.steps import StepsTap


def taps(frames: FrameFilter, modules: Modules, address: Callable[[Any], int] = id) -> Sequence[Tap]:
    """One of each, none put in. ``frames`` finds the user's lines; ``modules`` hears of those that run; ``address``: of
    a node, as ``Graph.address`` gives it."""
    return (
        StepsTap(frames),
        ModulesTap(frames, modules),
        FunctionsTap(frames),
        HooksTap(frames, address),
        RecomputesTap(frames),
        LoadersTap(
            frames,
            TorchStandIns(),
            private.undisturbed,
            DataLoader,
            getattr(fetch, "_MapDatasetFetcher", None),
            (signal_handling, "_set_worker_signal_handlers"),
        ),
        OperatorTap(),
    )

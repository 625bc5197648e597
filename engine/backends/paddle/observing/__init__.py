"""Taps for diagnosis on Paddle: what a training script does beside its backwards. A module a need."""

from __future__ import annotations

from collections.abc import Sequence

from paddle.base import core
from paddle.io import DataLoader
from paddle.io.dataloader import fetcher

from adbg.engine.backends.base import Tap
from adbg.engine.backends.common.observing.loaders import LoadersTap
from adbg.engine.backends.common.observing.module_calls import Modules
from adbg.engine.backends.common.observing.stand_ins import StandIns
from adbg.engine.backends.common.user_files import FrameFilter
from adbg.engine.backends.paddle.observing.functions import FunctionsTap
from adbg.engine.backends.paddle.observing.hooks import HooksTap
from adbg.engine.backends.paddle.observing.modules import ModulesTap, static, unseen
from adbg.engine.backends.paddle.observing.operators import OperatorTap
from adbg.engine.backends.paddle.observing.recomputes import RecomputesTap
from adbg.engine.backends.paddle.observing.steps import StepsTap


def taps(frames: FrameFilter, modules: Modules) -> Sequence[Tap]:
    """One of each, none put in. ``frames`` finds the user's lines; ``modules`` hears of those that run."""
    operators = OperatorTap()
    return (
        StepsTap(frames),
        ModulesTap(frames, modules),
        FunctionsTap(frames),
        HooksTap(frames),
        RecomputesTap(frames, operators),
        LoadersTap(
            frames,
            StandIns(static),
            unseen,
            DataLoader,
            getattr(fetcher, "_MapDatasetFetcher", None),
            (core, "_set_process_signal_handler"),
        ),
        operators,
    )

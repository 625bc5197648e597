"""Taps for diagnosis on Paddle: what a training script does beside its backwards. A module a need."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from adbg.engine.backends.base import Tap
from adbg.engine.backends.paddle.observing.operators import OperatorTap
from adbg.engine.types import SourceLine

Lines = Callable[[object], "tuple[SourceLine, ...]"]  # user lines of a frame, innermost first


def taps() -> Sequence[Tap]:
    """One of each, none put in."""
    return (OperatorTap(),)

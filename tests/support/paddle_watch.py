"""A way to run a piece of code under the Paddle backend, with a sink that records what it reports."""

from __future__ import annotations

from contextlib import AbstractContextManager

from adbg.engine.backends.paddle.backend import PaddleBackend
from tests.support.watch import EVERY, Seen, Watch, installed

__all__ = ["EVERY", "Seen", "Watch", "watching"]


def watching(watch: Watch, *, armed: bool = True, stacks: bool = False) -> AbstractContextManager[PaddleBackend]:
    """The backend is in for the length of the block, and out without a trace afterwards."""
    return installed(PaddleBackend(), watch, armed, stacks)

"""A way to run a piece of code under the Torch backend, with a sink that records what it reports."""

from __future__ import annotations

from contextlib import AbstractContextManager

from adbg.engine.backends.torch.backend import TorchBackend
from tests.support.watch import EVERY, Seen, Watch, installed

__all__ = ["EVERY", "Seen", "Watch", "watching"]


def watching(watch: Watch, *, armed: bool = True, stacks: bool = False) -> AbstractContextManager[TorchBackend]:
    """The backend is in for the length of the block, and out without a trace afterwards."""
    return installed(TorchBackend(), watch, armed, stacks)

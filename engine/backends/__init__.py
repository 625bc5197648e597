"""The registry of backends, by the top-level module whose import brings one in. Importing this imports no framework."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from adbg.engine.backends.base import Backend


def _lazy(module: str, cls: str) -> Callable[[], Backend]:
    def make() -> Backend:
        backend: Backend = getattr(importlib.import_module(module), cls)()
        return backend

    return make


REGISTRY: dict[str, Callable[[], Backend]] = {
    "torch": _lazy("adbg.engine.backends.torch.backend", "TorchBackend"),
    "paddle": _lazy("adbg.engine.backends.paddle.backend", "PaddleBackend"),
}

"""The registry of backends: top-level module name -> factory. Importing this imports no framework and no backend."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from adbg.engine.backends.base import Backend, Registry


def _lazy(module: str, cls: str) -> Callable[[], Backend]:
    def make() -> Backend:
        backend: Backend = getattr(importlib.import_module(module), cls)()
        return backend

    return make


REGISTRY = Registry()
REGISTRY.register("torch", _lazy("adbg.engine.backends.torch.backend", "TorchBackend"))
REGISTRY.register("paddle", _lazy("adbg.engine.backends.paddle.backend", "PaddleBackend"))

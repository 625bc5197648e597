"""Random numbers on torch, kept as they are while code of the program's runs once more. No device is started for it:
``torch.random.fork_rng`` and ``torch.manual_seed`` would start one, or seed one that the program starts later."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from adbg.engine.backends.common import random_numbers

_cuda: Any = torch.cuda


@contextlib.contextmanager
def random_kept() -> Iterator[None]:
    """Afterwards the same numbers come next as if none had been drawn here, of torch, of Python and of NumPy."""
    cpu = torch.random.get_rng_state()
    devices = _cuda.get_rng_state_all() if _cuda.is_initialized() else None
    try:
        with random_numbers.random_kept():
            yield
    finally:
        torch.random.set_rng_state(cpu)
        if devices is not None:
            _cuda.set_rng_state_all(devices)


def seed_all(seed: int) -> None:
    """The same numbers from here on each time; inside ``random_kept``."""
    torch.default_generator.manual_seed(seed)
    if _cuda.is_initialized():
        _cuda.manual_seed_all(seed)
    random_numbers.seeded(seed)
